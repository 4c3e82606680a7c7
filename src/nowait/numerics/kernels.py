"""Compiled passes over memory. Importing this module imports numba, so it is imported when a run starts.

The same inputs give the same bits on every processor, wherever the arrays are in memory: sums are added up in the order
of ``nowait.numerics.lanes``, and ``sgd_step`` writes exactly what numpy's ``params - stepsize * direction`` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nowait.numerics.compiled import compiled
from nowait.numerics.lanes import dot, step_and_norm, total


@compiled
def squared_norm(vector: Any) -> float:
    """The sum of squares, in float64. Not finite when an entry is not finite (or when squares overflow)."""
    contiguous = np.ascontiguousarray(vector)
    squares: float = dot(contiguous, contiguous)
    return squares


@compiled
def inner(first: Any, second: Any) -> float:
    """The inner product of two contiguous vectors, in float64."""
    product: float = dot(first, second)
    return product


@compiled
def sum_of(values: Any) -> float:
    """The sum of a contiguous vector, in float64."""
    result: float = total(values)
    return result


@compiled
def sgd_step(params: Any, direction: Any, stepsize: Any, out: Any) -> tuple[float, float]:
    """``out = params - stepsize * direction`` in one pass.

    Returns what ``squared_norm(direction)`` is, and 0 if every entry of ``out`` is finite, else NaN.
    """
    result: tuple[float, float] = step_and_norm(params, np.ascontiguousarray(direction), stepsize, out)
    return result


@compiled
def add_scaled(total: Any, vector: Any, weight: Any) -> None:
    """``total += weight * vector`` without a temporary."""
    for i in range(total.size):
        total[i] += weight * vector[i]


@compiled
def move_towards(mean: Any, point: Any, fraction: Any) -> None:
    """``mean += fraction * (point - mean)`` without a temporary: one term of a running average."""
    for i in range(mean.size):
        mean[i] += fraction * (point[i] - mean[i])


@compiled
def count_repeats(keys: Any, values: Any, latest: Any) -> int:
    """How often a key comes with the same value as when it came before; ``latest`` has the last value of each key."""
    repeats = 0
    for i in range(keys.size):
        repeats += latest[keys[i]] == values[i]
        latest[keys[i]] = values[i]
    return repeats
