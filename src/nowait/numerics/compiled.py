"""Compiled kernels, loaded on first use: ``import nowait`` must not import numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = (
    "**/*kernels.py",
    "numerics/chunks.py",
    "numerics/elementary.py",
    "numerics/lanes.py",
    "numerics/prefetch.py",
    "numerics/splitmix.py",
    "engines/simulator/plan.py",
    "problems/compiled_data.py",
    "speeds/formula.py",
)
"""The files that contain compiled functions, or constants that are compiled into them."""


@cache
def kernels() -> Any:
    """Import and return the module ``nowait.numerics.vectors``: kernels for vectors of any length."""
    from nowait.numerics import vectors as module

    return module


@cache
def encoding_kernels() -> Any:
    """Import and return the module ``nowait.numerics.encoding_kernels``: conversions of vectors to smaller numbers."""
    from nowait.numerics import encoding_kernels as module

    return module


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with numba, with a cache on disk if a folder is writable; no fastmath, so results are bit-identical."""
    return _compile(function)


def divides_like_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile like ``compiled``, but a division by zero returns infinity or NaN instead of raising an error.

    Without the check for zero, loops with divisions can be vectorised.
    """
    return _compile(function, error_model="numpy")


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile like ``compiled``, but inline the function into the compiled functions that call it."""
    return _compile(function, forceinline=True)


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    from numba import njit

    try:
        result: Any = njit(cache=True, nogil=True, **options)(function)
        result._cache._cache_file._source_stamp = source_stamp()
    except RuntimeError:  # numba found no writable cache folder
        result = njit(nogil=True, **options)(function)
    except AttributeError:  # other numba versions store the stamp elsewhere; they check the function's own file only
        pass
    made: Callable[..., Any] = result
    return made


def is_ready(kernel: Any) -> bool:
    """Return True if compiled code of a kernel, for any argument types, is in memory or in the cache on disk."""
    try:
        return bool(kernel.signatures or kernel._cache._cache_file._load_index())
    except AttributeError:  # other numba versions store the cache elsewhere, or there is no cache
        return True


@cache
def source_stamp() -> tuple[tuple[str, int, int], ...]:
    """Return name, modification time and size of all source files; cached code with another stamp is out of date.

    Numba checks only the file of a function, but functions from other files are compiled into it.
    """
    package = Path(__file__).parents[1]
    files = [file for pattern in SOURCES for file in package.glob(pattern)]
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(files))


def warm_up(params: Any) -> None:
    """Load or compile the kernels that steps on params of this dtype need, before the run's clock starts."""
    few = np.zeros(1, dtype=params.dtype)
    point = few.copy()
    point.flags.writeable = False
    kernels().squared_norm(few)
    kernels().sgd_step(point, few, params.dtype.type(0.0) if params.dtype != np.float64 else 0.0, few.copy())
    kernels().add_scaled(few, few, params.dtype.type(0.0))
