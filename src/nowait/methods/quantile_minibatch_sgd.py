"""Asynchronous mini-batches whose size follows the observed delays."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass

WINDOW = 1_000
"""Of so many latest delays a quantile is taken."""


@final
@method_dataclass
class QuantileMinibatchSGD(Method):
    """Collect a batch of fresh gradients, as large as a quantile of the delays, and step along its mean.

    Attia, Gaash and Koren, "Faster Stochastic Optimization with Arbitrary Delays via Asynchronous Mini-Batching"
    (2024): with a batch of the q-quantile τ_q of the delays, the rate depends on τ_q/q, not on the longest delay. A
    delay counts *arrivals* here: how many gradients arrived since the params of this one were sent, itself included.
    It is ``RennalaSGD(batch, cancel=False)`` with a ``batch`` that need not be known: the ``quantile`` of the latest
    1,000 delays. The paper proves its rate for a known τ_q, and adapts to all q at once by growing batches; to estimate
    τ_q from the delays is our choice.
    """

    stepsize: StepsizeOrFloat
    quantile: float = 0.5
    total: GradientSum = field(init=False, repr=False, compare=False)
    batch: int = field(init=False, repr=False, compare=False)
    """The size of the current batch."""
    arrivals: int = field(init=False, repr=False, compare=False)
    sent: dict[int, int] = field(init=False, repr=False, compare=False)
    """By worker: how many gradients had arrived when it was given its ticket."""
    latest: deque[int] = field(init=False, repr=False, compare=False)
    """The latest delays, the oldest first."""
    ordered: list[int] = field(init=False, repr=False, compare=False)
    """The same, the shortest first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.quantile = checks.positive(self.quantile, "quantile", "batches would have no gradients")
        if self.quantile > 1:
            raise ValueError(f"quantile must be at most 1, got {self.quantile!r}: at 1 the batch is the longest delay")

    def start(self, server: Server) -> None:
        """Start with a batch of one gradient and give every worker a ticket."""
        self.total, self.batch, self.arrivals = server.sum(), 1, 0
        self.sent, self.latest, self.ordered = dict.fromkeys(server.workers, 0), deque(), []
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the gradient if it is fresh, and step if the batch is complete; drop it if it is stale."""
        if arrival.delay > 1:
            server.assign(arrival.worker)
            self._observe(arrival.worker)
            return
        self.total.add(arrival, server.weight_of(arrival.worker))
        self._observe(arrival.worker)
        if self.total.count >= self.batch:
            server.step(self.total, self.stepsize.fresh(server), 1 / self.total.weight)
            self.total.clear()
            self.batch = self.ordered[math.ceil(self.quantile * len(self.ordered)) - 1]
        server.assign(arrival.worker)

    def on_join(self, server: Server, worker: int) -> None:
        """Give the worker a ticket."""
        self.sent[worker] = self.arrivals
        super().on_join(server, worker)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: all gradients of a batch are fresh."""
        return 1.0

    def _observe(self, worker: int) -> None:
        """Record the delay of an arrival whose worker is given its next ticket now."""
        self.arrivals += 1
        delay = self.arrivals - self.sent[worker]
        self.latest.append(delay)
        insort(self.ordered, delay)
        if len(self.latest) > WINDOW:
            del self.ordered[bisect_left(self.ordered, self.latest.popleft())]
        self.sent[worker] = self.arrivals
