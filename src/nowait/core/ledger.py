"""The bookkeeping of a run, shared by the server and the simulator's planner.

A ``Ledger`` knows the tickets in flight, the live workers, how many steps and gradients there were, and which fields
each arrival gets in the trace. The verbs of a method are defined here, once. What a verb does to vectors is left to the
subclass: ``Server`` computes, ``Planner`` writes instructions for compiled code. So a method behaves the same in both.

A verb first checks the gradient being handled (a bad one ends ``on_arrival`` by an exception), then its arguments, then
lets the subclass act, and changes the books last. So a verb that raises because of its arguments or of the gradient has
changed nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, final

import numpy as np

from nowait.core.log import APPLIED, DROPPED, HELD, Log
from nowait.core.membership import WorkerSet
from nowait.core.memory import memory_of
from nowait.core.messages import GradientArrived, Resumed, Ticket, TimerFired, WorkerJoined, WorkerLost
from nowait.core.notes import checked_note
from nowait.core.randomness import CounterRandom
from nowait.core.sums import BaseSum, Held
from nowait.core.types import Integers, Vector
from nowait.core.versions import Version

if TYPE_CHECKING:
    from nowait.core.method import Method

INFINITY = math.inf
new = tuple.__new__
"""Creates a NamedTuple in half the time of its own constructor; used where one is created per gradient."""


@final
class InFlight(Mapping[int, Ticket]):
    """The tickets in flight by id, in the order of issue; also by worker, and the oldest one. Methods read it.

    A worker runs one ticket at a time; its other tickets are queued, first in, first out.
    """

    __slots__ = ("by_age", "first_new", "queued", "running", "tickets")

    def __init__(self) -> None:
        self.tickets: dict[int, Ticket] = {}
        """All tickets in flight, by id."""
        self.running: dict[int, Ticket] = {}
        """The first ticket of each worker that has any, by worker."""
        self.queued: dict[int, deque[Ticket]] = {}
        """The further tickets, by worker; queues may be empty. The dictionary is empty until a ticket is queued."""
        self.by_age: list[tuple[int, int]] | None = None
        """A heap of (version, ticket id); None until ``oldest`` is called."""
        self.first_new = 0
        """The id of the first ticket that was, or will be, issued in the event being handled."""

    def of(self, worker: int) -> tuple[Ticket, ...]:
        """The tickets of a worker: the running one, then the queued ones."""
        running = self.running.get(worker)
        if running is None:
            return ()
        queue = self.queued.get(worker)
        return (running, *queue) if queue else (running,)

    def first_of(self, worker: int) -> Ticket | None:
        """The running ticket of a worker; None if it has no tickets."""
        return self.running.get(worker)

    def oldest(self) -> Ticket | None:
        """The ticket with the smallest version (of several, the one issued first).

        A heap is kept from the first call on. Tickets that have left flight are removed from it when they come to its
        top, so a call takes O(log M) amortised.
        """
        heap, tickets = self.by_age, self.tickets
        if heap is None or len(heap) > 2 * len(tickets) + 64:
            heap = self.by_age = [(ticket.version, ticket.id) for ticket in tickets.values()]
            heapify(heap)
        while heap and heap[0][1] not in tickets:
            heappop(heap)
        return tickets[heap[0][1]] if heap else None

    # For the ledger

    def queue(self, ticket: Ticket) -> None:
        """Queue a ticket whose worker has another one. (``Ledger.assign`` adds the others itself: a call costs 5 %.)"""
        worker = ticket[1]
        if worker in self.queued:
            self.queued[worker].append(ticket)
        else:
            self.queued[worker] = deque((ticket,))

    def take(self, ticket: Ticket) -> bool:
        """Remove a finished ticket; the next one of its worker, if any, is running then. False if not in flight."""
        known = self.tickets.get(ticket[0])
        if known is None or (known is not ticket and known != ticket):
            return False
        worker, running = known[1], self.running
        queue = self.queued.get(worker) if self.queued else None
        del self.tickets[known[0]]
        if not queue:
            del running[worker]
        elif running[worker] is known:
            running[worker] = queue.popleft()
        else:
            queue.remove(known)
        return True

    def successor(self, ticket: Ticket) -> Ticket | None:
        """Return the ticket that runs because this one was taken; None if none does.

        A worker's tickets have ascending ids. So a running one that is older was running before.
        """
        running = self.running.get(ticket[1])
        return None if running is None or running[0] < ticket[0] else running

    def put_back(self, ticket: Ticket) -> None:
        """Put a ticket back that was the running one of its worker when it was taken."""
        queued = self.running.get(ticket[1])
        if queued is not None:
            self.queued[ticket[1]].appendleft(queued)
        self.running[ticket[1]] = self.tickets[ticket[0]] = ticket
        self.by_age = None

    def take_all_of(self, worker: int) -> tuple[Ticket, ...]:
        """Remove all tickets of a worker. Returns the running one, then the queued ones."""
        running = self.running.pop(worker, None)
        if running is None:
            return ()
        del self.tickets[running[0]]
        if not self.queued:
            return (running,)
        queue = self.queued.pop(worker, ())
        for ticket in queue:
            del self.tickets[ticket[0]]
        return (running, *queue)

    # A mapping

    def __getitem__(self, ticket_id: int) -> Ticket:
        return self.tickets[ticket_id]

    def __contains__(self, ticket_id: object) -> bool:
        return ticket_id in self.tickets

    def __iter__(self) -> Iterator[int]:
        return iter(self.tickets)

    def __len__(self) -> int:
        return len(self.tickets)


@final
class Arrival:
    """A finished gradient that reached the server.

    ``delay`` is the index of the step this gradient would make, minus its version: 1 means fresh.
    ``gradient`` and ``point`` are read-only and valid only inside ``on_arrival``. Like a verb, reading the gradient
    or its norm checks it first: a bad one ends ``on_arrival`` there.
    """

    # What became of it. The defaults are in the class because an arrival is created once per gradient.
    outcome = DROPPED
    step = 0
    weight = 0.0
    stepsize = 0.0
    logged_norm = 0.0
    held: Held | None = None

    def __init__(self, event: GradientArrived, delay: int, row: int, version: Version | None, ledger: Ledger) -> None:
        self.event = event
        self.ledger = ledger
        self.ticket = ticket = event[0]
        self.raw_gradient: Any = event[1]
        self.worker = ticket[1]
        self.delay = delay
        self.row = row
        self.version_held = version

    @property
    def time(self) -> float:
        """When it arrived."""
        return self.event.time

    @property
    def version(self) -> int:
        """How many steps the point contains that the gradient was computed at."""
        return self.ticket.version

    @property
    def job(self) -> int:
        """How many tickets this worker number had before."""
        return self.ticket.job

    @property
    def started(self) -> float:
        """When the worker started to compute it."""
        return self.ticket.time if self.event.started is None else self.event.started

    @property
    def compute_seconds(self) -> float:
        """How long the worker computed."""
        seconds = self.event.compute_seconds
        return self.time - self.started if seconds is None else seconds

    @property
    def gradient(self) -> Vector:
        """A read-only view of the gradient, valid only inside ``on_arrival``."""
        if self.version_held is None:
            raise ValueError(f"the gradient of {self.ticket} is no longer available: use it inside on_arrival only")
        self.ledger._check_gradient()
        view: Vector = memory_of(self.raw_gradient).read_only(self.raw_gradient)
        return view

    @property
    def gradient_norm(self) -> float:
        """The norm of the gradient."""
        self.ledger._check_gradient()
        return self.logged_norm

    @property
    def point(self) -> Vector:
        """The params that the gradient was computed at, read-only and valid only inside ``on_arrival``."""
        if self.version_held is None:
            raise ValueError(f"the point of {self.ticket} is no longer available: use it inside on_arrival only")
        return self.version_held.point

    def __repr__(self) -> str:
        return f"Arrival({self.ticket}, delay={self.delay}, time={self.time})"


@final
@dataclass(slots=True)
class Counts:
    """How many gradients and tickets there were, by what became of them."""

    gradients: int = 0
    dropped: int = 0
    rejected: int = 0
    late: int = 0
    lost: int = 0
    cancelled: int = 0


class Ledger(ABC):
    """The state that a method reads and the verbs that it calls."""

    items_of: Callable[[int], int] | None = None
    """How many items a worker's gradients are the means of; None: those of all workers have as many."""

    def __init__(self, method: Method, workers: Iterable[int], *, seed: int, log: Log) -> None:
        self.method = method
        self.workers = WorkerSet(workers)
        """The live workers."""
        self.num_workers = len(self.workers)
        """The live number of workers, M."""
        self.in_flight = InFlight()
        """The tickets in flight, by id."""
        self.num_tickets = 0
        """How many tickets were issued."""
        self.steps = 0
        """How many steps were made."""
        self.now = 0.0
        """The time of the event being handled."""
        self.stepped_at = 0.0
        """The time of the latest step."""
        self.counts = Counts()
        self.random = CounterRandom(seed, "server")
        """Randomness for the method; counter-based, so that a replay draws the same numbers."""
        self.diverged: str | None = None
        """Why the run cannot continue, once params or gradients stopped being finite."""
        self._log = log
        self._rows = 0
        """How many arrivals were logged."""
        self._jobs: dict[int, int] = {}
        """How many tickets each worker number has had."""
        self._arrival: Arrival | None = None
        """The arrival being handled."""
        self._unchecked: Arrival | None = None
        """The same, until its gradient has been checked."""
        self._weighs_last: bool | float = False
        """Whether the latest step was made along a sum, so that the last params count once in an average.

        If the run was resumed since, it is their weight, which the method cannot tell any more.
        """

    def jobs_of(self, worker: int) -> int:
        """How many tickets a worker number has had."""
        return self._jobs.get(worker, 0)

    def delay_of(self, ticket: Ticket) -> int:
        """The delay of a ticket: the number of the next step, minus the version its gradient is computed at.

        So a gradient at the current params has delay 1. This is the definition that everything else refers to.
        """
        return self.steps + 1 - ticket[2]

    def weight_of(self, worker: int) -> float:
        """Return the weight of a worker's gradients in a mean over items, relative to those of worker 0.

        It is 1 if the gradients of all workers are means over as many items, or of data of their own.
        """
        return 1.0 if self.items_of is None else self.items_of(worker) / self.items_of(0)

    # The verbs of a method

    def apply(self, arrival: Arrival, stepsize: float, direction: Vector | None = None) -> None:
        """Make one step along the gradient of this arrival, or along a direction made from it."""
        if arrival is not self._arrival:
            raise _not_open(arrival)
        if direction is not None and self._unchecked is not None:
            self._check_gradient()
        if not 0.0 <= stepsize < INFINITY:
            raise _bad_stepsize(stepsize)
        self._step_along_gradient(arrival, stepsize, direction)
        self.steps = step = self.steps + 1
        self.stepped_at = self.now
        self._weighs_last = False
        arrival.outcome = APPLIED
        if arrival.step == 0:
            arrival.step, arrival.weight, arrival.stepsize = step, 1.0, stepsize
        if arrival.held is not None:
            arrival.held.stepped = True

    @abstractmethod
    def sum(self) -> BaseSum:
        """Return a sum of gradients, empty at first."""

    def step(self, total: Any, stepsize: float, scale: float = 1.0) -> None:
        """Make one step along ``scale * total``."""
        if self._unchecked is not None:
            self._check_gradient()
        if not total.belongs_to(self):
            raise ValueError("a sum of another server cannot make a step of this one")
        if not 0.0 <= stepsize < INFINITY:
            raise _bad_stepsize(stepsize)
        self._step_along_sum(total, stepsize, scale)
        self.steps += 1
        self.stepped_at = self.now
        self._weighs_last = True
        weights, arrival = total.take_first_steps(scale), self._arrival
        if arrival is not None and arrival.row in weights:
            arrival.step, arrival.weight, arrival.stepsize = self.steps, weights.pop(arrival.row), stepsize
        if weights:
            self._log.stepped(weights, self.steps, stepsize)

    def assign(self, worker: int, at: Arrival | None = None) -> Ticket:
        """Give a worker a ticket at the current params, or at the point of the arrival being handled.

        For a busy worker it is queued, and assigned when those before it have arrived.
        """
        if self._unchecked is not None:
            self._check_gradient()
        if worker not in self.workers.places:
            raise ValueError(f"cannot assign to worker {worker}: it is not among the live workers")
        if at is not None and at is not self._arrival:
            raise _not_open(at)
        jobs, number = self._jobs, self.num_tickets
        job = jobs.get(worker, 0)
        jobs[worker] = job + 1
        self.num_tickets = number + 1
        ticket = new(Ticket, (number, worker, self.steps if at is None else at.ticket[2], job, self.now))
        in_flight = self.in_flight
        in_flight.tickets[number] = ticket
        if in_flight.by_age is not None:
            heappush(in_flight.by_age, (ticket[2], number))
        if worker in in_flight.running:
            in_flight.queue(ticket)
            self._queued(ticket, at)
        else:
            in_flight.running[worker] = ticket
            self._assigned(ticket, at)
        return ticket

    def cancel(self, worker: int) -> None:
        """Cancel all tickets of a worker, running and queued; their gradients will be ignored if they arrive."""
        if self._unchecked is not None:
            self._check_gradient()
        tickets = self.in_flight.take_all_of(worker)
        if tickets:
            self.counts.cancelled += len(tickets)
            self._removed(tickets, cancelled=True)

    def wake(self, at: float) -> None:
        """Schedule a call of ``on_timer`` at this time."""
        if self._unchecked is not None:
            self._check_gradient()
        if math.isnan(at):
            raise ValueError("cannot wake at time nan")
        self._set_timer(max(at, self.now))

    def note(self, kind: str, numbers: Mapping[str, float]) -> None:
        """Write a decision and the numbers behind it into the trace: ``server.note("bucket", {"size": 4})``.

        It changes nothing in the run. Live views and pages show the latest note.
        """
        if self._unchecked is not None:
            self._check_gradient()
        self._log.noted(checked_note(self._rows, self.now, kind, numbers))

    # For sums

    def hold(self, arrival: Arrival) -> Held:
        """Return the record of the arrival's gradient, which is about to be added to a sum."""
        if arrival is not self._arrival:
            raise _not_open(arrival)
        if self._unchecked is not None:
            self._check_gradient()
        held = arrival.held
        if held is None:
            held = arrival.held = Held(arrival.row, arrival.step > 0)
        if arrival.outcome is DROPPED:
            arrival.outcome = HELD
        return held

    # Events

    def _record(self, arrival: Arrival) -> None:
        """Log an arrival after it was handled."""
        self._rows += 1
        self._log.arrived(arrival, self.num_workers)

    def _record_valid(self, arrival: Arrival) -> None:
        """Count and log an arrival with a valid gradient."""
        counts = self.counts
        counts.gradients += 1
        if arrival.outcome is DROPPED:
            counts.dropped += 1
        self._rows += 1
        self._log.arrived(arrival, self.num_workers)

    def _accept(self, event: WorkerJoined | WorkerLost | TimerFired | Resumed) -> None:
        """Log an event other than an arrival, and update the workers and tickets."""
        self.now = event.time
        self._log.happened(event)
        if isinstance(event, WorkerJoined):
            self.workers.add(event.worker)
            self.num_workers += 1
        elif isinstance(event, WorkerLost):
            self.workers.remove(event.worker)
            self.num_workers -= 1
            self._lose_tickets(event.worker)
        elif isinstance(event, Resumed):
            for worker in self.workers:
                self._lose_tickets(worker)

    def _lose_tickets(self, worker: int) -> None:
        tickets = self.in_flight.take_all_of(worker)
        if tickets:
            self.counts.lost += len(tickets)
            self._removed(tickets, cancelled=False)

    # The end of a run, for averaging outputs

    def _weigh_in_flight(self) -> None:
        """Give the gradients still in flight their weights in the output, as the paper's appendix does.

        A method that steps along sums has no stepsize of its own for each gradient in flight: the last params
        count once, as the point its next step would start from.
        """
        if self.steps == 0:
            return
        weight = self._weight_of_last()
        if weight is not None:
            self._weigh_pending(None, weight)
            return
        tickets = list(self.in_flight.values())
        versions = np.array([ticket.version for ticket in tickets], np.int64)
        for ticket, delay in zip(tickets, delays_at_end(versions, self.steps).tolist(), strict=True):
            self._weigh_pending(ticket, self.method.pending_stepsize(self, delay))  # type: ignore[arg-type]

    def _weight_of_last(self) -> float | None:
        """Return the weight of the last params if the method steps along sums; None for other methods."""
        if self._weighs_last is False:
            return None
        if self._weighs_last is True:
            return float(self.method.pending_stepsize(self, 1))  # type: ignore[arg-type]
        return self._weighs_last

    # What a subclass does with vectors, tickets and timers

    @abstractmethod
    def _check_gradient(self) -> None:
        """Check the gradient of the arrival being handled, if that is still to be done. Reading a gradient calls it."""

    @abstractmethod
    def _step_along_gradient(self, arrival: Arrival, stepsize: float, direction: Vector | None) -> None:
        """Change params by a step along the gradient of an arrival, or along a direction."""

    @abstractmethod
    def _step_along_sum(self, total: Any, stepsize: float, scale: float) -> None:
        """Change params by a step along ``scale * total``."""

    @abstractmethod
    def _assigned(self, ticket: Ticket, at: Arrival | None) -> None:
        """Let a worker start with a new ticket, at the current params or at the point of an arrival."""

    @abstractmethod
    def _queued(self, ticket: Ticket, at: Arrival | None) -> None:
        """Keep the point of a new ticket, whose worker has others to compute before."""

    @abstractmethod
    def _removed(self, tickets: tuple[Ticket, ...], *, cancelled: bool) -> None:
        """Release the tickets of one worker, which were cancelled or lost. The first one was running."""

    @abstractmethod
    def _set_timer(self, at: float) -> None:
        """Schedule a ``TimerFired`` event at this time."""

    @abstractmethod
    def _weigh_pending(self, ticket: Ticket | None, stepsize: float) -> None:
        """Add the point of a ticket (None: the current params) to the output, with the weight of this stepsize."""


def delays_at_end(versions: Integers, steps: int) -> Integers:
    """The delays of gradients still in flight after the last step, by which averaging outputs weigh them."""
    return np.maximum(1, steps - versions)


def _not_open(arrival: Arrival) -> ValueError:
    return ValueError(f"{arrival} is not being handled now: use an arrival inside its on_arrival only")


def _bad_stepsize(stepsize: float) -> ValueError:
    return ValueError(f"a step needs a finite stepsize of at least 0, got {stepsize!r}")
