"""The tickets that workers compute or have queued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from nowait.core.messages import Ticket


class InFlight(Mapping[int, Ticket]):
    """Tickets by id, in the order of issue; also by worker, and the oldest one."""

    __slots__ = ("_by_age", "_by_worker", "_tickets")

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}
        self._by_worker: dict[int, list[Ticket]] = {}
        self._by_age: list[tuple[int, int]] | None = None

    def add(self, ticket: Ticket) -> None:
        """A ticket was issued."""
        self._tickets[ticket.id] = ticket
        mine = self._by_worker.get(ticket.worker)
        if mine is None:
            self._by_worker[ticket.worker] = [ticket]
        else:
            mine.append(ticket)
        if self._by_age is not None:
            heappush(self._by_age, (ticket.version, ticket.id))

    def remove(self, ticket: Ticket) -> None:
        """A ticket was finished."""
        del self._tickets[ticket.id]
        self._by_worker[ticket.worker].remove(ticket)

    def remove_all_of(self, worker: int) -> list[Ticket]:
        """Take out the tickets of a worker, oldest first."""
        tickets = self._by_worker.pop(worker, [])
        for ticket in tickets:
            del self._tickets[ticket.id]
        return tickets

    def of(self, worker: int) -> tuple[Ticket, ...]:
        """The tickets of a worker: the running one, then those queued behind it."""
        return tuple(self._by_worker.get(worker, ()))

    def oldest(self) -> Ticket | None:
        """The ticket with the smallest version (of several, the one issued first).

        Kept in a heap from the first call on; what has left flight is taken off lazily, so a call costs
        O(log M) amortised.
        """
        heap = self._by_age
        if heap is None or len(heap) > 2 * len(self._tickets) + 64:
            heap = self._by_age = [(ticket.version, ticket.id) for ticket in self._tickets.values()]
            heapify(heap)
        while heap and heap[0][1] not in self._tickets:
            heappop(heap)
        return self._tickets[heap[0][1]] if heap else None

    def __getitem__(self, ticket_id: int) -> Ticket:
        return self._tickets[ticket_id]

    def get(self, ticket_id: int, default: Ticket | None = None) -> Ticket | None:  # type: ignore[override]
        """The ticket with this id, or the default (quicker than the inherited one)."""
        return self._tickets.get(ticket_id, default)

    def __iter__(self) -> Iterator[int]:
        return iter(self._tickets)

    def __len__(self) -> int:
        return len(self._tickets)
