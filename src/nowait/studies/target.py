"""How long methods take to reach a target loss, each with the stepsize that gets there first.

Stepsizes are chosen with some seeds. Times are measured with others: the shortest of several random times is too short.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Self, final

import numpy as np

from nowait.core.types import Floats
from nowait.recording import Sweep
from nowait.recording.until import until
from nowait.studies.advice import Simulated
from nowait.studies.candidates import Candidate
from nowait.studies.smoothing import smoothed
from nowait.studies.tuner import Tuner

EARLY = 5
"""A target reached in the first fifth of the time calls for a shorter sweep."""
FINE_LENGTH = 3.0
"""Finer sweeps last this many times as long as the target is expected to take, so that few runs miss it."""
FINER = 2.0 ** np.linspace(-0.75, 0.75, 7)
"""Stepsizes around the best of the sweep before."""
TOO_LATE = 2.0
"""When stepsizes are compared, a run that did not reach the target counts as one of this many times its length."""
LONG, LONGER = 1.6, 8.0
"""Runs that measure a time last this many times as long as expected; those that miss the target are made longer."""
WINDOW = 5
"""Losses are smoothed over a fifth of the expected time to both sides."""
MOST_FINE = 8
"""At most this many seeds tune stepsizes finely, for every seed of the first sweep: more than one if runs are short."""
FRESH, MOST_FRESH = 3, 24
"""How many other seeds compare methods, for every seed of the first sweep: more than the least if times scatter."""
SMALL_ERROR = 0.03
"""The standard error of mean times, relative to them, that calls for no further seeds."""


@final
@dataclass(frozen=True)
class Goal:
    """A smoothed loss at or below the target."""

    loss: float
    half_width: int | None = None
    """That of ``smoothed``."""

    def reached(self, swept: Sweep, place: int, counts: Floats) -> Floats:
        """Return the count (of seconds, steps or gradients) at the goal for every seed of one stepsize; ∞ if missed."""
        runs = zip(counts[place], swept.curves[place], swept.step[place], strict=True)
        return np.array(
            [until(count, smoothed(losses, self.half_width), steps, self.loss) for count, losses, steps in runs]
        )

    def times(self, swept: Sweep) -> Floats:
        """Return the seconds to the goal: [stepsize, seed]."""
        return np.array([self.reached(swept, place, swept.time) for place in range(len(swept.stepsizes))])


@final
@dataclass(frozen=True)
class Chosen:
    """A candidate, and the stepsize chosen for it."""

    candidate: Candidate
    stepsize: float
    seconds: float
    """The expected time to the target; ∞ if it was not reached."""
    steps: float
    gradients: float
    """The expected numbers of steps and gradients to the target."""
    scatter: float = 0.0
    """The standard deviation of the times over the seeds, divided by their mean."""

    @classmethod
    def of(cls, candidate: Candidate, swept: Sweep, place: int, goal: Goal) -> Self:
        """Return the choice of the stepsize at an index of a sweep; it is not reached if most of its runs missed it."""
        size = float(swept.stepsizes[place])
        counts = [goal.reached(swept, place, counts) for counts in (swept.time, swept.step, swept.gradients)]
        hit = np.isfinite(counts[0])
        if 2 * hit.sum() <= len(hit):
            return cls(candidate, size, math.inf, math.inf, math.inf)
        seconds, steps, gradients = (float(count[hit].mean()) for count in counts)
        return cls(candidate, size, seconds, steps, gradients, float(counts[0][hit].std()) / max(seconds, 1e-300))

    def sweep(self, tuner: Tuner, sizes: Any, factor: float, seeds: tuple[int, ...] | None = None) -> Sweep:
        """Simulate for this many times the expected time."""
        every = max(1, int(self.steps / tuner.evaluations))
        one = self.candidate
        return tuner.sweep(one.make, sizes, factor * self.seconds, one.workers, seeds=seeds, evaluate_every=every)


@final
@dataclass(frozen=True)
class FreshSeeds:
    """Seeds with which no stepsize is chosen."""

    choosing: tuple[int, ...]
    """With these the methods are compared."""
    reporting: tuple[int, ...]
    """With these the times are measured that the advice reports."""


def choose_stepsize(
    tuner: Tuner, candidate: Candidate, tuned: Sweep, target: float, refinements: int, work: float | None = None
) -> Chosen:
    """Return the stepsize that reaches the target first, found by up to ``refinements`` finer sweeps.

    Each covers three times the time expected: where the target is reached early in the simulated time, evaluations are
    too far apart to tell when. The last one has the best stepsize in the middle. Each has as many seeds as this
    ``work``, a number of gradients, allows; None is that of ``tuned``.
    """
    work = work_of(tuned) if work is None else work
    coarse, fine = Goal(target), Goal(target, tuner.evaluations // WINDOW)
    best = Chosen.of(candidate, tuned, first_place(coarse.times(tuned)), coarse)
    for _ in range(refinements if 0 < best.seconds < math.inf and candidate.refined else 0):
        count = _clipped(tuner, work / (len(FINER) * FINE_LENGTH * best.gradients), 1, MOST_FINE)
        seeds = (tuner.seeds + further_seeds(tuner))[:count]
        finer = best.sweep(tuner, best.stepsize * FINER, FINE_LENGTH, seeds)
        place = steady_place(fine.times(finer), FINE_LENGTH * best.seconds)
        found = Chosen.of(candidate, finer, place, fine)
        if math.isinf(found.seconds):
            break
        early, best = found.seconds < FINE_LENGTH * best.seconds / EARLY, found
        if not early and 0 < place < len(FINER) - 1:
            break
    return best


def fresh_seeds(tuner: Tuner, chosen: Iterable[Chosen], work: float) -> FreshSeeds:
    """Return further seeds to compare methods and to report times.

    As many as make the error small, but not more than about this work, a number of gradients, allows.
    """
    known = [one for one in chosen if math.isfinite(one.seconds)]
    expected = sum(one.gradients for one in known)
    affordable = work / max(2 * LONG * expected, 1.0)
    scatter = max((one.scatter for one in known), default=0.0)
    count = _clipped(tuner, min((scatter / SMALL_ERROR) ** 2, affordable), FRESH, MOST_FRESH)
    unused = further_seeds(tuner)[MOST_FINE * len(tuner.seeds) :]
    return FreshSeeds(unused[:count], unused[count : 2 * count])


def work_of(swept: Sweep) -> float:
    """Return how many gradients the runs of a sweep computed."""
    return float(np.nan_to_num(swept.gradients).max(axis=2).sum())


def further_seeds(tuner: Tuner) -> tuple[int, ...]:
    """Return seeds that are none of the tuner's: those that tune stepsizes more finely first, then fresh ones."""
    unused = chain(range(max(tuner.seeds) + 1, 2**63), (seed for seed in range(2**63) if seed not in tuner.seeds))
    return tuple(islice(unused, (MOST_FINE + 2 * MOST_FRESH) * len(tuner.seeds)))


