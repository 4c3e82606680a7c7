"""Tables of the benchmark: times to the target relative to the best, ranks, and performance profiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core.types import Floats
from nowait.studies.bench.records import Entry

Column = tuple[str, str]
"""A problem and a cluster."""
WORST_RATIO = 4.0
"""The score of a method is its area under the performance profile up to this ratio, as in AlgoPerf."""


@final
@dataclass(frozen=True)
class Standing:
    """How a method did over all problems and clusters."""

    method: str
    score: float
    """The area under its performance profile up to a ratio of 4, from 0 to 1: 1 is the best everywhere."""
    mean_rank: float
    wins: int
    """In how many columns its median is within 5 % of the best one."""
    reached: int
    """In how many columns its median reached the target."""
    columns: int
    """In how many columns it was measured."""


@final
class Scores:
    """The results of all methods. ``times[method][column]`` has one number per seed; infinity is not reached."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: dict[tuple[str, Column], Entry] = {
            (entry.method, (entry.problem, entry.cluster)): entry for entry in entries
        }
        self.methods: list[str] = list(dict.fromkeys(method for method, _ in self.entries))
        self.columns: list[Column] = list(dict.fromkeys(column for _, column in self.entries))
        self.medians = np.array([[self._median(method, column) for column in self.columns] for method in self.methods])
        """[method, column]; NaN where there is no entry."""

    def _median(self, method: str, column: Column) -> float:
        entry = self.entries.get((method, column))
        return math.nan if entry is None else entry.median

    @property
    def best(self) -> Floats:
        """The lowest median of every column; infinity if no method reached the target."""
        if not self.methods:
            return np.empty(0)
        lowest: Floats = np.min(np.where(np.isnan(self.medians), math.inf, self.medians), axis=0)
        return lowest

    @property
    def ratios(self) -> Floats:
        """Medians over the best of their column: 1 is the best; infinity if not reached, NaN where nothing is known."""
        with np.errstate(invalid="ignore"):
            ratios = self.medians / self.best
        missed = np.isinf(self.medians)
        return np.where(missed, math.inf, ratios)

    @property
    def ranks(self) -> Floats:
        """Ranks in every column, from 1; methods with equal medians share the mean of their ranks."""
        if not self.columns:
            return np.empty((0, 0))
        return np.stack([_ranks(column) for column in self.medians.T], axis=1)

    def profile(self, method: str, ratios: Sequence[float] | Floats) -> Floats:
        """Return the share of columns in which the method is within each ratio of the best one."""
        mine = self.ratios[self.methods.index(method)]
        known = mine[~np.isnan(mine)]
        return np.array([float(np.mean(known <= ratio)) if len(known) else math.nan for ratio in ratios])

    def score(self, method: str) -> float:
        """Return the area under the profile from 1 to ``WORST_RATIO``, divided by its largest value."""
        mine = self.ratios[self.methods.index(method)]
        known = mine[~np.isnan(mine)]
        areas = np.clip(WORST_RATIO - known, 0.0, WORST_RATIO - 1.0) / (WORST_RATIO - 1.0)
        return float(areas.mean()) if len(known) else math.nan

    def standings(self) -> list[Standing]:
        """Return all methods, the best score first; methods that were not measured in all columns come last."""
        ranks, ratios = self.ranks, self.ratios
        found = [
            Standing(
                method=method,
                score=self.score(method),
                mean_rank=float(np.nanmean(ranks[place])),
                wins=int(np.sum(ratios[place] <= 1.05)),
                reached=int(np.sum(np.isfinite(self.medians[place]))),
                columns=int(np.sum(~np.isnan(self.medians[place]))),
            )
            for place, method in enumerate(self.methods)
        ]
        return sorted(found, key=lambda one: (-one.columns, -one.score, one.mean_rank, one.method))


def _ranks(values: Floats) -> Floats:
    """Return ranks from 1, the mean rank for equal values, NaN for NaN.

    >>> _ranks(np.array([3.0, 1.0, 3.0, math.inf])).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    ranks = np.full(len(values), math.nan)
    known = ~np.isnan(values)
    for place in np.flatnonzero(known):
        below = int(np.sum(values[known] < values[place]))
        equal = int(np.sum(values[known] == values[place]))
        ranks[place] = below + (equal + 1) / 2
    return ranks
