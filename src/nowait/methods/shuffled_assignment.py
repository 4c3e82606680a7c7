"""Shuffled assignment: tickets are dealt in random permutations of the workers."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, method_dataclass


@final
@method_dataclass
class ShuffledAssignment(Method):
    """Apply every gradient and give the new params to the next worker of a random permutation, busy or not.

    Islamov, Safaryan and Alistarh, "AsGrad: A Sharp Unified Analysis of Asynchronous-SGD Algorithms" (AISTATS 2024):
    like ``RandomAssignment``, but everybody's turn comes once per pass, with a new order each pass. A busy worker
    queues the ticket. Unbiased for heterogeneous data; the slowest worker sets the pace.
    """

    stepsize: StepsizeOrFloat
    deck: list[int] = field(init=False, repr=False, compare=False)

    def start(self, server: Server) -> None:
        """An empty deck; everybody gets a first ticket."""
        self.deck = []
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply, and deal to the next of the deck."""
        server.apply(arrival, self.stepsize.at(arrival, server))
        self._deal(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """The tickets it had go to others, so that as many stay in flight as there are workers."""
        while len(server.in_flight) < server.num_workers:
            self._deal(server)

    def _deal(self, server: Server) -> None:
        while True:
            if not self.deck:
                order = server.random.permutation(server.num_workers)
                self.deck = [server.workers[place] for place in order]
            worker = self.deck.pop()
            if worker in server.workers:
                server.assign(worker)
                return
