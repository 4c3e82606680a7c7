"""The paper's theory as code."""

from nowait.theory.constants import Constants

__all__ = ["Constants"]
