"""ATA: adaptive task allocation, which learns the workers' speeds during training."""

from __future__ import annotations

import math
from dataclasses import field
from heapq import heapify, heapreplace
from typing import final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass
from nowait.numerics.elementary import log

MOST_JOBS = 1 << 24
"""Ordering this many gradients takes about a minute."""


@final
@method_dataclass
class ATA(Method):
    """Rounds of ``batch`` gradients, allocated so that the round is expected to end soonest; no gradient is wasted.

    Maranjyan, Saad, Richtárik and Orabona, "ATA: Adaptive Task Allocation for Efficient Resource Management in
    Distributed Machine Learning" (ICML 2025). Worker i's compute time is estimated by a lower confidence bound,

        (mean_i − 4e·α_i·(√(ln(2r²)/N_i) + ln(2r²)/N_i))₊,   α_i = spread·mean_i

    with N_i observations in round r, so that a worker that may be fast is tried again. Jobs are allocated one by one to
    the worker that would finish its jobs first. Workers that were not observed yet get one job each before that. While
    the bounds of some workers are 0, these workers get all the jobs: a slow worker that joins causes one or two long
    rounds. A round's step is along the mean of its gradients. Once the speeds are learned, the time is of the same
    order as that of Rennala SGD, with less work: no gradient is discarded. A job's time is measured from the worker's
    last arrival (or from the start of the round), so it includes communication.

    ``spread`` is how much a worker's times vary around their mean (their sub-exponential norm relative to the mean).
    The default suits workers of steady speed and is our choice. The authors' code uses 2, which is safe for any
    variation, but keeps the bounds at 0, and all workers at the same number of jobs, for hundreds or thousands of
    rounds.
    """

    stepsize: StepsizeOrFloat
    batch: int
    spread: float = 0.01
    total: GradientSum = field(init=False, repr=False, compare=False)
    rounds: int = field(init=False, repr=False, compare=False)
    seen: dict[int, tuple[int, float]] = field(init=False, repr=False, compare=False)
    """By worker: the number of observed times, and their mean."""
    arrived: dict[int, float] = field(init=False, repr=False, compare=False)
    """By worker: the time at which its last gradient arrived."""
    began: float = field(init=False, repr=False, compare=False)
    """The time at which the round started."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch = checks.at_least(1, self.batch, "batch", "a step needs at least one gradient")
        if self.batch > MOST_JOBS:
            raise ValueError(
                f"batch must be at most {MOST_JOBS:,}, got {self.batch}: every gradient of a round is ordered at once"
            )
        self.spread = checks.not_negative(self.spread, "spread", "it is how much times scatter around their mean")

    def start(self, server: Server) -> None:
        """Start the first round, without observations."""
        self.total, self.rounds, self.seen, self.arrived = server.sum(), 0, {}, {}
        self._begin_round(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the gradient and record its time; step if it is the last one of the round."""
        self.total.add(arrival, server.weight_of(arrival.worker))
        count, mean = self.seen.get(arrival.worker, (0, 0.0))
        seconds = arrival.time - max(self.began, self.arrived.get(arrival.worker, 0.0))
        self.seen[arrival.worker] = (count + 1, mean + (seconds - mean) / (count + 1))
        self.arrived[arrival.worker] = arrival.time
        self._step_when_all_are_in(server)

    def on_join(self, server: Server, worker: int) -> None:
        """Include the worker from the next round on."""
        self._step_when_all_are_in(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """Drop the worker's observations; step if the round waited for its jobs only."""
        self.seen.pop(worker, None)
        self._step_when_all_are_in(server)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: all gradients of a round are fresh."""
        return 1.0

    def _step_when_all_are_in(self, server: Server) -> None:
        if server.in_flight or not server.workers:
            return
        if self.total.count:
            server.step(self.total, self.stepsize.fresh(server), 1 / self.total.weight)
            self.total.clear()
        self._begin_round(server)

    def _begin_round(self, server: Server) -> None:
        self.rounds += 1
        self.began = server.now
        for worker, jobs in self._allocation(list(server.workers)).items():
            for _ in range(jobs):
                server.assign(worker)

    def _allocation(self, workers: list[int]) -> dict[int, int]:
        """Return the number of jobs per worker: each job goes to the worker that would finish it first."""
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
        """Return the lower confidence bound of the worker's compute time; 0 without observations."""
        if worker not in self.seen:
            return 0.0
        count, mean = self.seen[worker]
        logarithm: float = log(2 * self.rounds**2) / count
        return max(0.0, mean * (1 - 4 * math.e * self.spread * (math.sqrt(logarithm) + logarithm)))
