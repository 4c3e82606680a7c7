"""Communication times added to a speed model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from nowait.core import checks
from nowait.core.schedule import speaks_for
from nowait.speeds.adversary import Adversary
from nowait.speeds.formula import NO_SECONDS, Formula
from nowait.speeds.speeds import PerWorker, Speeds, Timing, per_worker


@final
@dataclass
class Communication(Speeds):
    """Adds ``down`` seconds before a worker computes (to receive params) and ``up`` after (to send the gradient).

    >>> from nowait.speeds import Fixed
    >>> Communication(Fixed([1.0]), down=0.5, up=0.25).timing(seed=0)(0, 0, 10.0)
    (1.0, 11.75)
    """

    speeds: Speeds
    down: float | Sequence[float] = 0.0
    up: float | Sequence[float] = 0.0
    num_workers: int = field(init=False, repr=False)
    _down: PerWorker = field(init=False, repr=False, compare=False)
    _up: PerWorker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checks.instance(self.speeds, Speeds, "speeds", "nw.speeds.Fixed([1.0, 2.0])")
        if isinstance(self.speeds, Adversary):
            raise TypeError("Communication cannot wrap Adversary, which decides the order of arrivals itself")
        self.num_workers = self.speeds.num_workers
        self._down = per_worker(self.down, self.num_workers, "down", zero_allowed=True)
        self._up = per_worker(self.up, self.num_workers, "up", zero_allowed=True)

    def timing(self, seed: int) -> Timing:
        """Return a function that adds the communication times to those of the wrapped speeds."""
        compute, down, up = self.speeds.timing(seed), self._down, self._up

        def timing(worker: int, job: int, start: float) -> tuple[float, float]:
            seconds, finish = compute(worker, job, start + down[worker])
            return seconds, finish + up[worker]

        return timing

    def formula(self, seed: int) -> Formula | None:
        """Return the wrapped speeds' formula with communication times; None if it has none or already has them."""
        declared = speaks_for(type(self.speeds), "formula", ("timing", "clock"))
        formula = self.speeds.formula(seed) if declared else None
        if formula is None or formula.down is not NO_SECONDS:
            return None
        return formula._replace(down=self._down.array, up=self._up.array)
