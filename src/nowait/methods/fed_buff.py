"""FedBuff: buffered asynchronous aggregation."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import (
    Arrival,
    GradientSum,
    Method,
    PolynomialDecay,
    Server,
    StepsizeOrFloat,
    as_stepsize,
    checks,
    method_dataclass,
)


@final
@method_dataclass
class FedBuff(Method):
    """Hold gradients, discounted by their delay, and step along the mean of every ``buffer`` of them.

    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (AISTATS 2022), with their discount
    1/√(1 + δ) = τ^(−1/2) and a buffer of 10. ``discount`` is any stepsize rule; it weights each gradient in the buffer,
    and ``stepsize`` is that of the step. The worker gets a new ticket at the current params immediately.
    """

    stepsize: StepsizeOrFloat
    buffer: int = 10
    discount: StepsizeOrFloat = PolynomialDecay(1.0, power=0.5)  # type: ignore[assignment] # a field of this kind takes one
    total: GradientSum = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buffer = checks.at_least(1, self.buffer, "buffer", "a step needs at least one gradient")
        self.discount = as_stepsize(self.discount, "discount")

    def start(self, server: Server) -> None:
        """Start with an empty buffer and give every worker a ticket."""
        self.total = server.sum()
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the discounted gradient; step if the buffer is full. Assign the worker a new ticket."""
        self.total.add(arrival, self.discount.at(arrival, server))
        if self.total.count == self.buffer:
            server.step(self.total, self.stepsize.fresh(server), 1 / self.buffer)
            self.total.clear()
        server.assign(arrival.worker)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return M/buffer, at least 1: there is one step per full buffer."""
        return max(1.0, num_workers / self.buffer)
