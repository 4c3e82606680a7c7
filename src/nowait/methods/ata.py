"""ATA: adaptive task allocation, which learns who is fast while it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, Stepsize, checks


@final
@dataclass
class ATA(Method):
    """Rounds of ``batch`` gradients, dealt so that the round is expected to end soonest; nobody works in vain.

    Maranjyan, Saad, Richtárik and Orabona, "ATA: Adaptive Task Allocation for Efficient Resource Management in
    Distributed Machine Learning" (ICML 2025). Worker i's compute time is taken as low as its observations allow,

        (mean_i − 4e·α·(√(ln(2r²)/N_i) + ln(2r²)/N_i))₊

    with N_i observations and r the number of the round, so that a worker that may be fast is tried again; the jobs are
    dealt one by one to the worker that would finish its jobs first. Workers not seen yet get one each before that.
    A round's step is along the mean of its gradients. As fast as Rennala SGD in order, with less work: nothing is
    computed and thrown away.

    ``alpha`` is how much a compute time scatters, in seconds (a bound of its sub-exponential norm); None takes twice
    the worker's mean, which is safe and learns slowly. With steady workers a small value such as a hundredth of
    the mean time learns in a few rounds.
    """

    stepsize: Stepsize
    batch: int
    alpha: float | None = None
    total: GradientSum = field(init=False, repr=False, compare=False)
    rounds: int = field(init=False, repr=False, compare=False)
    seen: dict[int, tuple[int, float]] = field(init=False, repr=False, compare=False)
    """By worker: how many compute times were observed, and their mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch = checks.at_least(1, self.batch, "batch", "a step needs at least one gradient")
        if self.alpha is not None:
            self.alpha = checks.not_negative(self.alpha, "alpha", "it is how much compute times scatter")

    def start(self, server: Server) -> None:
        """The first round; nobody was seen yet."""
        self.total, self.rounds, self.seen = server.sum(), 0, {}
        self._begin_round(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold it and learn from its time; the last one of the round makes the step."""
        self.total.add(arrival)
        count, mean = self.seen.get(arrival.worker, (0, 0.0))
        self.seen[arrival.worker] = (count + 1, mean + (arrival.compute_seconds - mean) / (count + 1))
        self._step_when_all_are_in(server)

    def on_join(self, server: Server, worker: int) -> None:
        """It is dealt jobs in the next round."""
        self._step_when_all_are_in(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """The round goes on without its jobs, which may have been the last ones."""
        self.seen.pop(worker, None)
        self._step_when_all_are_in(server)

    def _step_when_all_are_in(self, server: Server) -> None:
        if server.in_flight or not server.workers:
            return
        if self.total.count:
            server.step(self.total, self.stepsize.fresh(server), 1 / self.total.count)
            self.total.clear()
        self._begin_round(server)

    def _begin_round(self, server: Server) -> None:
        self.rounds += 1
        for worker, jobs in self._allocation(list(server.workers)).items():
            for _ in range(jobs):
                server.assign(worker)

    def _allocation(self, workers: list[int]) -> dict[int, int]:
        """How many jobs each worker gets: the next one always goes to whom would finish it first."""
        new = [worker for worker in workers if worker not in self.seen][: self.batch]
        jobs = dict.fromkeys(new, 1)
        bounds = {worker: self._lower_bound(worker) for worker in workers}
        queue = [((jobs.get(worker, 0) + 1) * bounds[worker], jobs.get(worker, 0), worker) for worker in workers]
        heapify(queue)
        for _ in range(self.batch - len(new)):
            _, given, worker = queue[0]
            jobs[worker] = given + 1
            heapreplace(queue, ((given + 2) * bounds[worker], given + 1, worker))
        return jobs

    def _lower_bound(self, worker: int) -> float:
        """The compute time of the worker, as low as its observations allow."""
        if worker not in self.seen:
            return 0.0
        count, mean = self.seen[worker]
        alpha = 2 * mean if self.alpha is None else self.alpha
        logarithm = math.log(2 * self.rounds**2) / count
        return max(0.0, mean - 4 * math.e * alpha * (math.sqrt(logarithm) + logarithm))
