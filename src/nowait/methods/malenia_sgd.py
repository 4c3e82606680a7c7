"""Malenia SGD: minibatches in which every worker has the same weight, however many gradients it sends."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass
from nowait.numerics.elementary import added


@final
@method_dataclass
class MaleniaSGD(Method):
    """Collect gradients at one point until the harmonic mean of the workers' counts is large enough, then step.

    Tyurin and Richtárik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed
    Computation Model" (NeurIPS 2023), for heterogeneous data. With n workers that sent B_i gradients with sum G_i, a
    round ends when every B_i ≥ 1 and (1/n·Σ 1/B_i)⁻¹ ≥ batch/n; the step is along (1/n)·Σ G_i/B_i, and all workers
    restart at the new params. ``batch`` is their S = max(⌈σ²/ε⌉, n).
    """

    stepsize: StepsizeOrFloat
    batch: int
    sums: dict[int, GradientSum] = field(init=False, repr=False, compare=False)
    inverse_counts: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch = checks.at_least(1, self.batch, "batch", "a step needs at least one gradient")

    def start(self, server: Server) -> None:
        """Start with an empty round and give every worker a ticket."""
        self.sums, self.inverse_counts = {}, 0.0
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Add the gradient to its worker's sum; step if the batch is complete, else assign the worker a new ticket."""
        total = self.sums.get(arrival.worker) or server.sum()
        total.add(arrival)
        self.sums[arrival.worker] = total
        self.inverse_counts += 1 / total.count - (1 / (total.count - 1) if total.count > 1 else 0.0)
        if self._is_enough(server):
            self._step(server)
        else:
            server.assign(arrival.worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Remove the worker's gradients; step if the batch is complete without it."""
        gone = self.sums.pop(worker, None)
        if gone is not None:
            self.inverse_counts = added(1 / total.count for total in self.sums.values())
        if self.sums and self._is_enough(server):
            self._step(server)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: all gradients of a round are fresh."""
        return 1.0

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True: every step is along the mean of the workers' means."""
        return True

    def _is_enough(self, server: Server) -> bool:
        """Return True if (1/n·Σ 1/B_i)⁻¹ ≥ batch/n with every B_i at least 1, that is, n² ≥ batch·Σ 1/B_i."""
        workers = server.num_workers
        everybody_in = len(self.sums) == workers > 0
        return everybody_in and workers * workers >= self.batch * self.inverse_counts * (1 - 1e-12)

    def _step(self, server: Server) -> None:
        mean = server.sum()
        for total in self.sums.values():
            mean.merge(total, 1 / total.count)
        server.step(mean, self.stepsize.fresh(server), 1 / len(self.sums))
        self.sums, self.inverse_counts = {}, 0.0
        for worker in server.workers:
            server.cancel(worker)
            server.assign(worker)
