"""The tickets that workers compute or have queued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import final

from nowait.core.messages import Ticket
from nowait.core.versions import Version


@final
class InFlight(Mapping[int, Ticket]):
    """Tickets by id, in the order of issue; also by worker, and the oldest one. Methods read it."""

    __slots__ = ("_by_age", "_tickets", "by_worker", "versions")

    def __init__(self) -> None:
        self._tickets: dict[int, Ticket] = {}
        self.versions: dict[int, Version] = {}
        """The version that each ticket is computed at, by ticket id."""
        self.by_worker: dict[int, list[Ticket]] = {}
        """The tickets of each worker: the running one, then those queued behind it."""
        self._by_age: list[tuple[int, int]] | None = None

    def of(self, worker: int) -> tuple[Ticket, ...]:
        """The tickets of a worker: the running one, then those queued behind it."""
        return tuple(self.by_worker.get(worker, ()))

    def first_of(self, worker: int) -> Ticket | None:
        """Return the ticket that a worker computes, or has to compute next; None if it has none."""
        tickets = self.by_worker.get(worker)
        return tickets[0] if tickets else None

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

    # For the server

    def add(self, ticket: Ticket, version: Version) -> None:
        """A ticket was issued; it holds its version."""
        ticket_id, worker = ticket[0], ticket[1]
        version.references += 1
        self._tickets[ticket_id] = ticket
        self.versions[ticket_id] = version
        mine = self.by_worker.get(worker)
        if mine is None:
            self.by_worker[worker] = [ticket]
        else:
            mine.append(ticket)
        if self._by_age is not None:
            heappush(self._by_age, (ticket.version, ticket_id))

    def take(self, ticket: Ticket) -> Version | None:
        """A ticket was finished: its version, whose reference the caller has now. None if it is not in flight."""
        ticket_id = ticket[0]
        known = self._tickets.get(ticket_id)
        if known is not ticket and known != ticket:
            return None
        del self._tickets[ticket_id]
        self.by_worker[ticket[1]].remove(ticket)
        return self.versions.pop(ticket_id)

    def take_all_of(self, worker: int) -> list[tuple[Ticket, Version]]:
        """Take out the tickets of a worker, oldest first."""
        tickets = self.by_worker.pop(worker, [])
        for ticket in tickets:
            del self._tickets[ticket.id]
        return [(ticket, self.versions.pop(ticket.id)) for ticket in tickets]

    # A mapping

    def __getitem__(self, ticket_id: int) -> Ticket:
        return self._tickets[ticket_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tickets)

    def __len__(self) -> int:
        return len(self._tickets)
