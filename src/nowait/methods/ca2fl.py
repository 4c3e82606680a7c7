"""CA²FL: buffered steps corrected by a cache of every worker's latest gradient."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class CA2FL(Method):
    """Every ``buffer`` arrivals, step along h̄ + mean of (g_i − h_i), where h_i is worker i's cached gradient.

    Wang et al., "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update Calibration"
    (ICLR 2024). h̄ is the mean of the cache over all live workers, with zero for a worker that has sent no gradient yet;
    after the step, the gradients in the buffer replace their workers' cached gradients. Every worker has the same
    weight, whatever its speed, so heterogeneous data cause no bias. Memory is one vector per worker.
    """

    stepsize: StepsizeOrFloat
    buffer: int = 10
    cache: dict[int, GradientSum] = field(init=False, repr=False, compare=False)
    arrived: dict[int, GradientSum] = field(init=False, repr=False, compare=False)
    differences: GradientSum = field(init=False, repr=False, compare=False)
    held: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.buffer = checks.at_least(1, self.buffer, "buffer", "a step needs at least one gradient")

    def start(self, server: Server) -> None:
        """Start with an empty cache and an empty buffer."""
        self.cache, self.arrived, self.differences, self.held = {}, {}, server.sum(), 0
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the difference from the cached gradient; step if the buffer is full."""
        latest = server.sum()
        latest.add(arrival)
        self.arrived[arrival.worker] = latest
        self.differences.merge(latest)
        if arrival.worker in self.cache:
            self.differences.merge(self.cache[arrival.worker], -1.0)
        self.held += 1
        if self.held == self.buffer:
            self._step(server, arrival)
        server.assign(arrival.worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Remove the worker's cached gradient."""
        self.cache.pop(worker, None)
        self.arrived.pop(worker, None)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return M/buffer, at least 1: there is one step per full buffer."""
        return max(1.0, num_workers / self.buffer)

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True: each worker has one entry of the cache."""
        return True

    def _step(self, server: Server, arrival: Arrival) -> None:
        direction = server.sum()
        for cached in self.cache.values():
            direction.merge(cached, 1 / server.num_workers)
        direction.merge(self.differences, 1 / self.buffer)
        server.step(direction, self.stepsize.at(arrival, server))
        self.cache |= self.arrived
        self.arrived, self.held = {}, 0
        self.differences.clear()
