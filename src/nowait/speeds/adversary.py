"""An adversary that chooses which worker arrives next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from nowait.core import checks
from nowait.speeds.clock import Clock, OrderClock
from nowait.speeds.speeds import Speeds, Timing, worker_numbers


@final
@dataclass
class Adversary(Speeds):
    """Workers arrive in the given order, one per second; workers without a ticket are skipped, and the order repeats.

    This makes arbitrary delays, as the paper's theorems allow. Workers that are counted in ``workers=`` but do not
    appear in the order never return a gradient.

    >>> import nowait as nw
    >>> method = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
    >>> run = nw.simulate(
    ...     nw.problems.NoisyQuadratic(4),
    ...     method,
    ...     nw.speeds.Adversary([0, 0, 0, 1]),
    ...     steps=8,
    ... )
    >>> run.trace.delay.tolist()
    [1, 1, 1, 4, 2, 1, 1, 4]
    """

    order: Sequence[int]
    workers: int | None = None
    num_workers: int = field(init=False, repr=False)
    _order: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._order = worker_numbers(self.order, "order")
        if not self._order:
            raise ValueError("order is empty: no gradient would ever arrive")
        least = max(self._order) + 1
        if self.workers is None:
            self.num_workers = least
        else:
            why = f"the order names worker {least - 1}"
            self.num_workers = checks.at_least(least, self.workers, "workers", why)

    def timing(self, seed: int) -> Timing:
        """Raise TypeError: an adversary has no durations."""
        raise TypeError("Adversary decides the order of arrivals, not durations: it cannot be wrapped")

    def clock(self, seed: int) -> Clock:
        """Return a clock that follows the order."""
        return OrderClock(self._order)
