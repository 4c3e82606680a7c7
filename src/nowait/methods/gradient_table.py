"""Gradient table: step along the mean of every worker's latest gradient."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, method_dataclass
from nowait.methods.latest_gradients import LatestGradients


@final
@method_dataclass
class GradientTable(Method):
    """Keep each worker's latest gradient; every arrival replaces one and makes a step along the mean of the table.

    The rule of DuDe-ASGD (Wang, Sun, Wai and Zhang, "Dual-Delayed Asynchronous SGD for Arbitrarily Heterogeneous Data",
    2024) and of IA²SGD ("Incremental Aggregated Asynchronous SGD for Arbitrarily Heterogeneous Data", 2025). Every
    worker has the same weight, whatever its speed, so heterogeneous data cause no bias. Memory is one vector per
    worker; an arrival costs a few passes over a vector. Steps begin when every live worker has sent one gradient. When
    a worker leaves, its entry is removed.
    """

    stepsize: StepsizeOrFloat
    table: LatestGradients = field(init=False, repr=False, compare=False)
    full: bool = field(init=False, repr=False, compare=False)

    def start(self, server: Server) -> None:
        """Start with an empty table and give every worker a ticket."""
        self.table, self.full = LatestGradients(server), False
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Replace the worker's entry, step along the mean, and assign the worker a ticket at the new params."""
        self.table.replace(arrival)
        self.full = self.full or len(self.table) == server.num_workers
        if self.full:
            server.step(self.table.total, self.stepsize.at(arrival, server), 1 / len(self.table))
        server.assign(arrival.worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Remove the worker's entry."""
        self.table.remove(worker)

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True: each worker has one entry of the table."""
        return True
