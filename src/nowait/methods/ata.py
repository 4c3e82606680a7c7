"""ATA: adaptive task allocation, which learns who is fast while it trains."""

from __future__ import annotations

import math
from dataclasses import field
from heapq import heapify, heapreplace
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass
from nowait.numerics.elementary import log


@final
@method_dataclass
class ATA(Method):
    """Rounds of ``batch`` gradients, dealt so that the round is expected to end soonest; nobody works in vain.

    Maranjyan, Saad, Richtárik and Orabona, "ATA: Adaptive Task Allocation for Efficient Resource Management in
    Distributed Machine Learning" (ICML 2025). Worker i's compute time is taken as low as its observations allow,

        (mean_i − 4e·α_i·(√(ln(2r²)/N_i) + ln(2r²)/N_i))₊,   α_i = spread·mean_i

    with N_i observations and r the number of the round, so that a worker that may be fast is tried again; the jobs are
    dealt one by one to the worker that would finish its jobs first. Workers not seen yet get one each before that.
    While somebody's bound is 0 such workers get all the jobs: a slow worker that joins costs one long round or two. A
    round's step is along the mean of its gradients. As fast as Rennala SGD in order once the speeds are learned, with
    less work: nothing is computed and thrown away. A job's time is that from the worker's last arrival (or from the
    round's beginning), so time on the network counts.

    ``spread`` is how much a worker's times scatter around their mean (their sub-exponential norm, relative to it). The
    default suits steady workers, and is our judgement. The authors' code takes 2, which is safe for any scatter, but
    leaves the bounds at 0, and all workers with the same number of jobs, for hundreds or thousands of rounds.
    """

    stepsize: StepsizeOrFloat
    batch: int
    spread: float = 0.01
    total: GradientSum = field(init=False, repr=False, compare=False)
    rounds: int = field(init=False, repr=False, compare=False)
    seen: dict[int, tuple[int, float]] = field(init=False, repr=False, compare=False)
    """By worker: how many times were observed, and their mean."""
    arrived: dict[int, float] = field(init=False, repr=False, compare=False)
    """By worker: when its last gradient arrived."""
    began: float = field(init=False, repr=False, compare=False)
    """When the round began."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch = checks.at_least(1, self.batch, "batch", "a step needs at least one gradient")
        self.spread = checks.not_negative(self.spread, "spread", "it is how much times scatter around their mean")

    def start(self, server: Server) -> None:
        """The first round; nobody was seen yet."""
        self.total, self.rounds, self.seen, self.arrived = server.sum(), 0, {}, {}
        self._begin_round(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold it and learn from its time; the last one of the round makes the step."""
        self.total.add(arrival)
        count, mean = self.seen.get(arrival.worker, (0, 0.0))
        seconds = arrival.time - max(self.began, self.arrived.get(arrival.worker, 0.0))
        self.seen[arrival.worker] = (count + 1, mean + (seconds - mean) / (count + 1))
        self.arrived[arrival.worker] = arrival.time
        self._step_when_all_are_in(server)

    def on_join(self, server: Server, worker: int) -> None:
        """It is dealt jobs in the next round."""
        self._step_when_all_are_in(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """The round goes on without its jobs, which may have been the last ones."""
        self.seen.pop(worker, None)
        self._step_when_all_are_in(server)

    def stepsize_divisor(self, num_workers: int) -> float:
        """All gradients of a round are fresh."""
        return 1.0

    def _step_when_all_are_in(self, server: Server) -> None:
        if server.in_flight or not server.workers:
            return
        if self.total.count:
            server.step(self.total, self.stepsize.fresh(server), 1 / self.total.count)
            self.total.clear()
        self._begin_round(server)

    def _begin_round(self, server: Server) -> None:
        self.rounds += 1
        self.began = server.now
        for worker, jobs in self._allocation(list(server.workers)).items():
            for _ in range(jobs):
                server.assign(worker)

    def _allocation(self, workers: list[int]) -> dict[int, int]:
        """How many jobs each worker gets: the next one always goes to whom would finish it first."""
        new = [worker for worker in workers if worker not in self.seen][: self.batch]
        jobs = dict.fromkeys(new, 1)
        known = [worker for worker in workers if worker in self.seen] or workers
        bounds = {worker: self._lower_bound(worker) for worker in known}
        queue = [((jobs.get(worker, 0) + 1) * bounds[worker], jobs.get(worker, 0), worker) for worker in known]
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
        logarithm: float = log(2 * self.rounds**2) / count
        return max(0.0, mean * (1 - 4 * math.e * self.spread * (math.sqrt(logarithm) + logarithm)))
