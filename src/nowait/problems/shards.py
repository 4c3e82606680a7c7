"""Shards: the rows that each worker draws from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from nowait.core import Sample
from nowait.core.types import Floats, Integers
from nowait.numerics.compiled import kernels

SPLITS = ("iid", "label", "sorted")
"""How ``split`` divides data: at random, or sorted by class or by target."""


@final
@dataclass(frozen=True, eq=False)
class Shards:
    """Shard m is ``order[starts[m]:starts[m + 1]]``; worker w draws from shard w modulo the number of shards."""

    order: Integers | None
    """Row numbers, shard by shard; None if every worker draws from all rows."""
    starts: Integers
    weights: Floats
    """The weight of every row in the loss, which is the mean over shards of each shard's mean."""

    @classmethod
    def all_rows(cls, samples: int) -> Shards:
        """Return a single shard with all rows."""
        return cls(None, np.array([0, samples]), np.full(samples, 1.0 / samples))

    @classmethod
    def split(cls, order: Integers, count: int) -> Shards:
        """Cut rows in this order into shards whose sizes differ by at most one."""
        starts = np.array([len(order) * shard // count for shard in range(count + 1)])
        weights = np.empty(len(order))
        for begin, end in pairwise(starts.tolist()):
            weights[order[begin:end]] = 1.0 / (count * (end - begin))
        return cls(order, starts, weights)

    @property
    def count(self) -> int:
        """The number of shards."""
        return len(self.starts) - 1

    def draw_one(self, sample: Sample) -> int:
        """Draw one row for the worker of a sample."""
        begin, end = self._bounds(sample.worker)
        if self.order is None:
            return sample.index(end)
        return int(self.order[begin + sample.index(end - begin)])

    def draw(self, sample: Sample, size: int, compiled: Callable[..., Integers] | None = None) -> Integers:
        """Draw rows for the worker of a sample, with replacement; ``compiled`` draws the same rows faster."""
        begin, end = self._bounds(sample.worker)
        if compiled is None or end - begin >= 1 << 32:
            places = sample.indices(end - begin, size)
        else:
            places = compiled(np.uint64(sample.key), np.uint64(end - begin), size)
        return places if self.order is None else self.order[begin + places]

    def mean(self, values: Floats) -> float:
        """Return the mean over shards of each shard's mean."""
        if self.order is None:
            return float(kernels().sum_of(values)) / len(values)
        return float(kernels().inner(values, self.weights))

    def only(self, shard: int) -> Shards:
        """Return a single shard with the rows of this one; all other rows have the weight 0."""
        rows = self.rows_of(shard)
        weights = np.zeros(len(self.weights))
        weights[rows] = 1.0 / len(rows)
        return Shards(None, np.array([0, len(weights)]), weights)

    def rows_of(self, shard: int) -> Integers:
        """Return the rows of one shard."""
        begin, end = self._bounds(shard)
        return np.arange(begin, end) if self.order is None else self.order[begin:end]

    def _bounds(self, worker: int) -> tuple[int, int]:
        shard = worker % self.count
        return int(self.starts[shard]), int(self.starts[shard + 1])
