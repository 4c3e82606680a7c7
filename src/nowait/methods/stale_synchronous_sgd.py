"""Stale-synchronous SGD: every gradient is applied at once, but nobody gets far ahead of the slowest worker."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class StaleSynchronousSGD(Method):
    """Apply every gradient at once; a worker more than ``slack`` gradients ahead of the slowest one waits.

    Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NeurIPS 2013), with
    the server of ``AsynchronousSGD``. Because workers wait, delays are bounded: no gradient of M workers has a delay
    above (2·slack + 1)(M − 1) + 1. The price is the speed of the slowest worker: in the long run every worker
    delivers as many gradients as that one. ``slack=0`` makes rounds with one gradient of each worker.

    A worker that joins counts as having delivered as many gradients as the slowest one. The method does not wait for
    workers that have left.
    """

    stepsize: StepsizeOrFloat
    slack: int
    delivered: dict[int, int] = field(init=False, repr=False, compare=False)
    """How many gradients each worker has delivered."""
    levels: Counter[int] = field(init=False, repr=False, compare=False)
    """How many workers have delivered each number of gradients."""
    slowest: int = field(init=False, repr=False, compare=False)
    """The smallest of these numbers."""
    waiting: list[int] = field(init=False, repr=False, compare=False)
    """The workers that wait, in the order of their arrivals."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slack = checks.at_least(0, self.slack, "slack", "it is how far a worker may be ahead of the slowest")

    def start(self, server: Server) -> None:
        """Start with no gradients delivered and give every worker a ticket."""
        self.delivered = dict.fromkeys(server.workers, 0)
        self.levels, self.slowest, self.waiting = Counter(self.delivered.values()), 0, []
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the gradient, and give tickets to its worker and those that wait unless they are too far ahead."""
        server.apply(arrival, self.stepsize.at(arrival, server))
        worker, before = arrival.worker, self.delivered[arrival.worker]
        self.delivered[worker] = before + 1
        self.levels[before + 1] += 1
        self.waiting.append(worker)
        self._remove_from_level(before)
        self._release(server)

    def on_join(self, server: Server, worker: int) -> None:
        """Give the worker a ticket; it counts as one of the slowest."""
        self.delivered[worker] = self.slowest
        self.levels[self.slowest] += 1
        super().on_join(server, worker)

    def on_leave(self, server: Server, worker: int) -> None:
        """Stop waiting for the worker."""
        if worker in self.waiting:
            self.waiting.remove(worker)
        self._remove_from_level(self.delivered.pop(worker))
        self._release(server)

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True: in the long run all workers deliver as many gradients as the slowest."""
        return True

    def _remove_from_level(self, level: int) -> None:
        self.levels[level] -= 1
        if self.levels[level] == 0:
            del self.levels[level]
            if level == self.slowest:
                self.slowest = min(self.levels, default=level)

    def _release(self, server: Server) -> None:
        """Give tickets to the workers that are not too far ahead any longer."""
        still = []
        for worker in self.waiting:
            if self.delivered[worker] - self.slowest > self.slack:
                still.append(worker)
            else:
                server.assign(worker)
        self.waiting = still
