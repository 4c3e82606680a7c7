"""Decides about the hosts of a run: which are lost, and how many more to ask for. Times are arguments."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from nowait.engines.cluster.back_off import BackOff
from nowait.engines.network.remote import RemotePool
from nowait.engines.network.silence import Silence

SECONDS_BETWEEN_REQUESTS = 0.5
SECONDS_TO_SAY_WHY = 3.0
"""How long to wait, after a connection broke, for Ray to say why the host exited."""
STUCK_SECONDS = 30.0
"""A host that has not connected for this long waits for resources: others may be started elsewhere instead."""
FULL_SECONDS = 120.0
"""How long a node is paused if another job took its resources."""


@final
@dataclass(eq=False)
class HostRecord:
    """A host that was asked for."""

    place: int
    node: str
    """The name of the node, used in messages."""
    node_id: str
    size: int
    """How many workers it runs at most."""
    since: float
    """When it was asked for; later when it became ready."""
    actor: Any = None
    ended: Future[str] = field(default_factory=Future)
    """Done when the actor has exited."""
    connected: bool = False
    """True once it has sent something: it runs, and loads the problem."""
    ready: bool = False
    leaving: bool = False
    """True if it will exit soon: it gets no more workers, and its end is not a failure."""
    cancelled: str = ""
    """Why it was cancelled before it ran, if it was."""
    delivered: bool = False
    """On the driver's node: True if the workers of any host there have delivered a gradient."""
    is_local: bool = False
    """True if it runs on the driver's node and shares memory with the server."""
    remote: RemotePool | None = None
    """Its workers, if they are on another node and the host is ready."""
    disconnected: tuple[float, str] | None = None
    """When its connection broke, and why."""

    @property
    def identity(self) -> bytes:
        """The name by which its messages are recognised."""
        return str(self.place).encode()


class Request(NamedTuple):
    """What to ask for."""

    workers: int
    """For how many workers hosts are missing."""
    total: int
    """How many workers all hosts are to have."""
    paused: frozenset[str] = frozenset()
    """The nodes where no host may be started now."""
    stuck: tuple[HostRecord, ...] = ()
    """Hosts that wait for resources. ``workers`` includes theirs: they are cancelled if others are started instead."""


@final
class HostTable:
    """The hosts of a run, and the failures of their nodes."""

    def __init__(
        self,
        *,
        start_seconds: float,
        heartbeat_seconds: float,
        bytes_per_gradient: int,
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        self._start_seconds, self._silence = start_seconds, Silence(heartbeat_seconds)
        self._stuck_seconds = stuck_seconds
        self._bytes_per_gradient = bytes_per_gradient
        self.by_place: dict[int, HostRecord] = {}
        self.failures_in_a_row = 0
        """How many hosts in a row were lost before they were useful."""
        self._now = 0.0
        self._back_off = BackOff(lambda: self._now)
        self._ask_after = 0.0

    def add(self, hosts: Iterable[HostRecord]) -> None:
        """Add hosts that were asked for."""
        self.by_place |= {host.place: host for host in hosts}

    def of(self, identity: bytes) -> HostRecord | None:
        """Return the host with this identity; None if it is unknown or was given up."""
        return next((host for host in self.by_place.values() if host.identity == identity), None)

    def is_ready(self, host: HostRecord, now: float) -> None:
        """Note that workers can be started on a host."""
        host.ready, host.since = True, now

    def disconnected(self, identity: bytes, cause: str, now: float) -> None:
        """Note that the connection of a host broke. It will exit, and Ray may say why."""
        host = self.of(identity)
        if host is not None:
            host.disconnected = (now, cause)

    def leave(self, host: HostRecord, seconds: float, now: float) -> None:
        """Note that a host exits within so many seconds. Until then no other is started on its node."""
        self._now = now
        host.leaving = True
        self._back_off.pause(host.node_id, seconds)

    def lose(self, host: HostRecord, now: float) -> None:
        """Remove a host that is gone. Unless it was to go, its node is paused."""
        self._now = now
        del self.by_place[host.place]
        if host.cancelled:
            self._back_off.pause(host.node_id, FULL_SECONDS)
        if host.cancelled or host.leaving:
            return
        ready_seconds = now - host.since if host.ready else 0.0
        delivered = host.delivered or (host.remote is not None and host.remote.delivered)
        useful = self._back_off.lost(host.node_id, ready_seconds=ready_seconds, delivered=delivered)
        self.failures_in_a_row = 1 if useful else self.failures_in_a_row + 1

    def overdue(self, now: float) -> list[tuple[HostRecord, str]]:
        """Return the hosts that did not start in time, are disconnected or were silent for too long, with reasons."""
        self._silence.look(now)
        found = []
        for host in self.by_place.values():
            if not host.ready and now - host.since > self._start_seconds:
                found.append((host, f"it did not start within {self._start_seconds:.0f} s"))
            elif host.disconnected is not None and now - host.disconnected[0] > SECONDS_TO_SAY_WHY:
                found.append((host, f"its connection is gone: {host.disconnected[1]}"))
            elif host.ready and host.remote is not None:
                silent = self._silence.seconds(host.remote.last_message, now)
                if silent > self._silence.longest(host.size * self._bytes_per_gradient):
                    found.append((host, f"it was silent for {silent:.0f} s"))
        return found

    def request(self, missing: float, now: float) -> Request | None:
        """Return what to ask for now; None if nothing is missing or it is not time to ask.

        ``missing`` workers have no place and no room in a host that is ready.
        """
        self._now = now
        stuck = tuple(host for host in self.by_place.values() if self._is_stuck(host, now))
        expected = [host for host in self.by_place.values() if not host.leaving and host not in stuck]
        missing -= sum(host.size for host in expected if not host.ready)
        if missing <= 0 or now < self._ask_after:
            return None
        self._ask_after = min(now + SECONDS_BETWEEN_REQUESTS, self._back_off.next_end())
        total = missing + sum(host.size for host in expected)
        paused = self._back_off.paused() | {host.node_id for host in stuck}
        return Request(math.ceil(missing), math.ceil(total), paused, stuck)

    def room(self) -> int:
        """Return how many workers all hosts can have that are ready and do not leave."""
        return sum(host.size for host in self.by_place.values() if host.ready and not host.leaving)

    def _is_stuck(self, host: HostRecord, now: float) -> bool:
        waits = not (host.connected or host.ready or host.leaving or host.cancelled)
        return waits and now - host.since > self._stuck_seconds

    def do_not_ask_before(self, time: float) -> None:
        """Wait with the next request."""
        self._ask_after = time


def choose_nodes(
    workers: int, nodes: Iterable[tuple[str, str, int]], paused: Collection[str], largest_host: float
) -> tuple[list[tuple[str, str, int]], int]:
    """Return on which nodes to start hosts of which size, and for how many workers there is no room.

    ``nodes`` are (id, name, room), the best first.
    """
    chosen = []
    for node_id, name, room in nodes:
        taken = 0 if node_id in paused else max(0, min(room, workers))
        workers -= taken
        while taken > 0:
            size = int(min(taken, largest_host))
            chosen.append((node_id, name, size))
            taken -= size
    return chosen, workers
