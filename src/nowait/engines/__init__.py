"""The engines: they act on what the server decides."""

from nowait.engines.budget import Budget
from nowait.engines.session import Session

__all__ = ["Budget", "Session"]
