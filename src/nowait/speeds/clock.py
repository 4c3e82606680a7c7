"""Virtual clocks: which running ticket arrives next, and when."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, final

from nowait.core import Ticket


class Finished(NamedTuple):
    """A ticket reached the server."""

    time: float
    ticket: Ticket
    started: float
    compute_seconds: float


class Clock(ABC):
    """Tickets that workers run. A worker runs one ticket at a time; queues are the engine's."""

    @abstractmethod
    def start(self, ticket: Ticket, now: float) -> None:
        """A worker begins with a ticket."""

    @abstractmethod
    def cancel(self, ticket: Ticket) -> None:
        """A running ticket will not arrive."""

    @abstractmethod
    def next_time(self) -> float:
        """When the next ticket arrives; infinity if none ever does."""

    @abstractmethod
    def pop(self) -> Finished:
        """The next ticket to arrive; only when ``next_time`` is finite."""


@final
class HeapClock(Clock):
    """Tickets ordered by (time, ticket id). Starting, cancelling and popping cost O(log M) amortised."""

    def __init__(self, timing: Callable[[int, int, float], tuple[float, float]]) -> None:
        self._timing = timing
        self._heap: list[tuple[float, int, Ticket, float, float]] = []
        self._cancelled: set[int] = set()

    def start(self, ticket: Ticket, now: float) -> None:
        """Draw its duration."""
        compute_seconds, finish = self._timing(ticket.worker, ticket.job, now)
        heappush(self._heap, (finish, ticket.id, ticket, now, compute_seconds))

    def cancel(self, ticket: Ticket) -> None:
        """Taken out lazily; rebuilt when half the heap is cancelled, so that slow tickets do not pile up."""
        self._cancelled.add(ticket.id)
        if len(self._cancelled) > len(self._heap) // 2 + 32:
            self._heap = [entry for entry in self._heap if entry[1] not in self._cancelled]
            heapify(self._heap)
            self._cancelled.clear()

    def next_time(self) -> float:
        """The earliest finish."""
        heap = self._heap
        while self._cancelled and heap and heap[0][1] in self._cancelled:
            self._cancelled.remove(heappop(heap)[1])
        return heap[0][0] if heap else math.inf

    def pop(self) -> Finished:
        """The earliest ticket."""
        finish, _, ticket, started, compute_seconds = heappop(self._heap)
        return Finished(finish, ticket, started, compute_seconds)


@final
class OrderClock(Clock):
    """Workers arrive in a given order, over and over; those without a ticket are passed over. One a second."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order
        self._named = set(order)
        self._place = 0
        self._running: dict[int, tuple[Ticket, float]] = {}
        self._time = 0.0

    def start(self, ticket: Ticket, now: float) -> None:
        """It waits for its worker's turn."""
        self._time = max(self._time, now)
        if ticket.worker in self._named:
            self._running[ticket.worker] = (ticket, now)

    def cancel(self, ticket: Ticket) -> None:
        """Its worker has none now."""
        self._running.pop(ticket.worker, None)

    def next_time(self) -> float:
        """A second after the last arrival."""
        return self._time + 1.0 if self._running else math.inf

    def pop(self) -> Finished:
        """The next worker of the order that has a ticket."""
        while self._order[self._place] not in self._running:
            self._place = (self._place + 1) % len(self._order)
        ticket, started = self._running.pop(self._order[self._place])
        self._place = (self._place + 1) % len(self._order)
        self._time += 1.0
        return Finished(self._time, ticket, started, self._time - started)
