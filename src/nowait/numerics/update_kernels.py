"""Compiled steps of updates with state, one pass over memory each. Imports numba.

Every operation is rounded as in the numpy expressions of ``nowait.core.updates``, so results are bit-identical. All
arrays are vectors of one length and dtype; ``factors`` has that dtype too, because numpy rounds numbers to it. Each
kernel returns the number of entries of ``out`` that are NaN or infinity.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nowait.numerics.compiled import compiled, divides_like_numpy


@compiled
def momentum_step(params: Any, direction: Any, momentum: Any, out: Any, factors: Any) -> int:
    """Compute m ← β·m + g and x − γ·m. The factors are β and γ."""
    beta, stepsize = factors[0], factors[1]
    bad = 0
    for i in range(out.size):
        moved = momentum[i] * beta + direction[i]
        momentum[i] = moved
        result = params[i] - moved * stepsize
        out[i] = result
        bad += result - result != 0
    return bad


@compiled
def nesterov_step(params: Any, direction: Any, momentum: Any, out: Any, factors: Any) -> int:
    """Compute m ← β·m + g and x − γ·(g + β·m). The factors are β and γ."""
    beta, stepsize = factors[0], factors[1]
    bad = 0
    for i in range(out.size):
        moved = momentum[i] * beta + direction[i]
        momentum[i] = moved
        result = params[i] - (moved * beta + direction[i]) * stepsize
        out[i] = result
        bad += result - result != 0
    return bad


@divides_like_numpy
def adam_step(params: Any, direction: Any, mean: Any, square: Any, out: Any, factors: Any) -> int:
    """Compute m ← β1·m + (1 − β1)·g, v ← β2·v + (1 − β2)·g² and x − γ·m/(√(v/c) + ε).

    The factors are β1, 1 − β1, β2, 1 − β2, ε, γ and c, the bias of v.
    """
    decay, share, square_decay, square_share = factors[0], factors[1], factors[2], factors[3]
    epsilon, stepsize, bias = factors[4], factors[5], factors[6]
    bad = 0
    for i in range(out.size):
        gradient = direction[i]
        first = mean[i] * decay + gradient * share
        second = square[i] * square_decay + gradient * gradient * square_share
        mean[i], square[i] = first, second
        result = params[i] - first / (np.sqrt(second / bias) + epsilon) * stepsize
        out[i] = result
        bad += result - result != 0
    return bad


@divides_like_numpy
def amsgrad_step(params: Any, direction: Any, mean: Any, square: Any, largest: Any, out: Any, factors: Any) -> int:
    """Compute m and v as in ``adam_step``, v̂ ← max(v̂, v), and x − γ·m/(√v̂ + ε).

    The factors are β1, 1 − β1, β2, 1 − β2, ε and γ. As in numpy, a maximum is NaN if one of its arguments is.
    """
    decay, share, square_decay, square_share = factors[0], factors[1], factors[2], factors[3]
    epsilon, stepsize = factors[4], factors[5]
    bad = 0
    for i in range(out.size):
        gradient = direction[i]
        first = mean[i] * decay + gradient * share
        second = square[i] * square_decay + gradient * gradient * square_share
        mean[i], square[i] = first, second
        high = largest[i] if largest[i] >= second or largest[i] != largest[i] else second
        largest[i] = high
        result = params[i] - first / (np.sqrt(high) + epsilon) * stepsize
        out[i] = result
        bad += result - result != 0
    return bad
