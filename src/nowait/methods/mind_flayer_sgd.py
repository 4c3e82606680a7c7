"""MindFlayer SGD: cancel a gradient that takes too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from heapq import heappop, heappush
from typing import final

import numpy as np

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, Ticket, checks, method_dataclass
from nowait.numerics.elementary import added

SAME = 1e-6
"""Workers with so nearly equal expected numbers of gradients have the same weight."""


@final
@method_dataclass
class MindFlayerSGD(Method):
    """In a round every worker makes ``trials`` attempts at one point; each is cancelled after ``timeout_seconds``.

    Maranjyan, Omar Shaikh Omar and Richtárik, "MindFlayer SGD: Efficient Parallel SGD in the Presence of Heterogeneous
    and Random Worker Compute Times" (UAI 2025). The step is along (1/B)·Σ of the gradients that arrived in time, with
    B = Σ p_i·trials_i and p_i the ``probability`` that an attempt of worker i finishes in time. As long as times do not
    depend on the samples this is unbiased; dividing by the number of arrivals would not be. Without ``probability``,
    p_i is the worker's share of attempts in time so far (counting at least one). For heavy-tailed compute times, where
    waiting for a full batch stalls. Timeouts, trials and probabilities are one value for all workers or one per worker;
    a worker with 0 trials is idle (unless no other worker is left).
    """

    stepsize: StepsizeOrFloat
    timeout_seconds: float | Sequence[float]
    trials: int | Sequence[int]
    probability: float | Sequence[float] | None = None
    total: GradientSum = field(init=False, repr=False, compare=False)
    planned: dict[int, int] = field(init=False, repr=False, compare=False)
    """By worker: its number of attempts in this round."""
    left_behind: float = field(init=False, repr=False, compare=False)
    """What the attempts of workers that left during this round add to B."""
    left: dict[int, int] = field(init=False, repr=False, compare=False)
    running: dict[int, int] = field(init=False, repr=False, compare=False)
    deadlines: list[tuple[float, int, int]] = field(init=False, repr=False, compare=False)
    made: dict[int, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("timeout_seconds", "trials", "probability"):
            if isinstance(getattr(self, name), Sequence | np.ndarray):
                checks.listed(getattr(self, name), name)
        for timeout in _values(self.timeout_seconds):
            checks.positive(timeout, "timeout_seconds", "every attempt would be cancelled immediately")
        for trials in _values(self.trials):
            checks.at_least(0, trials, "trials", "it counts a worker's tries in a round")
        if not any(_values(self.trials)):
            raise ValueError("trials must not all be 0: a round without tries makes no step")
        for probability in () if self.probability is None else _values(self.probability):
            checks.positive(probability, "probability", "a worker that is never in time does not help")
            if probability > 1:
                raise ValueError(f"probability must be at most 1, got {probability!r}")

    def start(self, server: Server) -> None:
        """Start the first round."""
        self.total, self.deadlines, self.made = server.sum(), [], {}
        self._begin_round(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the gradient, which arrived in time, and start the worker's next attempt, if it has one left."""
        self.total.add(arrival)
        self._spend(server, arrival.worker, in_time=1)

    def on_timer(self, server: Server) -> None:
        """Cancel the attempts that have timed out."""
        while self.deadlines and self.deadlines[0][0] <= server.now:
            _, worker, ticket_id = heappop(self.deadlines)
            if self.running.get(worker) == ticket_id:
                server.cancel(worker)
                self._spend(server, worker, in_time=0)

    def on_join(self, server: Server, worker: int) -> None:
        """Let the worker take part in the current round."""
        self.planned[worker] = self.left[worker] = int(_of(self.trials, worker))
        if self.left[worker] > 0:
            self._try(server, worker)
        else:
            self._end_round_if_all_tries_are_spent(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """Drop the worker's remaining attempts; end the round if it waited for them only."""
        tries_made = self.planned.get(worker, 0) - self.left.pop(worker, 0)
        self.left_behind += self._chance(worker) * max(0, tries_made)
        self.running.pop(worker, None)
        self._end_round_if_all_tries_are_spent(server)

    def on_reissue(self, server: Server, rejected: Ticket, ticket: Ticket) -> None:
        """Continue the attempt under the new ticket, with the same deadline."""
        self.running[ticket.worker] = ticket.id
        deadline = next(when for when, _, ticket_id in self.deadlines if ticket_id == rejected.id)
        heappush(self.deadlines, (deadline, ticket.worker, ticket.id))

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return 1: all gradients of a round are fresh."""
        return 1.0

    def why_no_step(self) -> str:
        """Say that attempts are cancelled too early."""
        return (
            f"Every attempt took longer than timeout_seconds={checks.shown(self.timeout_seconds)}: give a longer "
            f"timeout, such as twice the median time of a gradient"
        )

    def weighs_workers_equally(self, num_workers: int) -> bool:
        """Return True if a round is expected to have as many gradients in time of every worker."""
        if self.probability is None:
            return False
        expected = [_of(self.probability, worker) * _of(self.trials, worker) for worker in range(num_workers)]
        return min(expected) >= (1 - SAME) * max(expected)

    def _try(self, server: Server, worker: int) -> None:
        deadline = server.now + float(_of(self.timeout_seconds, worker))
        ticket = server.assign(worker)
        self.running[worker] = ticket.id
        heappush(self.deadlines, (deadline, worker, ticket.id))
        server.wake(deadline)

    def _spend(self, server: Server, worker: int, in_time: int) -> None:
        made = self.made.setdefault(worker, [0, 0])
        made[0] += in_time
        made[1] += 1
        self.running.pop(worker, None)
        self.left[worker] -= 1
        if self.left[worker] > 0:
            self._try(server, worker)
        else:
            self._end_round_if_all_tries_are_spent(server)

    def _end_round_if_all_tries_are_spent(self, server: Server) -> None:
        if self.running or not server.workers:
            return
        chances = (self._chance(worker) * self.planned[worker] for worker in server.workers)
        expected = added(chances, self.left_behind)
        if self.total.count and expected > 0:
            server.step(self.total, self.stepsize.fresh(server), 1 / expected)
        self.total.clear()
        self._begin_round(server)

    def _begin_round(self, server: Server) -> None:
        planned = {worker: int(_of(self.trials, worker)) for worker in server.workers}
        self.planned = planned if any(planned.values()) else dict.fromkeys(server.workers, 1)
        self.left, self.running, self.left_behind = dict(self.planned), {}, 0.0
        for worker, tries in self.planned.items():
            if tries > 0:
                self._try(server, worker)

    def _chance(self, worker: int) -> float:
        if self.probability is not None:
            return float(_of(self.probability, worker))
        in_time, tries = self.made.get(worker, (1, 1))
        return max(in_time, 1) / max(tries, 1)


def _values(values: float | Sequence[float]) -> Sequence[float]:
    return values if isinstance(values, Sequence | np.ndarray) else (values,)


def _of(values: float | Sequence[float], worker: int) -> float:
    return values[worker % len(values)] if isinstance(values, Sequence | np.ndarray) else values
