"""Compiled vector operations, one pass over memory each. Imports numba, so it is imported only when a run starts.

Results are bit-identical on every processor and for every alignment of the arrays: sums use the order of
``nowait.numerics.lanes``, those over large vectors are divided as ``nowait.numerics.chunks`` says, and ``sgd_step``
computes exactly what numpy's ``params - stepsize * direction`` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from nowait.numerics.chunks import chunk_size
from nowait.numerics.compiled import compiled
from nowait.numerics.lanes import dot, dot_of_range, step_and_norm, total

register_jitable(chunk_size)


@compiled
def squared_norm(vector: Any) -> float:
    """Return the sum of squares, in float64. It is not finite if an entry is not finite or if squares overflow."""
    contiguous = np.ascontiguousarray(vector)
    size, chunk, squares = contiguous.size, chunk_size(contiguous.size), 0.0
    for start in range(0, size, chunk):
        squares += dot_of_range(contiguous, contiguous, start, min(chunk, size - start))
    return squares


@compiled
def inner(first: Any, second: Any) -> float:
    """Return the inner product of two contiguous vectors, in float64."""
    product: float = dot(first, second)
    return product


@compiled
def sum_of(values: Any) -> float:
    """Return the sum of a contiguous vector, in float64."""
    result: float = total(values)
    return result


@compiled
def sgd_step(params: Any, direction: Any, stepsize: Any, out: Any) -> tuple[float, float]:
    """Compute ``out = params - stepsize * direction`` in one pass.

    Returns ``squared_norm(direction)``, and 0 if every entry of ``out`` is finite, else NaN.
    """
    contiguous = np.ascontiguousarray(direction)
    size, chunk, squares, zero = params.size, chunk_size(params.size), 0.0, 0.0
    for start in range(0, size, chunk):
        more_squares, more_zero = step_and_norm(params, contiguous, stepsize, out, start, min(chunk, size - start))
        squares += more_squares
        zero += more_zero
    return squares, zero


@compiled
def add_scaled(total: Any, vector: Any, weight: Any) -> None:
    """Compute ``total += weight * vector`` without a temporary array."""
    for i in range(total.size):
        total[i] += weight * vector[i]


@compiled
def move_towards(mean: Any, point: Any, fraction: Any) -> None:
    """Compute ``mean += fraction * (point - mean)``, one term of a running average, without a temporary array."""
    for i in range(mean.size):
        mean[i] += fraction * (point[i] - mean[i])


@compiled
def count_repeats(keys: Any, values: Any, latest: Any) -> int:
    """Return how often a key has the same value as at its previous occurrence; ``latest`` has each key's last value."""
    repeats = 0
    for i in range(keys.size):
        repeats += latest[keys[i]] == values[i]
        latest[keys[i]] = values[i]
    return repeats
