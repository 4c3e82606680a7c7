"""Virtual clocks: which running ticket arrives next, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import final

from nowait.core import Ticket

Finished = tuple[float, int, Ticket, float, float]
"""A ticket that reached the server: (time, ticket id, ticket, time it was started, seconds computed)."""


class Clock(ABC):
    """Tickets that workers run. A worker runs one ticket at a time; queues are the engine's."""

    @abstractmethod
    def start(self, ticket: Ticket, now: float) -> None:
        """A worker begins with a ticket."""

    @abstractmethod
    def cancel(self, ticket: Ticket) -> None:
        """A running ticket will not arrive."""

    @abstractmethod
    def pop(self, limit: float) -> Finished | None:
        """The next ticket to arrive, if that is not after ``limit``."""


@final
class HeapClock(Clock):
    """Tickets ordered by (time, ticket id). Starting, cancelling and popping cost O(log M) amortised."""

    def __init__(self, timing: Callable[[int, int, float], tuple[float, float]]) -> None:
        self.timing = timing
        self._heap: list[Finished] = []
        self._cancelled: set[int] = set()

    def start(self, ticket: Ticket, now: float) -> None:
        """Draw its duration."""
        compute_seconds, finish = self.timing(ticket.worker, ticket.job, now)
        heappush(self._heap, (finish, ticket.id, ticket, now, compute_seconds))

    def cancel(self, ticket: Ticket) -> None:
        """Taken out lazily; rebuilt when half the heap is cancelled, so that slow tickets do not pile up."""
        self._cancelled.add(ticket.id)
        if len(self._cancelled) > len(self._heap) // 2 + 32:
            self._heap = [entry for entry in self._heap if entry[1] not in self._cancelled]
            heapify(self._heap)
            self._cancelled.clear()

    def pop(self, limit: float) -> Finished | None:
        """The earliest ticket."""
        heap = self._heap
        while self._cancelled and heap and heap[0][1] in self._cancelled:
            self._cancelled.remove(heappop(heap)[1])
        return heappop(heap) if heap and heap[0][0] <= limit else None


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

    def pop(self, limit: float) -> Finished | None:
        """The next worker of the order that has a ticket, a second after the last one."""
        if not self._running or self._time + 1.0 > limit:
            return None
        while self._order[self._place] not in self._running:
            self._place = (self._place + 1) % len(self._order)
        ticket, started = self._running.pop(self._order[self._place])
        self._place = (self._place + 1) % len(self._order)
        self._time += 1.0
        return self._time, ticket.id, ticket, started, self._time - started
