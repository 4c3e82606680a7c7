"""Helpers to test a method with a server, event by event."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from nowait.core import (
    Arrival,
    Assign,
    Cancel,
    Command,
    Event,
    GradientArrived,
    Log,
    Method,
    Resumed,
    Server,
    Ticket,
    WorkerLost,
)
from nowait.core.memory import namespace_of
from nowait.core.types import Vector


def a_server(method: Method, num_workers: int, dimension: int = 2, **parts: Any) -> Server:
    """Return a started server of a method with ``num_workers`` workers, at ``dimension`` params that are zero.

    ``parts`` are further arguments of ``nw.Server``, such as ``update``.
    """
    server = Server(method, np.zeros(dimension), num_workers, **parts)
    server.start()
    return server


def gradient_from(
    server: Server, worker: int, gradient: Vector | float = 1.0, time: float | None = None
) -> GradientArrived:
    """Return the event that a worker finishes its running ticket, with this gradient (a number fills all entries)."""
    ticket = server.in_flight.first_of(worker)
    if ticket is None:
        raise ValueError(f"worker {worker} has no ticket in flight")
    full_like = namespace_of(server.params).full_like
    values = full_like(server.params, gradient) if isinstance(gradient, float | int) else gradient
    return GradientArrived(ticket, values, server.now if time is None else time)


@final
class OverwritingLog:
    """Passes all on to another log, and fills each gradient and each unused point with NaN after ``on_arrival``.

    Engines use the memory of both again, so a method that keeps them without a copy works with other numbers.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.stepped, self.happened, self.noted = log.stepped, log.happened, log.noted

    def arrived(self, arrival: Arrival, live_workers: int) -> None:
        """Pass the arrival on, and overwrite its gradient, and the points of versions that are in use no longer."""
        self._log.arrived(arrival, live_workers)
        server = arrival.ledger
        if isinstance(server, Server):
            if isinstance(arrival.raw_gradient, server.memory.kind):
                arrival.raw_gradient[:] = math.nan
            held, versions = arrival.version_held, server._versions
            released = [held] if held is not None and held.references == 1 else []  # the server releases it next
            for version in [*versions.free, *released, *([versions.spare] if versions.spare else [])]:
                version.array[:] = math.nan


@final
class Assignments:
    """The ticket that each worker computes, as an engine knows it: from the commands of the server alone."""

    def __init__(self) -> None:
        self.by_worker: dict[int, Ticket] = {}

    def follow(self, event: Event | None, commands: list[Command]) -> None:
        """Take an event (None: the start) and its commands into account. Raise ``AssertionError`` if they disagree."""
        if isinstance(event, GradientArrived) and self.by_worker.get(event.ticket.worker) == event.ticket:
            del self.by_worker[event.ticket.worker]
        elif isinstance(event, WorkerLost):
            self.by_worker.pop(event.worker, None)
        elif isinstance(event, Resumed):
            self.by_worker.clear()
        for command in commands:
            if isinstance(command, Cancel):
                ticket = self.by_worker.pop(command.worker, None)
                assert ticket is not None, f"{command} is for a worker without an assigned ticket"
                assert command.tickets == (ticket.id,), f"{command} is not for {ticket}, which was assigned"
            elif isinstance(command, Assign):
                ticket = self.by_worker.setdefault(command.ticket.worker, command.ticket)
                assert ticket is command.ticket, f"{command} is for a worker that computes {ticket}"

    def check(self, server: Server) -> None:
        """Raise ``AssertionError`` unless each worker computes the first one of its tickets."""
        first = {worker: server.in_flight.first_of(worker) for worker in server.workers}
        expected = {worker: ticket for worker, ticket in first.items() if ticket is not None}
        assert self.by_worker == expected, f"by the commands {self.by_worker} are computed, by the books {expected}"


def check_invariants(server: Server) -> None:
    """Raise ``AssertionError`` if the server's bookkeeping is inconsistent. Reads private state, changes nothing."""
    versions = server._versions
    holders: dict[int, int] = {id(versions.current): 1}
    for ticket in server.in_flight.values():
        version = versions.by_ticket[ticket.id]
        assert version.number == ticket.version, f"{ticket} holds version {version.number}"
        assert ticket.worker in server.workers, f"{ticket} belongs to a worker that has left"
        assert ticket in server.in_flight.of(ticket.worker), f"{ticket} is not among its worker's tickets"
        holders[id(version)] = holders.get(id(version), 0) + 1
    for number, worker in versions.cancelled.items():
        assert worker in server.workers, f"ticket {number} is kept for a worker that has left"
        holders[id(versions.by_ticket[number])] = holders.get(id(versions.by_ticket[number]), 0) + 1
    assert not server.in_flight.keys() & versions.cancelled.keys(), "a cancelled ticket is in flight"
    expected = server.in_flight.keys() | versions.cancelled.keys()
    assert versions.by_ticket.keys() == expected, "the tickets with versions are not those in flight and those kept"
    queued = [ticket for worker in server.workers for ticket in server.in_flight.of(worker)]
    assert sorted(queued) == sorted(server.in_flight.values()), "the queues of the workers are not what is in flight"
    held = [*versions.by_ticket.values(), versions.current]
    for version in held:
        assert version.references == holders[id(version)], f"version {version.number} miscounts its references"
    distinct = {id(version) for version in held}
    spares = 0 if versions.spare is None else 1
    assert versions.num_slots == len(distinct) + len(versions.free) + spares, "a version was lost"
    assert id(versions.spare) not in distinct, "the spare is in use"
    assert not any(id(version) in distinct for version in versions.free), "a free version is in use"
    assert server.steps == versions.current.number
    assert server.num_workers == len(server.workers) == len(set(server.workers))
    assert server.memory.is_finite(server.params), "params are not finite"
    assert not isinstance(server.params, np.ndarray) or not server.params.flags.writeable
    oldest = server.in_flight.oldest()
    smallest = min((ticket.version for ticket in server.in_flight.values()), default=None)
    assert (oldest.version if oldest else None) == smallest
