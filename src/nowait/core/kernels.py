"""Compiled passes over memory. Importing this module imports numba, so it is imported when a run starts.

The same inputs give the same bits, and ``sgd_step`` writes exactly what numpy's
``params - stepsize * direction`` does. Eight partial sums break the dependency chain of a plain sum;
``sgd_step`` and ``squared_norm`` add in the same order, so both give the same norm of the same gradient.
"""

from __future__ import annotations

from typing import Any

from nowait.core.compiled import compiled


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


@compiled
def sgd_step(params: Any, direction: Any, stepsize: Any, out: Any) -> tuple[float, float]:
    """``out = params - stepsize * direction`` in one pass.

    Returns the squared norm of the direction, and 0 if every entry of ``out`` is finite, else NaN.
    """
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    zero = stepsize - stepsize  # zero in the dtype of params; zero times infinity is not a number
    zero0 = zero1 = zero
    blocked = params.size - params.size % 8
    for i in range(0, blocked, 8):
        g0, g1, g2, g3 = direction[i], direction[i + 1], direction[i + 2], direction[i + 3]
        g4, g5, g6, g7 = direction[i + 4], direction[i + 5], direction[i + 6], direction[i + 7]
        x0, x1 = params[i] - stepsize * g0, params[i + 1] - stepsize * g1
        x2, x3 = params[i + 2] - stepsize * g2, params[i + 3] - stepsize * g3
        x4, x5 = params[i + 4] - stepsize * g4, params[i + 5] - stepsize * g5
        x6, x7 = params[i + 6] - stepsize * g6, params[i + 7] - stepsize * g7
        out[i], out[i + 1], out[i + 2], out[i + 3] = x0, x1, x2, x3
        out[i + 4], out[i + 5], out[i + 6], out[i + 7] = x4, x5, x6, x7
        zero0 += (x0 * zero + x1 * zero) + (x2 * zero + x3 * zero)
        zero1 += (x4 * zero + x5 * zero) + (x6 * zero + x7 * zero)
        s0 += float(g0) * float(g0)
        s1 += float(g1) * float(g1)
        s2 += float(g2) * float(g2)
        s3 += float(g3) * float(g3)
        s4 += float(g4) * float(g4)
        s5 += float(g5) * float(g5)
        s6 += float(g6) * float(g6)
        s7 += float(g7) * float(g7)
    for i in range(blocked, params.size):
        g0 = direction[i]
        x0 = params[i] - stepsize * g0
        out[i] = x0
        zero0 += x0 * zero
        s0 += float(g0) * float(g0)
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7)), float(zero0 + zero1)


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
