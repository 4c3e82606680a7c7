"""Minibatch SGD: the synchronous baseline."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, method_dataclass


@final
@method_dataclass
class MinibatchSGD(Method):
    """Wait for one gradient from every worker, then step along their mean over all items.

    Each step takes as long as the slowest worker. The baseline of the paper: Dekel et al., "Optimal
    Distributed Online Prediction Using Mini-Batches" (2012). It does not wait for workers that left.
    """

    stepsize: StepsizeOrFloat
    total: GradientSum = field(init=False, repr=False, compare=False)

    def start(self, server: Server) -> None:
        """Start with an empty round and give every worker a ticket."""
        self.total = server.sum()
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the gradient; step if it is the last one of the round."""
        self.total.add(arrival, server.weight_of(arrival.worker))
        self._step_when_all_are_in(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """Step if the round waited for this worker only."""
        self._step_when_all_are_in(server)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: all gradients of a round are fresh."""
        return 1.0

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True: every step has one gradient of each worker."""
        return True

    def _step_when_all_are_in(self, server: Server) -> None:
        if server.in_flight or self.total.count == 0 or not server.workers:
            return
        server.step(self.total, self.stepsize.fresh(server), 1 / self.total.weight)
        self.total.clear()
        for worker in server.workers:
            server.assign(worker)
