"""m-Synchronous SGD: minibatches that do not wait for the slowest workers."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class MSynchronousSGD(Method):
    """Every worker computes one gradient at the current params; step along the mean of the first ``m`` of them.

    Begunov and Tyurin, "Do We Need Asynchronous SGD? On the Near-Optimality of Synchronous Methods" (2026); with the
    name "backup workers": Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016).
    By default no ticket is cancelled: a gradient that arrives after its step is dropped, and its worker joins the
    current round. With ``cancel=True`` all workers restart at the new params. With ``m`` workers or fewer it is
    ``MinibatchSGD``.
    """

    stepsize: StepsizeOrFloat
    m: int
    cancel: bool = False
    total: GradientSum = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.m = checks.at_least(1, self.m, "m", "a step needs at least one gradient")
        self.cancel = checks.flag(self.cancel, "cancel")

    def start(self, server: Server) -> None:
        """Start with an empty round and give every worker a ticket."""
        self.total = server.sum()
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold a fresh gradient, and step if it completes the round; drop a stale one."""
        if arrival.delay > 1:
            server.assign(arrival.worker)
            return
        self.total.add(arrival, server.weight_of(arrival.worker))
        self._step_if_complete(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """Step if no other worker is computing."""
        self._step_if_complete(server)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: all gradients of a round are fresh."""
        return 1.0

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True if it waits for all workers, as ``MinibatchSGD`` does."""
        return self.m >= num_workers

    def _step_if_complete(self, server: Server) -> None:
        count = self.total.count
        if count == 0 or not server.workers or (count < self.m and server.in_flight):
            return
        server.step(self.total, self.stepsize.fresh(server), 1 / self.total.weight)
        self.total.clear()
        for worker in server.workers:
            if self.cancel:
                server.cancel(worker)
            if server.in_flight.first_of(worker) is None:
                server.assign(worker)
