"""Finds the settings of the methods of a race: first m, then the momentum, then the stepsize, in as many trials."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from nowait.core.types import Floats
from nowait.methods.auto import ASYNCHRONOUS, KEPT, SHORTEST, Auto, costs_of
from nowait.recording import Sweep
from nowait.speeds import Speeds
from nowait.studies.entrants import Entrant, Settings
from nowait.studies.sources import Source
from nowait.studies.tuner import Make, Tuner, best_of

USUAL_MOMENTUM = 0.9
"""With this one the values of m are compared, before the momentum is tuned."""
NOISES = (0.0, 0.5, 2.0, np.inf)
"""Noise scales, divided by the number of workers, for which m is the cheapest that is tried."""
VERY_NOISY = 1e9
"""Instead of an infinite noise scale: only the gradients per second count."""


@final
@dataclass(frozen=True)
class Tuned:
    """The settings of a method, and how they were found."""

    settings: Settings
    sweep: Sweep
    """The stepsizes that were tried with the best m and momentum."""
    losses: dict[Settings, float]
    """The losses by which m and momentum were chosen; empty for a method that has neither."""

    @property
    def trials(self) -> int:
        """How many settings were tried."""
        return len({*self.losses, *(replace(self.settings, stepsize=size) for size in self.sweep.stepsizes.tolist())})


@final
@dataclass(frozen=True)
class RaceTuner:
    """Tunes every method with the same number of trials, ``tuner.sizes``."""

    tuner: Tuner
    counts: list[int]
    """The values of m to try, from little noise to much."""

    def tune(self, entrant: Entrant) -> Tuned:
        """Return the best settings: of m first, then of momentum, then of the stepsize with these."""
        tried = self._first_trials(entrant)
        if not tried:
            sweep = self._at(entrant, Settings(1.0)).tune(_make(entrant, Settings(1.0)))
            return Tuned(Settings(best_of(sweep)), sweep, {})
        best = _lowest(tried)
        left = replace(self._at(entrant, best), sizes=self.tuner.sizes - len(tried) + 1)
        sweep = left.tune(_make(entrant, best), known=tried[best])
        return Tuned(replace(best, stepsize=best_of(sweep)), sweep, {one: _loss(tried[one]) for one in tried})

    def _first_trials(self, entrant: Entrant) -> dict[Settings, Sweep]:
        """Return one trial for every m with a usual momentum, and for every momentum with the best m."""
        trials = self.tuner.sizes
        counts = _some(self.counts, max(1, (trials + 2) // 3)) if entrant.waits else [None]
        momenta = [momentum for momentum in entrant.momenta if momentum != USUAL_MOMENTUM]
        if not (entrant.waits or entrant.momenta):
            return {}
        usual = USUAL_MOMENTUM if entrant.momenta else None
        tried = dict(self._trial(entrant, Settings(1.0, usual, m)) for m in counts)
        best = _lowest(tried)
        further = momenta[::-1][: (trials - len(tried) + 1) // 3]
        return tried | dict(self._trial(entrant, replace(best, momentum=momentum)) for momentum in further)

    def _trial(self, entrant: Entrant, settings: Settings) -> tuple[Settings, Sweep]:
        """Return a usual stepsize with these settings, and its losses."""
        sweep = replace(self._at(entrant, settings), sizes=1).tune(_make(entrant, settings))
        return replace(settings, stepsize=float(sweep.stepsizes[0])), sweep

    def _at(self, entrant: Entrant, settings: Settings) -> Tuner:
        """Return the tuner with the update that the method has with these settings."""
        update = entrant.make(settings).update
        return self.tuner if update is None else replace(self.tuner, update=update)


def cheapest_counts(source: Source) -> list[int]:
    """Return the numbers of gradients per round that ``Auto`` takes for the cheapest, from little noise to much."""
    workers, times = len(source.seconds), recent_times(source)
    cheapest = []
    for noise in NOISES:
        costs = costs_of(times, min(noise * workers, VERY_NOISY), Auto.CAUTION, present=workers)
        del costs[ASYNCHRONOUS]
        cheapest.append(min(costs, key=lambda count: costs[count]))
    return sorted(set(cheapest))


def recent_times(source: Source) -> Floats:
    """Return the first times of every worker, or its mean if these are not all finite."""
    times = np.array([_first_times(source.speeds, worker) for worker in range(len(source.seconds))])
    if not np.isfinite(times).all() or times.max() <= 0:
        times = np.repeat(source.seconds[:, None], KEPT, axis=1)
    return np.asarray(np.maximum(times, SHORTEST * times.max()))


def _first_times(speeds: Speeds, worker: int) -> list[float]:
    timing, start, seconds = speeds.timing(0), 0.0, []
    for job in range(KEPT):
        took, start = timing(worker, job, start)
        seconds.append(took)
    return seconds


def _make(entrant: Entrant, settings: Settings) -> Make:
    return lambda size: entrant.make(replace(settings, stepsize=size)).method


def _some(values: list[int], most: int) -> list[int]:
    """Return at most so many values, evenly spread; a single one is in the middle.

    >>> _some([2, 4, 13, 20], 2), _some([2, 4, 13], 1), _some([2, 4], 5)
    ([2, 20], [4], [2, 4])
    """
    if most == 1:
        return [values[len(values) // 2]]
    places = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return [values[place] for place in places]


def _lowest(tried: dict[Settings, Sweep]) -> Settings:
    """Return the settings with the lowest loss; the first ones if several have it."""
    return min(tried, key=lambda one: _loss(tried[one]))


def _loss(sweep: Sweep) -> float:
    """Return the median loss of the only stepsize; infinite if a run diverged."""
    return float("inf") if sweep.diverged.any() else float(np.median(sweep.decisive[0]))
