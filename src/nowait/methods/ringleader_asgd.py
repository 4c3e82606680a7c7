"""Ringleader ASGD: asynchronous SGD for heterogeneous data that discards no gradient."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, method_dataclass


@final
@method_dataclass
class RingleaderASGD(Method):
    """Rounds of n steps along the mean of the workers' own mean gradients.

    Maranjyan and Richtárik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data
    Heterogeneity" (2025). First phase: collect until every worker has sent a gradient; workers continue at their own
    points. Second phase: each worker's next arrival makes one step and gets the new params. Further arrivals from
    workers that already made their step are collected for the next round, and these workers continue at their own
    points, because a worker's mean must be over gradients at one point. In terms of δ = delay − 1, no delay exceeds
    2n − 2.
    """

    stepsize: StepsizeOrFloat
    current: dict[int, GradientSum] = field(init=False, repr=False, compare=False)
    following: dict[int, GradientSum] = field(init=False, repr=False, compare=False)
    total: GradientSum = field(init=False, repr=False, compare=False)
    to_step: set[int] = field(init=False, repr=False, compare=False)

    def start(self, server: Server) -> None:
        """Start the first phase of an empty round and give every worker a ticket."""
        self.current, self.following, self.total, self.to_step = {}, {}, server.sum(), set()
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Collect the gradient for this round or the next; step if the worker has not made its step yet."""
        collecting = not self.to_step
        if not collecting and arrival.worker not in self.to_step:
            self._add(self.following, server, arrival)
            server.assign(arrival.worker, at=arrival)
            return
        self._collect(server, arrival)
        if collecting and len(self.current) < server.num_workers:
            server.assign(arrival.worker, at=arrival)
            return
        if collecting:
            self.to_step = set(server.workers)
        server.step(self.total, self.stepsize.at(arrival, server), 1 / len(self.current))
        server.assign(arrival.worker)
        self._done(arrival.worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Remove the worker's gradients, and its step from the round."""
        self.current.pop(worker, None)
        self.following.pop(worker, None)
        self._add_up()
        if self.to_step:
            self._done(worker)

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True: every step is along the mean of the workers' means."""
        return True

    def _collect(self, server: Server, arrival: Arrival) -> None:
        """Add the gradient to its worker's entry and update the total: G/b becomes (G + g)/(b + 1)."""
        entry = self.current.get(arrival.worker)
        count = 0 if entry is None else entry.count
        self.total.add(arrival, 1 / (count + 1))
        if entry is not None:
            self.total.merge(entry, 1 / (count + 1) - 1 / count)
        self._add(self.current, server, arrival)

    def _done(self, worker: int) -> None:
        self.to_step.discard(worker)
        if not self.to_step:
            self.current, self.following = self.following, {}
            self._add_up()

    def _add_up(self) -> None:
        self.total.clear()
        for entry in self.current.values():
            self.total.merge(entry, 1 / entry.count)

    @staticmethod
    def _add(table: dict[int, GradientSum], server: Server, arrival: Arrival) -> None:
        entry = table.get(arrival.worker)
        if entry is None:
            entry = server.sum()
        entry.add(arrival)
        table[arrival.worker] = entry
