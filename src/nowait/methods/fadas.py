"""FADAS: buffered steps with a smaller stepsize when the buffer is stale."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class FADAS(Method):
    """Step along the mean of every ``buffer`` gradients, with min(γ, 1/δ) if the largest δ exceeds ``max_delay``.

    Wang et al., "FADAS: Towards Federated Adaptive Asynchronous Optimization" (ICML 2024), with δ = delay − 1. Use
    ``update=nw.AMSGrad(0.9, 0.99)``, their server optimiser. (Public code multiplies γ by 1/δ; the paper uses the
    smaller of the two.)
    """

    stepsize: StepsizeOrFloat
    buffer: int = 5
    max_delay: int = 1
    total: GradientSum = field(init=False, repr=False, compare=False)
    oldest: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buffer = checks.at_least(1, self.buffer, "buffer", "a step needs at least one gradient")
        self.max_delay = checks.at_least(0, self.max_delay, "max_delay", "it is a number of steps, 0 for fresh ones")

    def start(self, server: Server) -> None:
        """Start with an empty buffer and give every worker a ticket."""
        self.total, self.oldest = server.sum(), 0
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the gradient; step if the buffer is full. Assign the worker a new ticket."""
        self.total.add(arrival)
        self.oldest = max(self.oldest, arrival.delay - 1)
        if self.total.count == self.buffer:
            stepsize = self.stepsize.fresh(server)
            if self.oldest > self.max_delay:
                stepsize = min(stepsize, 1 / self.oldest)
            server.step(self.total, stepsize, 1 / self.buffer)
            self.total.clear()
            self.oldest = 0
        server.assign(arrival.worker)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return M/buffer, at least 1: there is one step per full buffer."""
        return max(1.0, num_workers / self.buffer)
