"""``batch_size="auto"``: sizes of batches that are in proportion to the speeds of the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from nowait.core import checks
from nowait.pytorch.per_worker import DEFAULT, PREFIX, PerWorker

AUTO = "auto"
USUAL = 64
"""The mean size of batches if only "auto" is given."""
REASON = "a gradient needs items"
SHORTEST = 1e-9
"""Seconds that a gradient takes at least."""


@final
class AutoSizes:
    """Like ``PerWorker``, with sizes that are chosen once. Until then all workers have the mean size.

    >>> sizes = AutoSizes(60)
    >>> sizes.choose({0: 0.1, 1: 0.2})
    {'worker 0': 80, 'worker 1': 40, 'default': 60}
    >>> sizes.of_worker(1)
    40
    """

    def __init__(self, mean: int) -> None:
        self._sizes = PerWorker.of(checks.at_least(1, mean, "batch_size", REASON), "batch_size", REASON)
        self.chosen: dict[str, int] | None = None
        """The sizes by worker, as ``batch_size=`` takes them; None before they were chosen."""

    @classmethod
    def of(cls, given: str) -> AutoSizes:
        """Return the sizes of "auto" or "auto:64"."""
        kind, _, mean = given.partition(":")
        if kind != AUTO or (mean and not mean.isdecimal()):
            raise ValueError(f'batch_size must be a number, one for every worker, "auto" or "auto:64", got {given!r}')
        return cls(int(mean) if mean else USUAL)

    def choose(self, seconds: Mapping[int, float]) -> dict[str, int]:
        """Choose sizes in proportion to speed from how long a gradient of the mean size takes; returns them."""
        mean = self.usual
        speeds = {worker: 1 / max(value, SHORTEST) for worker, value in sorted(seconds.items())}
        total = sum(speeds.values())
        sizes = {
            f"{PREFIX}{worker}": max(1, round(mean * len(speeds) * speed / total)) for worker, speed in speeds.items()
        }
        return self.use(sizes | {DEFAULT: mean})

    def use(self, sizes: Mapping[str, Any]) -> dict[str, int]:
        """Take sizes that were chosen before; returns them."""
        self._sizes = PerWorker.of(sizes, "batch_size", REASON)
        self.chosen = dict(sizes)
        return self.chosen

    def of_worker(self, worker: Any) -> int:
        """Return the size of a worker's batches."""
        return self._sizes.of_worker(worker)

    @property
    def usual(self) -> int:
        """The mean size, and that of workers that were not measured."""
        return self._sizes.usual

    def __str__(self) -> str:
        return AUTO if self.chosen is None else f"{self.chosen}"
