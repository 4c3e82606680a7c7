"""Rennala SGD: minibatches of fresh gradients from any workers, so mostly from the fast ones."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class RennalaSGD(Method):
    """Collect ``batch`` fresh gradients from any workers, then step along their mean.

    Tyurin and Richtárik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed
    Computation Model" (NeurIPS 2023). With ``cancel=True`` every worker restarts at the new params. With
    ``cancel=False`` workers finish their tickets and stale gradients are dropped on arrival; this is asynchronous
    mini-batching: Attia, Gaash and Koren, "Faster Stochastic Optimization with Arbitrary Delays via Asynchronous
    Mini-Batching" (2024).
    """

    stepsize: StepsizeOrFloat
    batch: int
    cancel: bool = True
    total: GradientSum = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch = checks.at_least(1, self.batch, "batch", "a step needs at least one gradient")
        self.cancel = checks.flag(self.cancel, "cancel")

    def start(self, server: Server) -> None:
        """Start with an empty batch and give every worker a ticket."""
        self.total = server.sum()
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the gradient if it is fresh; step if the batch is complete."""
        if arrival.delay == 1:
            self.total.add(arrival, server.weight_of(arrival.worker))
        if self.total.count < self.batch:
            server.assign(arrival.worker)
            return
        server.step(self.total, self.stepsize.fresh(server), 1 / self.total.weight)
        self.total.clear()
        for worker in server.workers if self.cancel else (arrival.worker,):
            server.cancel(worker)
            server.assign(worker)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: all gradients of a round are fresh."""
        return 1.0
