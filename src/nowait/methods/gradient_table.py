"""Gradient table: step along the mean of every worker's latest gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, Stepsize


@final
@dataclass
class GradientTable(Method):
    """Keep each worker's latest gradient; every arrival replaces one and makes a step along the mean of all.

    The rule of IA²SGD and DuDe-ASGD (Wang et al., "Dual-Delayed Asynchronous SGD for Arbitrarily Heterogeneous
    Data", 2024). Every worker weighs the same however fast it is, so heterogeneous data cause no bias. Memory is
    one vector per worker, work per arrival a few passes over memory. Steps begin when every live worker has
    delivered once. A worker that leaves takes its entry along.
    """

    stepsize: Stepsize
    table: dict[int, GradientSum] = field(init=False, repr=False, compare=False)
    total: GradientSum = field(init=False, repr=False, compare=False)
    spare: GradientSum = field(init=False, repr=False, compare=False)
    full: bool = field(init=False, repr=False, compare=False)
    replaced: int = field(init=False, repr=False, compare=False)

    def start(self, server: Server) -> None:
        """An empty table."""
        self.table, self.total, self.spare, self.full, self.replaced = (
            {},
            server.sum(),
            server.sum(),
            False,
            0,
        )
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Replace the worker's entry, step along the mean, go on from the new params."""
        self.spare.add(arrival)
        self._replace(server, arrival.worker)
        self.full = self.full or len(self.table) == server.num_workers
        if self.full:
            server.step(self.total, self.stepsize.at(arrival, server), 1 / len(self.table))
        server.assign(arrival.worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Its entry leaves with it."""
        self.table.pop(worker, None)
        self._add_up()

    def _replace(self, server: Server, worker: int) -> None:
        """The spare becomes the worker's entry, and its old entry the spare."""
        old = self.table.get(worker)
        if old is None:
            old = server.sum()
        self.total.merge(old, -1.0)
        self.total.merge(self.spare)
        self.table[worker], self.spare = self.spare, old
        self.spare.clear()
        self.replaced += 1
        if self.replaced > len(self.table):
            self._add_up()

    def _add_up(self) -> None:
        """Add the table up anew once a round, so that rounding errors do not pile up in the total."""
        self.total.clear()
        for entry in self.table.values():
            self.total.merge(entry)
        self.replaced = 0
