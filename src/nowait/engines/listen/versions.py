"""The versions that both ends of a connection must have, because code is pickled."""

from __future__ import annotations

import importlib.metadata
import sys


def library_version() -> str:
    """Return the version of this library."""
    return importlib.metadata.version("nowait")


def python_version() -> str:
    """Return the version of Python, such as 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"
