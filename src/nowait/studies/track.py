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

EARLY = 5
"""A target reached in the first fifth of the time calls for a shorter sweep."""
FINER = 2.0 ** np.linspace(-1, 1, 9)
"""Stepsizes around the best of the coarse grid."""
NEVER = 1e300


@final
@dataclass(frozen=True)
class Effort:
    """How finely stepsizes are tuned."""

    sizes: int = 12
    moves: int = 3
    """How often a grid may be tried elsewhere."""
    refinements: int = 4


@final
@dataclass(frozen=True)
class Track:
    """What all methods have in common."""

    problem: Any
    speeds: Speeds
    unit: float
    """The order of the stepsizes to try, such as 1/L."""
    seconds: float
    """The virtual time that every run gets."""
    seeds: range
    effort: Effort

    def tuned(self, candidate: Candidate) -> Sweep:
        """The losses for a grid of stepsizes, which is moved where the best one is at its end."""
        scale = candidate.scale
        sizes = self.effort.sizes
        for _ in range(self.effort.moves):
            result = self._sweep(candidate, grid(scale * self.unit, self.effort.sizes), self.seconds)
            some_steady = not result.diverged.any(axis=1).all()
            if some_steady and 0 < result.best_place < sizes - 1:
                break
            scale *= 2.0 ** (sizes // 2 if some_steady and result.best_place == 0 else 2 - sizes)
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
        for _ in range(self.effort.refinements if expected > 0 else 0):
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


def grid(unit: float, sizes: int) -> Floats:
    """Stepsizes to try, each half the one before, from 4 units down."""
    return np.asarray(4 * unit * 2.0 ** -np.arange(sizes))


def first_at(tuned: Sweep, target: float) -> tuple[int, float]:
    """Which stepsize is first at the target, and when (the mean over the seeds); ∞ if none is."""
    times = [float(_until(tuned, place, tuned.time[place], target).mean()) for place in range(len(tuned.stepsizes))]
    place = int(np.argmin(times))
    return place, times[place]


def until(counts: Any, losses: Floats, steps: Any, target: float) -> float:
    """At which count (of seconds, of gradients) a curve reaches the target; ∞ if it does not.

    Between evaluations that are several steps apart as if log-losses fell evenly.
    """
    known = ~np.isnan(losses)
    counts, losses, steps = counts[known], losses[known], steps[known]
    below = np.flatnonzero(losses <= target)
    if not len(below):
        return math.inf
    place = int(below[0])
    between = place > 0 and steps[place] - steps[place - 1] > 1
    if not (between and np.isfinite(losses[place - 1]) and losses[place] > 0):
        return float(counts[place])
    whole = math.log(losses[place - 1] / losses[place])
    share = math.log(losses[place - 1] / target) / whole if whole > 0 else 1.0
    return float(counts[place - 1] + share * (counts[place] - counts[place - 1]))


def _until(tuned: Sweep, place: int, counts: Floats, target: float) -> Floats:
    """The same for every seed of one stepsize."""
    curves = zip(counts, tuned.curves[place], tuned.step[place], strict=True)
    return np.array([until(*of_seed, target) for of_seed in curves])
