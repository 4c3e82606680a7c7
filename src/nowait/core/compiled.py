"""Compiled kernels, loaded at their first use: ``import nowait`` must not import numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def kernels() -> Any:
    """The module ``nowait.core.kernels``."""
    from nowait.core import kernels as module

    return module


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with numba, cached on disk where there is a place to write; no fastmath, so bits do not change."""
    from numba import njit

    try:
        result: Callable[..., Any] = njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba finds no folder it can write to
        result = njit(nogil=True)(function)
    return result
