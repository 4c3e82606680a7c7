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
from nowait.studies.advice import Simulated
from nowait.studies.candidates import Candidate
from nowait.studies.smoothing import smoothed
from nowait.studies.tuner import Tuner

EARLY = 5
"""A target reached in the first fifth of the time calls for a shorter sweep."""
TWICE = 2.0
"""Finer sweeps last this many times as long as the target is expected to take."""
FINER = 2.0 ** np.linspace(-0.75, 0.75, 7)
"""Stepsizes around the best of the sweep before."""
TOO_LATE = 2.0
"""When stepsizes are compared, a run that did not reach the target counts as one of this many times its length."""
LONG, LONGER = 1.6, 8.0
"""Runs that measure a time last this many times as long as expected; those that miss the target are made longer."""
FRESH_SEEDS, MOST_FRESH_SEEDS = 3, 16
"""How many seeds compare methods, for every seed that tunes stepsizes: more than the least if runs are short."""


@final
@dataclass(frozen=True)
class Chosen:
    """A candidate, and the stepsize chosen for it."""

    candidate: Candidate
    stepsize: float
    seconds: float
    """The expected time to the target; ∞ if it was not reached."""
    steps: float
    """The expected number of steps to the target."""

    @classmethod
    def of(cls, candidate: Candidate, swept: Sweep, place: int, target: float) -> Self:
        """Return the choice of the stepsize at an index of a sweep."""
        seconds, steps = (_until(swept, place, counts[place], target).mean() for counts in (swept.time, swept.step))
        return cls(candidate, float(swept.stepsizes[place]), float(seconds), float(steps))

    def sweep(self, tuner: Tuner, sizes: Any, factor: float, seeds: tuple[int, ...] | None = None) -> Sweep:
        """Simulate for this many times the expected time."""
        every = max(1, int(factor * self.steps / tuner.evaluations))
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


def choose_stepsize(tuner: Tuner, candidate: Candidate, tuned: Sweep, target: float, refinements: int) -> Chosen:
    """Return the stepsize that reaches the target first, found by up to ``refinements`` finer sweeps.

    Each covers twice the time expected: where the target is reached early in the simulated time, evaluations are too
    far apart to tell when. The last one has the best stepsize in the middle.
    """
    best = Chosen.of(candidate, tuned, first_place(times_of(tuned, target)), target)
    for _ in range(refinements if 0 < best.seconds < math.inf and candidate.tuned else 0):
        finer = best.sweep(tuner, best.stepsize * FINER, TWICE)
        place = steady_place(times_of(finer, target), TWICE * best.seconds)
        found = Chosen.of(candidate, finer, place, target)
        if math.isinf(found.seconds):
            break
        early, best = found.seconds < TWICE * best.seconds / EARLY, found
        if not early and 0 < place < len(FINER) - 1:
            break
    return best


def fresh_seeds(tuner: Tuner, chosen: Iterable[Chosen]) -> FreshSeeds:
    """Return further seeds to compare methods and to report times: as many as do not take longer than the tuning."""
    expected = [one.seconds for one in chosen if math.isfinite(one.seconds)]
    cost = 2 * LONG * max(expected, default=tuner.seconds) / tuner.seconds
    tuning = len(tuner.seeds)
    count = int(np.clip(tuning * tuner.sizes / cost, FRESH_SEEDS * tuning, MOST_FRESH_SEEDS * tuning))
    further = chain(range(max(tuner.seeds) + 1, 2**63), (seed for seed in range(2**63) if seed not in tuner.seeds))
    unused = tuple(islice(further, 2 * count))
    return FreshSeeds(unused[:count], unused[count:])


def measured(tuner: Tuner, chosen: Chosen, target: float, seeds: FreshSeeds) -> Simulated:
    """Return the times to the target with the stepsize chosen, for seeds with which nothing was tuned."""
    one = chosen.candidate
    missing, found = [*seeds.choosing, *seeds.reporting], {}
    for factor in (LONG, LONGER) if math.isfinite(chosen.seconds) else ():
        swept = chosen.sweep(tuner, [chosen.stepsize], factor, tuple(missing))
        times, gradients = times_of(swept, target)[0], _until(swept, 0, swept.gradients[0], target)
        found |= dict(zip(missing, zip(times.tolist(), gradients.tolist(), strict=True), strict=True))
        missing = [seed for seed in missing if math.isinf(found[seed][0])]
        if not missing or swept.diverged.any():
            break
    never = (math.inf, math.inf)
    choosing = [found.get(seed, never)[0] for seed in seeds.choosing]
    times, gradients = zip(*(found.get(seed, never) for seed in seeds.reporting), strict=True)
    return Simulated(one.name, one.workers, one.kind, chosen.stepsize, times, tuple(choosing), gradients)


def first_place(times: Floats) -> int:
    """Return the index of the stepsize that reaches the target first on average, from times [stepsize, seed]."""
    return int(np.argmin(times.mean(axis=1)))


def steady_place(times: Floats, seconds: float) -> int:
    """Return the index of the best of neighbouring stepsizes, from times [stepsize, seed] of runs of these seconds.

    Logarithms of times are averaged over the seeds and over neighbours, so that one lucky run does not decide, and a
    stepsize next to ones that fail is avoided.
    """
    logs = np.log(np.minimum(times, TOO_LATE * seconds)).mean(axis=1)
    padded = np.pad(logs, 1, mode="edge")
    averaged = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
    return int(np.argmin(np.where(np.isinf(times).any(axis=1), np.inf, averaged)))


def times_of(swept: Sweep, target: float) -> Floats:
    """Return when the smoothed losses reach the target: [stepsize, seed]; ∞ where they do not."""
    return np.array([_until(swept, place, swept.time[place], target) for place in range(len(swept.stepsizes))])


def until(counts: Any, losses: Floats, steps: Any, target: float) -> float:
    """Return the count (of seconds or gradients) at which a curve reaches the target; ∞ if it does not.

    Between evaluations that are several steps apart, log-losses are interpolated linearly.
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


def _until(swept: Sweep, place: int, counts: Floats, target: float) -> Floats:
    """Return ``until`` of the smoothed losses for every seed of one stepsize."""
    runs = zip(counts, swept.curves[place], swept.step[place], strict=True)
    return np.array([until(count, smoothed(losses), steps, target) for count, losses, steps in runs])
