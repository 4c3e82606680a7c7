"""Rescaled ASGD: slow workers make longer steps, so that every worker contributes equally."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, checks, method_dataclass
from nowait.core.stepsizes import ignores_delay
from nowait.numerics.elementary import added


@final
@method_dataclass
class RescaledASGD(Method):
    """Asynchronous SGD with γ_i = γ·s_i/mean(s), where s_i is worker i's compute time.

    Mahran, Maranjyan and Richtárik, "Rescaled Asynchronous SGD: Optimal Distributed Optimization under Data and System
    Heterogeneity" (2026): a worker that sends gradients half as often makes steps twice as long, so heterogeneous data
    cause no bias, without the memory of a gradient table. Their times are fixed and known; here each is a moving
    average with weight ``memory`` on the past, and the mean is over the live workers that have sent a gradient. Use a
    stepsize that does not depend on the delay: one that does would undo the rescaling.
    """

    stepsize: StepsizeOrFloat
    memory: float = 0.9
    seconds: dict[int, float] = field(init=False, repr=False, compare=False)
    total: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = checks.fraction(self.memory, "memory", "the average would never follow the times")

    def start(self, server: Server) -> None:
        """Reset the measured times and give every worker a ticket."""
        self.seconds, self.total = {}, 0.0
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient with its worker's stepsize and assign the worker a ticket at the new params."""
        known = self.seconds.get(arrival.worker)
        mine = arrival.compute_seconds
        if known is not None:
            mine = self.memory * known + (1 - self.memory) * mine
        total = self.total + mine - (known or 0.0)
        mean = total / (len(self.seconds) + (known is None))
        server.apply(arrival, self.stepsize.at(arrival, server) * (mine / mean if mean > 0 else 1.0))
        self.seconds[arrival.worker], self.total = mine, total
        server.assign(arrival.worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Remove the worker's time from the mean."""
        self.seconds.pop(worker, None)
        self.total = added(self.seconds.values())

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True for stepsizes that do not depend on the delay: others make the steps of slow workers shorter."""
        return ignores_delay(self.stepsize, num_workers)
