"""A server to try a method on, by hand, event by event."""

from __future__ import annotations

from typing import Any

import numpy as np

from nowait.core import GradientArrived, Method, Server
from nowait.core.types import Vector


def a_server(method: Method, num_workers: int, dimension: int = 2, **parts: Any) -> Server:
    """A started server at zero params."""
    server = Server(method, np.zeros(dimension), num_workers, **parts)
    server.start()
    return server


def gradient_from(
    server: Server, worker: int, gradient: Vector | float = 1.0, time: float | None = None
) -> GradientArrived:
    """The event of a worker finishing its oldest ticket, with this gradient (a number: that in every entry)."""
    tickets = server.in_flight.of(worker)
    if not tickets:
        raise ValueError(f"worker {worker} has no ticket in flight")
    values = np.full_like(server.params, gradient) if isinstance(gradient, float | int) else gradient
    return GradientArrived(tickets[0], values, server.now if time is None else time)


def check_invariants(server: Server) -> None:
    """Raise ``AssertionError`` unless the server's bookkeeping fits together. Looks inside, changes nothing."""
    versions = server._versions
    holders: dict[int, int] = {id(versions.current): 1}
    for ticket in server.in_flight.values():
        version = versions.by_ticket[ticket.id]
        assert version.number == ticket.version, f"{ticket} holds version {version.number}"
        assert ticket.worker in server.workers, f"{ticket} belongs to a worker that is gone"
        assert ticket in server.in_flight.of(ticket.worker), f"{ticket} is not among its worker's tickets"
        holders[id(version)] = holders.get(id(version), 0) + 1
    held = [*versions.by_ticket.values(), versions.current]
    for version in held:
        assert version.references == holders[id(version)], f"version {version.number} miscounts its references"
    distinct = {id(version) for version in held}
    assert versions.num_slots == len(distinct) + len(versions.free) + 1, "a version was lost"
    assert id(versions.spare) not in distinct, "the spare is in use"
    assert not any(id(version) in distinct for version in versions.free), "a free version is in use"
    assert server.steps == versions.current.number
    assert server.num_workers == len(server.workers) == len(set(server.workers))
    assert np.isfinite(server.params).all(), "params are not finite"
    assert not server.params.flags.writeable
    oldest = server.in_flight.oldest()
    smallest = min((ticket.version for ticket in server.in_flight.values()), default=None)
    assert (oldest.version if oldest else None) == smallest
