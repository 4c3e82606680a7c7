"""What a method sees and holds while its plan is made: tickets, arrivals and sums without numbers in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from nowait.core import Outcome, Ticket
from nowait.core.sums import Coefficients, Held
from nowait.engines.simulator.plan import NotPlannable
from nowait.recording.rows import OUTCOME_CODES
from nowait.speeds import Finished

if TYPE_CHECKING:
    from nowait.engines.simulator.planner import Planner

CODE_OF_APPLIED, CODE_OF_HELD, CODE_OF_DROPPED = (
    OUTCOME_CODES[outcome] for outcome in (Outcome.APPLIED, Outcome.HELD, Outcome.DROPPED)
)


@final
class PlannedInFlight(Mapping[int, Ticket]):
    """The tickets of a plan, to a method as ``InFlight``: the running one of each worker, and those queued."""

    __slots__ = ("_by_age", "_newest", "queued", "running", "tickets")

    def __init__(self) -> None:
        self._by_age: list[tuple[int, int]] | None = None
        self._newest = -1
        """The newest ticket that ``_by_age`` knows of."""
        self.tickets: dict[int, Ticket] = {}
        self.running: dict[int, Ticket] = {}
        self.queued: dict[int, deque[Ticket]] = {}

    def of(self, worker: int) -> tuple[Ticket, ...]:
        """The tickets of a worker: the running one, then those queued behind it."""
        running = self.running.get(worker)
        return () if running is None else (running, *self.queued.get(worker, ()))

    def oldest(self) -> Ticket | None:
        """The ticket with the smallest version (of several, the one issued first).

        Kept in a heap from the first call on; what has left flight is taken off lazily.
        """
        tickets = self.tickets
        newest = next(reversed(tickets), -1)
        if self._by_age is None or len(self._by_age) > 2 * len(tickets) + 64:
            self._by_age = [(ticket.version, ticket.id) for ticket in tickets.values()]
            heapify(self._by_age)
        else:
            for number in range(self._newest + 1, newest + 1):
                if number in tickets:
                    heappush(self._by_age, (tickets[number].version, number))
        self._newest = max(self._newest, newest)
        while self._by_age and self._by_age[0][1] not in tickets:
            heappop(self._by_age)
        return tickets[self._by_age[0][1]] if self._by_age else None

    # For the planner

    def queue(self, ticket: Ticket) -> None:
        """Its worker is busy."""
        self.queued.setdefault(ticket[1], deque()).append(ticket)

    def next_of(self, worker: int) -> Ticket | None:
        """The worker is free: what was queued for it?"""
        queue = self.queued.get(worker)
        return queue.popleft() if queue else None

    def forget_queue(self, worker: int) -> int:
        """What is queued will not be computed: how many tickets?"""
        queue = self.queued.pop(worker, ())
        for ticket in queue:
            del self.tickets[ticket.id]
        return len(queue)

    # A mapping

    def __getitem__(self, ticket_id: int) -> Ticket:
        return self.tickets[ticket_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self.tickets)

    def __len__(self) -> int:
        return len(self.tickets)


@final
class FirstSteps:
    """Which step each held gradient first entered, and with which weight: completed in the trace at the end."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._weights: list[float] = []
        self._steps: list[tuple[int, int, float]] = []

    def add(self, gradients: list[tuple[Held, float]], step: int, stepsize: float) -> None:
        """These gradients, with these weights, entered this step."""
        self._rows += [held.row for held, _ in gradients]
        self._weights += [weight for _, weight in gradients]
        self._steps.append((len(gradients), step, stepsize))

    def write(self, arrivals: Any) -> None:
        """Complete their rows."""
        if self._rows:
            rows, steps = np.array(self._rows), np.array(self._steps)
            counts = steps[:, 0].astype(np.int64)
            arrivals["step"][rows] = np.repeat(steps[:, 1].astype(np.int64), counts)
            arrivals["weight"][rows] = self._weights
            arrivals["stepsize"][rows] = np.repeat(steps[:, 2], counts)


@final
class PlannedArrival:
    """An arrival whose gradient is not computed, to a method as ``Arrival``."""

    code = CODE_OF_DROPPED
    """The code of its outcome in the trace."""
    row_step = 0
    row_weight = 0.0
    row_stepsize = 0.0
    held_as: Held | None = None

    def __init__(self, finished: Finished, ticket: Ticket, delay: int, row: int) -> None:
        self._finished = finished
        self.ticket = ticket
        self.worker = ticket[1]
        self.delay = delay
        self.number = row

    @property
    def time(self) -> float:
        """When it arrived."""
        return self._finished[0]

    @property
    def started(self) -> float:
        """When the worker began with it."""
        return self._finished[3]

    @property
    def compute_seconds(self) -> float:
        """How long the worker computed."""
        return self._finished[4]

    @property
    def version(self) -> int:
        """How many steps the point contains."""
        return self.ticket.version

    @property
    def job(self) -> int:
        """How many tickets this worker number had before."""
        return self.ticket.job

    def __getattr__(self, name: str) -> NoReturn:
        raise NotPlannable


@final
class PlannedSum(Coefficients):
    """A sum without a vector. Its number is given to another one when nobody holds it any more."""

    __slots__ = ("number", "planner")

    def __init__(self, planner: Planner, number: int) -> None:
        super().__init__()
        self.planner = planner
        self.number = number

    def __del__(self) -> None:
        planner = getattr(self, "planner", None)  # a signal may have come before there was one
        if planner is not None:
            planner.free(self.number)

    @property
    def vector(self) -> NoReturn:
        """Not known yet."""
        raise NotPlannable

    def add(self, arrival: PlannedArrival, weight: float = 1.0) -> None:
        """As the server's."""
        self.note_add(self.planner.add(self.number, arrival, weight), weight)

    def merge(self, other: PlannedSum, weight: float = 1.0) -> None:
        """As the server's."""
        if other.planner is not self.planner:
            raise NotPlannable
        self.planner.merge(self.number, other.number, weight)
        self.note_merge(other, weight)

    def clear(self) -> None:
        """As the server's."""
        self.planner.clear(self.number)
        self.note_clear()
