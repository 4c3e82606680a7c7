"""Shuffled assignment: workers get tickets in the order of random permutations."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, method_dataclass
from nowait.core.stepsizes import ignores_delay


@final
@method_dataclass
class ShuffledAssignment(Method):
    """Apply every gradient and give the new params to the next worker of a random permutation, busy or not.

    Islamov, Safaryan and Alistarh, "AsGrad: A Sharp Unified Analysis of Asynchronous-SGD Algorithms" (AISTATS 2024):
    like ``RandomAssignment``, but every worker gets exactly one ticket per pass, in a new order each pass. A busy
    worker queues the ticket. Unbiased for heterogeneous data; the slowest worker limits the speed.
    """

    stepsize: StepsizeOrFloat
    deck: list[int] = field(init=False, repr=False, compare=False)

    def start(self, server: Server) -> None:
        """Start without a permutation and give every worker a ticket."""
        self.deck = []
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient and assign a ticket to the next worker of the permutation."""
        server.apply(arrival, self.stepsize.at(arrival, server))
        self._deal(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """Replace the worker's lost tickets, so that as many tickets as workers stay in flight."""
        while len(server.in_flight) < server.num_workers:
            self._deal(server)

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True for stepsizes that do not depend on the delay: others make the steps of slow workers shorter."""
        return ignores_delay(self.stepsize, num_workers)

    def _deal(self, server: Server) -> None:
        while True:
            if not self.deck:
                order = server.random.permutation(server.num_workers)
                self.deck = [server.workers[place] for place in order]
            worker = self.deck.pop()
            if worker in server.workers:
                server.assign(worker)
                return
