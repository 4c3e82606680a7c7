"""The array types that all layers use."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nowait.core import checks
from nowait.core.memory import memory_of

Vector = NDArray[np.floating[Any]]
"""A one-dimensional float32 or float64 array: params, a gradient, a point. With a ``Memory`` of a device, a tensor."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def norm(vector: Vector) -> float:
    """Return the Euclidean norm of a vector of any memory, also if squares of entries overflow."""
    memory = memory_of(vector)
    largest = float(memory.namespace.abs(vector).max())
    return largest * math.sqrt(memory.squared_norm(vector / largest)) if largest > 0 else 0.0


def checked_params(values: object, name: str) -> Vector:
    """Return values as a contiguous array of params, or raise an error that says what params must be."""
    checks.unmasked(values, name)
    if not isinstance(values, np.ndarray) or values.dtype not in (np.float32, np.float64) or values.ndim != 1:
        came = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        raise TypeError(f"{name} must be a one-dimensional numpy array of float32 or float64, got {came}")
    if values.size == 0:
        raise ValueError(f"{name} is empty: there is nothing to train")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} contains NaN or infinity at index {int(np.argmin(np.isfinite(values)))}")
    return np.ascontiguousarray(values)
