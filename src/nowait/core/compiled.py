"""The compiled kernels, loaded at their first use: ``import nowait`` must not import numba."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def kernels() -> Any:
    """The module ``nowait.core.kernels``."""
    from nowait.core import kernels as module

    return module