def _clipped(tuner: Tuner, number: float, least: int, most: int) -> int:
    """Return this number of seeds, but at least and at most so many for every seed of the tuner."""
    return int(np.clip(number, least * len(tuner.seeds), most * len(tuner.seeds)))


def measured(tuner: Tuner, chosen: Chosen, target: float, seeds: FreshSeeds) -> Simulated:
    """Return the times to the target with the stepsize chosen, for seeds with which nothing was tuned."""
    one, goal = chosen.candidate, Goal(target, tuner.evaluations // WINDOW)
    missing = [*seeds.choosing, *seeds.reporting]
    found = dict.fromkeys(missing, (math.inf, math.inf))
    for factor in (LONG, LONGER) if math.isfinite(chosen.seconds) else ():
        swept = chosen.sweep(tuner, [chosen.stepsize], factor, tuple(missing))
        times, gradients = (goal.reached(swept, 0, counts).tolist() for counts in (swept.time, swept.gradients))
        found |= dict(zip(missing, zip(times, gradients, strict=True), strict=True))
        missing = [seed for seed in missing if math.isinf(found[seed][0])]
        if not missing or swept.diverged.any():
            break
    return Simulated(
        one.name,
        one.workers,
        one.kind,
        chosen.stepsize,
        times=tuple(found[seed][0] for seed in seeds.reporting),
        choosing_times=tuple(found[seed][0] for seed in seeds.choosing),
        gradients_each=tuple(found[seed][1] for seed in seeds.reporting),
    )


def first_place(times: Floats) -> int:
    """Return the index of the stepsize that reaches the target first on average, from times [stepsize, seed]."""
    return int(np.argmin(times.mean(axis=1)))


def steady_place(times: Floats, seconds: float) -> int:
    """Return the index of the best of neighbouring stepsizes, from times [stepsize, seed] of runs of these seconds.

    The mean over the seeds plus the standard deviation counts: times scatter widely where a stepsize is so large
    that only chance takes the loss below the target. Averages over neighbours make the choice steady.
    """
    capped = np.minimum(times, TOO_LATE * seconds)
    logs = np.log(capped.mean(axis=1) + capped.std(axis=1))
    padded = np.pad(logs, 1, mode="edge")
    return int(np.argmin(padded[:-2] + 2 * padded[1:-1] + padded[2:]))
