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
from nowait.studies.tuner import ALONE, Make, Tuner, best_of, steady_of

USUAL_MOMENTUM = 0.9
"""With this one the values of m are compared, before the momentum is tuned."""
FOR_NOISE = 1 / 16
"""So many times the usual stepsize is tried too: if noise limits the stepsize, m and momentum are compared with it."""
ENOUGH_FOR_TWO = 4
"""With fewer trials the usual stepsize alone is tried first."""
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
    real: bool = False
    """True if real workers race: their stepsizes keep a margin from the ones that diverged."""

    def tune(self, entrant: Entrant) -> Tuned:
        """Return the best settings: of m first, then of momentum, then of the stepsize with these."""
        tried = self._first_trials(entrant)
        if not tried:
            sweep = self._at(entrant, Settings(1.0)).tune(_make(entrant, Settings(1.0)))
            return Tuned(Settings(self._chosen(sweep)), sweep, {})
        best = _lowest(tried)
        left = replace(self._at(entrant, best), sizes=self.tuner.sizes - len(tried) + 1)
        usual = ALONE * left.unit / _make(entrant, best)(1.0).stepsize_divisor(left.speeds.num_workers)
        factor = FOR_NOISE if best.stepsize < usual / 2 else 1.0
        sweep = replace(left, unit=left.unit * factor).tune(_make(entrant, best), known=tried[best])
        chosen = replace(best, stepsize=self._chosen(sweep))
        return Tuned(chosen, sweep, {one: _loss(tried[one]) for one in tried})

    def _chosen(self, sweep: Sweep) -> float:
        return steady_of(sweep) if self.real else best_of(sweep)

    def _first_trials(self, entrant: Entrant) -> dict[Settings, Sweep]:
        """Return trials of two stepsizes, one for curvature and one for noise, then of every m, then of every momentum.

        The first have the m in the middle and a usual momentum, the next ones what was best before.
        """
        trials = self.tuner.sizes
        if not (entrant.waits or entrant.momenta):
            return {}
        counts = _some(self.counts, max(1, (trials - 1) // 3)) if entrant.waits else [None]
        start = Settings(1.0, USUAL_MOMENTUM if entrant.momenta else None, counts[len(counts) // 2])
        factors = (1.0, FOR_NOISE) if trials >= ENOUGH_FOR_TWO else (1.0,)
        tried = dict(self._trial(entrant, start, factor) for factor in factors)
        factor = _lowest(tried).stepsize / max(one.stepsize for one in tried)
        further = [m for m in counts if m != start.m]
        tried |= dict(self._trial(entrant, replace(start, m=m), factor) for m in further)
        best = _lowest(tried)
        momenta = [momentum for momentum in entrant.momenta if momentum != start.momentum][::-1]
        further_momenta = momenta[: (trials - len(tried) + 1) // 3]
        return tried | dict(self._trial(entrant, replace(best, momentum=each), factor) for each in further_momenta)

    def _trial(self, entrant: Entrant, settings: Settings, factor: float) -> tuple[Settings, Sweep]:
        """Return a usual stepsize times a factor with these settings, and its losses."""
        tuner = self._at(entrant, settings)
        sweep = replace(tuner, sizes=1, unit=tuner.unit * factor).tune(_make(entrant, settings))
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
    """Return at most ``most`` of the values, evenly spread; the middle value if ``most`` is 1.

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
