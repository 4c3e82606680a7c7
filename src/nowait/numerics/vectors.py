"""Operations on whole vectors: the kernels, with several threads where vectors are large and threads are allowed.

Results are bit-identical for every number of threads. Imports numba, like ``nowait.numerics.kernels``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from nowait.numerics import kernels, update_kernels
from nowait.numerics.chunks import LARGE
from nowait.numerics.elementary import added
from nowait.numerics.kernels import count_repeats, inner, sum_of
from nowait.numerics.parallel import are_several, in_chunks

__all__ = [
    "adam_step",
    "add_scaled",
    "amsgrad_step",
    "count_repeats",
    "for_length",
    "inner",
    "is_finite",
    "momentum_step",
    "move_towards",
    "nesterov_step",
    "scale_into",
    "set_to_zero",
    "sgd_step",
    "squared_norm",
    "sum_of",
]


def for_length(length: int) -> Any:
    """Return the module to take operations on vectors of this length from: the kernels, if they are short.

    A call of this module's function would only pass them on.
    """
    return kernels if length < LARGE else sys.modules[__name__]


def squared_norm(vector: Any) -> float:
    """Return the sum of squares, in float64. It is not finite if an entry is not finite or if squares overflow."""
    if vector.size < LARGE or not are_several():
        whole: float = kernels.squared_norm(vector)
        return whole
    return added(in_chunks(kernels.squared_norm, vector))


def is_finite(vector: Any) -> bool:
    """Return True if no entry is NaN or infinity."""
    if vector.size < LARGE:
        return bool(np.isfinite(vector).all())
    return all(in_chunks(lambda chunk: bool(np.isfinite(chunk).all()), vector))


def sgd_step(params: Any, direction: Any, stepsize: Any, out: Any) -> tuple[float, float]:
    """Compute ``out = params - stepsize * direction`` in one pass.

    Returns ``squared_norm(direction)``, and 0 if every entry of ``out`` is finite, else NaN.
    """
    if params.size < LARGE or not are_several():
        whole: tuple[float, float] = kernels.sgd_step(params, direction, stepsize, out)
        return whole
    results = in_chunks(lambda x, g, y: kernels.sgd_step(x, g, stepsize, y), params, direction, out)
    squares, zeros = zip(*results, strict=True)
    return added(squares), added(zeros)


def add_scaled(total: Any, vector: Any, weight: Any) -> None:
    """Compute ``total += weight * vector`` without a temporary array."""
    if total.size < LARGE or not are_several():
        kernels.add_scaled(total, vector, weight)
    else:
        in_chunks(lambda y, x: kernels.add_scaled(y, x, weight), total, vector)


def move_towards(mean: Any, point: Any, fraction: Any) -> None:
    """Compute ``mean += fraction * (point - mean)``, one term of a running average, without a temporary array."""
    if mean.size < LARGE or not are_several():
        kernels.move_towards(mean, point, fraction)
    else:
        in_chunks(lambda y, x: kernels.move_towards(y, x, fraction), mean, point)


def scale_into(vector: Any, factor: float, out: Any) -> None:
    """Compute ``out = factor * vector``."""
    rounded = out.dtype.type(factor)
    if vector.size < LARGE:
        np.multiply(vector, rounded, out=out)
    else:
        in_chunks(lambda x, y: np.multiply(x, rounded, out=y), vector, out)


def set_to_zero(vector: Any) -> None:
    """Set all entries to zero."""
    in_chunks(lambda chunk: chunk.fill(0), vector)


# Steps of updates with state. Each returns 0 if every entry of ``out`` is finite, else NaN.


def momentum_step(params: Any, direction: Any, momentum: Any, out: Any, *, beta: float, stepsize: float) -> float:
    """Compute m ← β·m + g and ``out`` = x − γ·m."""
    return _step(update_kernels.momentum_step, (params, direction, momentum, out), (beta, stepsize))


def nesterov_step(params: Any, direction: Any, momentum: Any, out: Any, *, beta: float, stepsize: float) -> float:
    """Compute m ← β·m + g and ``out`` = x − γ·(g + β·m)."""
    return _step(update_kernels.nesterov_step, (params, direction, momentum, out), (beta, stepsize))


def adam_step(
    params: Any,
    direction: Any,
    mean: Any,
    square: Any,
    out: Any,
    *,
    betas: tuple[float, float],
    epsilon: float,
    stepsize: float,
    square_bias: float,
) -> float:
    """Compute m ← β1·m + (1 − β1)·g, v ← β2·v + (1 − β2)·g² and ``out`` = x − γ·m/(√(v/c) + ε).

    c is ``square_bias``; the bias of m is a part of the stepsize γ.
    """
    factors = (betas[0], 1 - betas[0], betas[1], 1 - betas[1], epsilon, stepsize, square_bias)
    return _step(update_kernels.adam_step, (params, direction, mean, square, out), factors)


def amsgrad_step(
    params: Any,
    direction: Any,
    mean: Any,
    square: Any,
    largest_square: Any,
    out: Any,
    *,
    betas: tuple[float, float],
    epsilon: float,
    stepsize: float,
) -> float:
    """Compute m and v as in ``adam_step``, v̂ ← max(v̂, v) and ``out`` = x − γ·m/(√v̂ + ε)."""
    factors = (betas[0], 1 - betas[0], betas[1], 1 - betas[1], epsilon, stepsize)
    return _step(update_kernels.amsgrad_step, (params, direction, mean, square, largest_square, out), factors)


def _step(kernel: Any, vectors: Sequence[Any], factors: Sequence[float]) -> float:
    rounded = np.array(factors, dtype=vectors[0].dtype)
    bad = sum(in_chunks(lambda *chunks: kernel(*chunks, rounded), *vectors))
    return math.nan if bad else 0.0
