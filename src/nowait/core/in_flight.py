"""The tickets that workers compute or have queued."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop
from typing import final

from nowait.core.messages import Ticket


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
