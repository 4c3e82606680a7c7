"""Random assignment: after each arrival a random worker gets the next ticket."""

from __future__ import annotations

from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, method_dataclass
from nowait.core.stepsizes import ignores_delay


@final
@method_dataclass
class RandomAssignment(Method):
    """Apply every gradient and give the new params to a uniformly random worker, busy or not.

    Koloskova, Stich and Jaggi, "Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated
    Learning" (NeurIPS 2022), Algorithm 2, with as many tickets in flight as workers. A busy worker queues the
    ticket with the current params. In expectation every worker computes the same number of gradients, so heterogeneous
    data cause no bias, but the slowest worker limits the speed.
    """

    stepsize: StepsizeOrFloat

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient and assign a ticket to a random worker."""
        server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(server.random.choice(server.workers))

    def on_leave(self, server: Server, worker: int) -> None:
        """Replace the worker's lost tickets, so that as many tickets as workers stay in flight."""
        while len(server.in_flight) < server.num_workers:
            server.assign(server.random.choice(server.workers))

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True for stepsizes that do not depend on the delay: others make the steps of slow workers shorter."""
        return ignores_delay(self.stepsize, num_workers)
