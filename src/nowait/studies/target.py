"""How long methods take to reach a target loss, each with the stepsize that gets there first."""

from __future__ import annotations

import math

import numpy as np

from nowait.core.types import Floats
from nowait.recording import Sweep
from nowait.recording.until import until
from nowait.studies.advice import Simulated
from nowait.studies.candidates import Candidate
from nowait.studies.tuner import Tuner

EARLY = 5
"""A target reached in the first fifth of the time calls for a shorter sweep."""
FINER = 2.0 ** np.linspace(-1, 1, 9)
"""Stepsizes around the best of the sweep before."""


def time_to_target(tuner: Tuner, candidate: Candidate, tuned: Sweep, target: float, refinements: int) -> Simulated:
    """Return the time to the target with the stepsize that reaches it first, by up to ``refinements`` finer sweeps.

    Each is shorter than the one before: where the target is reached early in the simulated time, evaluations are too
    far apart to tell when.
    """
    place, expected = first_at(tuned, target)
    if math.isinf(expected):
        size = float(tuned.stepsizes[place])
        return Simulated(candidate.name, candidate.workers, candidate.kind, size, math.inf, math.inf)
    best, seconds = tuned, tuner.seconds
    for _ in range(refinements if expected > 0 else 0):
        around = float(best.stepsizes[place]) * FINER
        seconds = min(seconds, 2 * expected)
        finer = tuner.sweep(candidate.make, around, seconds, candidate.workers)
        found = first_at(finer, target)
        if math.isinf(found[1]):
            break
        early = found[1] < seconds / EARLY
        best, (place, expected) = finer, found
        if not early:
            break
    times = _until(best, place, best.time[place], target)
    return Simulated(
        candidate.name,
        candidate.workers,
        candidate.kind,
        stepsize=float(best.stepsizes[place]),
        seconds=expected,
        gradients=float(_until(best, place, best.gradients[place], target).mean()),
        error=float(times.std(ddof=1) / math.sqrt(len(times))) if len(times) > 1 else 0.0,
    )


def first_at(tuned: Sweep, target: float) -> tuple[int, float]:
    """Return the index of the stepsize that reaches the target first, and its mean time; ∞ if none reaches it."""
    times = [float(_until(tuned, place, tuned.time[place], target).mean()) for place in range(len(tuned.stepsizes))]
    place = int(np.argmin(times))
    return place, times[place]


def _until(tuned: Sweep, place: int, counts: Floats, target: float) -> Floats:
    """Return ``until`` for every seed of one stepsize."""
    curves = zip(counts, tuned.curves[place], tuned.step[place], strict=True)
    return np.array([until(*of_seed, target) for of_seed in curves])
