"""Virtual clocks, which decide which running ticket arrives next, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import final

from nowait.core import Ticket

Finished = tuple[float, int, Ticket, float, float]
"""A finished ticket: (arrival time, ticket id, ticket, start time, compute seconds)."""


class Clock(ABC):
    """Holds the running tickets. A worker runs one ticket at a time; the server holds the queued ones."""

    @abstractmethod
    def start(self, ticket: Ticket, now: float) -> None:
        """Start a ticket on its worker at the time ``now``."""

    @abstractmethod
    def cancel(self, ticket: Ticket) -> None:
        """Remove a running ticket; it will not arrive."""

    @abstractmethod
    def pop(self, limit: float) -> Finished | None:
        """Remove and return the next ticket to arrive; None if there is none until the time ``limit``."""


@final
class HeapClock(Clock):
    """Orders tickets by (time, ticket id). Start, cancel and pop cost amortised O(log M)."""

    def __init__(self, timing: Callable[[int, int, float], tuple[float, float]]) -> None:
        self.timing = timing
        self._heap: list[Finished] = []
        self._cancelled: set[int] = set()

    def start(self, ticket: Ticket, now: float) -> None:
        """Draw the ticket's duration and add it to the heap."""
        compute_seconds, finish = self.timing(ticket.worker, ticket.job, now)
        heappush(self._heap, (finish, ticket.id, ticket, now, compute_seconds))

    def cancel(self, ticket: Ticket) -> None:
        """Mark the ticket as cancelled; rebuild the heap when half of it is, so that its size stays bounded."""
        self._cancelled.add(ticket.id)
        if len(self._cancelled) > len(self._heap) // 2 + 32:
            self._heap = [entry for entry in self._heap if entry[1] not in self._cancelled]
            heapify(self._heap)
            self._cancelled.clear()

    def pop(self, limit: float) -> Finished | None:
        """Remove and return the earliest ticket; None if it is after ``limit``."""
        heap = self._heap
        while self._cancelled and heap and heap[0][1] in self._cancelled:
            self._cancelled.remove(heappop(heap)[1])
        return heappop(heap) if heap and heap[0][0] <= limit else None


@final
class OrderClock(Clock):
    """Workers arrive in a given order that repeats, one per second; workers without a ticket are skipped."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order
        self._named = set(order)
        self._position = 0
        self._running: dict[int, tuple[Ticket, float]] = {}
        self._time = 0.0

    def start(self, ticket: Ticket, now: float) -> None:
        """Hold the ticket until its worker is next in the order."""
        self._time = max(self._time, now)
        if ticket.worker in self._named:
            self._running[ticket.worker] = (ticket, now)

    def cancel(self, ticket: Ticket) -> None:
        """Remove the worker's ticket."""
        self._running.pop(ticket.worker, None)

    def pop(self, limit: float) -> Finished | None:
        """Remove and return the ticket of the next worker in the order, one second after the previous arrival."""
        if not self._running or self._time + 1.0 > limit:
            return None
        while self._order[self._position] not in self._running:
            self._position = (self._position + 1) % len(self._order)
        ticket, started = self._running.pop(self._order[self._position])
        self._position = (self._position + 1) % len(self._order)
        self._time += 1.0
        return self._time, ticket.id, ticket, started, self._time - started
