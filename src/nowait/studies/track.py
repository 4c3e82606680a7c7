"""Methods on the same problem, workers and samples, each with its stepsize tuned: when are they at a target?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.api.sweep import sweep
from nowait.core.types import Floats
from nowait.recording import Sweep
from nowait.speeds import Faults, Speeds
from nowait.studies.advice import Simulated
from nowait.studies.candidates import Candidate

SIZES = 12
MOST_MOVES = 3
MOST_REFINEMENTS = 4
EARLY = 5
"""A target reached in the first fifth of the time calls for a shorter sweep."""
FINER = 2.0 ** np.linspace(-1, 1, 9)
"""Stepsizes around the best of the coarse grid."""
NEVER = 1e300


@final
@dataclass(frozen=True)
class Track:
    """What all methods have in common."""

    problem: Any
    speeds: Speeds
    smoothness: float
    seconds: float
    """The virtual time that every run gets."""
    seeds: range

    def tuned(self, candidate: Candidate) -> Sweep:
        """The losses for a grid of stepsizes, which is moved where the best one is at its end."""
        scale = candidate.scale
        for _ in range(MOST_MOVES):
            result = self._sweep(candidate, grid(scale, self.smoothness), self.seconds)
            some_steady = not result.diverged.any(axis=1).all()
            if some_steady and 0 < result.best_place < SIZES - 1:
                break
            scale *= 2.0 ** (SIZES // 2 if some_steady and result.best_place == 0 else 2 - SIZES)
        return result

    def reached(self, candidate: Candidate, tuned: Sweep, target: float) -> Simulated:
        """The time to the target with the stepsize that reaches it first, by ever shorter and finer sweeps.

        Where the target is reached early in the time simulated, evaluations are too far apart to tell when.
        """
        place, expected = first_at(tuned, target)
        if math.isinf(expected):
            size = float(tuned.stepsizes[place])
            return Simulated(candidate.name, candidate.workers, candidate.kind, size, math.inf, math.inf)
        best, seconds = tuned, self.seconds
        for _ in range(MOST_REFINEMENTS):
            around = float(best.stepsizes[place]) * FINER
            seconds = min(seconds, 2 * expected)
            finer = self._sweep(candidate, around, seconds)
            found = first_at(finer, target)
            if math.isinf(found[1]):
                break
            early = found[1] < seconds / EARLY
            best, (place, expected) = finer, found
            if not early:
                break
        times = _until(best.time[place], best.curves[place], target)
        return Simulated(
            candidate.name,
            candidate.workers,
            candidate.kind,
            stepsize=float(best.stepsizes[place]),
            seconds=expected,
            gradients=float(_until(best.gradients[place], best.curves[place], target).mean()),
            error=float(times.std(ddof=1) / math.sqrt(len(times))) if len(times) > 1 else 0.0,
        )

    def _sweep(self, candidate: Candidate, sizes: Floats, seconds: float) -> Sweep:
        others = sorted(set(range(self.speeds.num_workers)) - set(candidate.workers))
        return sweep(
            self.problem,
            candidate.make,
            self.speeds,
            stepsizes=sizes.tolist(),
            seeds=self.seeds,
            seconds=seconds,
            faults=Faults([(NEVER, "join", worker) for worker in others]),  # they join when everything is over
            progress=False,
        )


def grid(scale: float, smoothness: float) -> Floats:
    """Stepsizes to try, each half the one before, from 4·scale/L down."""
    return np.asarray(4 * scale / smoothness * 2.0 ** -np.arange(SIZES))


def first_at(tuned: Sweep, target: float) -> tuple[int, float]:
    """Which stepsize is first at the target, and when (the mean over the seeds); ∞ if none is."""
    times = [float(_until(*curves, target).mean()) for curves in zip(tuned.time, tuned.curves, strict=True)]
    place = int(np.argmin(times))
    return place, times[place]


def until(times: Floats, losses: Floats, target: float) -> float:
    """When a curve reaches the target, between evaluations as if log-losses fell evenly; ∞ if it does not."""
    known = ~np.isnan(losses)
    times, losses = times[known], losses[known]
    below = np.flatnonzero(losses <= target)
    if not len(below):
        return math.inf
    place = int(below[0])
    if place == 0 or not (np.isfinite(losses[place - 1]) and losses[place] > 0):
        return float(times[place])
    whole = math.log(losses[place - 1] / losses[place])
    share = math.log(losses[place - 1] / target) / whole if whole > 0 else 1.0
    return float(times[place - 1] + share * (times[place] - times[place - 1]))


def _until(times: Floats, curves: Floats, target: float) -> Floats:
    """The same for every seed."""
    return np.array([until(*of_seed, target) for of_seed in zip(times, curves, strict=True)])
