"""How long methods take for their steps when every worker needs fixed seconds for a gradient: upper bounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nowait.core.types import Floats

ROUNDING = 1e-12
"""Relative tolerance, so that 0.3/0.1 counts as 3."""


def gradients_by(time: float, seconds: Floats) -> Floats:
    """Return how many gradients each worker has finished by ``time``, if all start at 0."""
    counts: Floats = np.floor(time / seconds * (1 + ROUNDING))
    return counts


def time_for(gradients: float, seconds: Floats) -> float:
    """Return when the workers have finished this many gradients together."""
    return _first_time(lambda time: float(gradients_by(time, seconds).sum()) >= gradients, seconds)


def time_for_started(gradients: float, seconds: Floats) -> float:
    """Return after which time, from any moment on, this many gradients were both started and finished.

    The gradient that a worker is computing at that moment does not count.
    """
    return _first_time(lambda time: float(np.maximum(0.0, gradients_by(time, seconds) - 1).sum()) >= gradients, seconds)


def time_of_malenia_round(batch: float, seconds: Floats) -> float:
    """Return when Σ 1/B_i ≤ n²/batch for the counts B_i of all n workers, each at least 1."""
    slowest = float(seconds.max())
    limit = len(seconds) ** 2 / batch * (1 + ROUNDING)
    return _first_time(
        lambda time: time >= slowest and float((1 / gradients_by(time, seconds)).sum()) <= limit, seconds
    )


def longest_delay(seconds: Floats, of: float | None = None) -> int:
    """Return an upper bound of the delay, in arrivals, of a gradient that takes ``of`` seconds (None: the slowest).

    A worker that needs s_j finishes at most ⌊of/s_j⌋ + 1 gradients meanwhile; the worker itself only the one.
    """
    time = float(seconds.max()) if of is None else of
    others = gradients_by(time, seconds) + 1
    return 1 + int(others.sum()) - int(gradients_by(time, np.array([time]))[0] + 1)


def ringleader_gradients_each(seconds: Floats) -> float:
    """Return a lower bound of the harmonic mean of the gradients per worker in Ringleader's table.

    A worker steps within its own s_i of the start of a second phase, and the slowest one delivers again only s_max
    after its own step. So worker i has at least ⌊(s_max − s_i)/s_i⌋ gradients in the next table, and one at least.
    """
    counts = np.maximum(1.0, gradients_by(float(seconds.max()), seconds) - 1)
    return float(len(seconds) / (1 / counts).sum())


def _first_time(is_enough: Callable[[float], bool], seconds: Floats) -> float:
    """Return the first time at which a condition on the counts holds that stays true once it is."""
    long = float(seconds.max())
    while not is_enough(long):
        long *= 2
    short = 0.0
    while long - short > 1e-13 * long:
        middle = (short + long) / 2
        if not short < middle < long:
            break
        short, long = (short, middle) if is_enough(middle) else (middle, long)
    counts = gradients_by(long, seconds)
    exact = float((counts * seconds).max())  # the arrival at which it became true
    return exact if is_enough(exact) else long
