"""Compiled kernels, loaded at their first use: ``import nowait`` must not import numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = (
    "**/*kernels.py",
    "numerics/elementary.py",
    "numerics/lanes.py",
    "numerics/prefetch.py",
    "numerics/splitmix.py",
    "engines/simulator/plan.py",
    "problems/compiled_data.py",
    "speeds/formula.py",
)
"""The files with compiled functions, and with constants that are compiled into them."""


@cache
def kernels() -> Any:
    """The module ``nowait.numerics.kernels``."""
    from nowait.numerics import kernels as module

    return module


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with numba, cached on disk where there is a place to write; no fastmath, so bits do not change."""
    return _compile(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, for a part of other compiled functions: it becomes part of them."""
    return _compile(function, forceinline=True)


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    from numba import njit

    try:
        result: Any = njit(cache=True, nogil=True, **options)(function)
        result._cache._cache_file._source_stamp = source_stamp()
    except RuntimeError:  # numba finds no folder it can write to
        result = njit(nogil=True, **options)(function)
    except (
        AttributeError
    ):  # another numba keeps its stamp elsewhere: then only changes of the function's own file count
        pass
    made: Callable[..., Any] = result
    return made


def is_ready(kernel: Any) -> bool:
    """Whether compiled code of a kernel (for some types of arguments) is in memory or in the cache on disk."""
    try:
        return bool(kernel.signatures or kernel._cache._cache_file._load_index())
    except AttributeError:  # another numba has its cache elsewhere, or there is no place for one
        return True


@cache
def source_stamp() -> tuple[tuple[str, int, int], ...]:
    """What tells whether compiled code on disk is out of date: all files that go into it.

    Numba looks at the file of a function alone, but functions of other files are compiled into it.
    """
    package = Path(__file__).parents[1]
    files = [file for pattern in SOURCES for file in package.glob(pattern)]
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(files))


def warm_up(params: Any) -> None:
    """Load the kernels that steps from params like these need, before a run counts seconds."""
    few = np.zeros(1, dtype=params.dtype)
    point = few.copy()
    point.flags.writeable = False
    kernels().squared_norm(few)
    kernels().sgd_step(point, few, params.dtype.type(0.0) if params.dtype != np.float64 else 0.0, few.copy())
    kernels().add_scaled(few, few, params.dtype.type(0.0))
