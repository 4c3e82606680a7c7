"""Compiled passes over memory. Importing this module imports numba, so it is imported when a run starts.

The same inputs give the same bits, and ``sgd_step`` writes exactly what numpy's ``params - stepsize * direction`` does.
Eight partial sums break the dependency chain of a plain sum in ``squared_norm``, by which methods decide; the norm that
``sgd_step`` returns is for the record alone.
"""

from __future__ import annotations

import math
from typing import Any

from nowait.core.compiled import compiled, compiled_for_sums


@compiled
def squared_norm(vector: Any) -> float:
    """The sum of squares, in float64. Not finite when an entry is not finite (or when squares overflow)."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    blocked = vector.size - vector.size % 8
    for i in range(0, blocked, 8):
        v0, v1 = float(vector[i]), float(vector[i + 1])
        v2, v3 = float(vector[i + 2]), float(vector[i + 3])
        v4, v5 = float(vector[i + 4]), float(vector[i + 5])
        v6, v7 = float(vector[i + 6]), float(vector[i + 7])
        s0 += v0 * v0
        s1 += v1 * v1
        s2 += v2 * v2
        s3 += v3 * v3
        s4 += v4 * v4
        s5 += v5 * v5
        s6 += v6 * v6
        s7 += v7 * v7
    for i in range(blocked, vector.size):
        v0 = float(vector[i])
        s0 += v0 * v0
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


@compiled_for_sums
def sgd_step(params: Any, direction: Any, stepsize: Any, out: Any) -> tuple[float, float]:
    """``out = params - stepsize * direction`` in one pass.

    Returns the squared norm of the direction, and 0 if every entry of ``out`` is finite, else NaN. Only the sum of
    squares may be added up in any order (its last digits may differ from machine to machine): ``out`` is exact.
    """
    squared_norm = 0.0
    finite = True
    for i in range(params.size):
        g = direction[i]
        x = params[i] - stepsize * g
        out[i] = x
        squared_norm += float(g) * float(g)
        finite &= x - x == 0  # neither infinity nor NaN
    return squared_norm, 0.0 if finite else math.nan


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
