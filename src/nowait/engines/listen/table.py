"""Decides about the hosts that connected: who has joined, who is lost, and what to wait for. Times are arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import final

from nowait.engines.network.silence import Silence
from nowait.engines.workers.transport import HOME
from nowait.fleet.wire.job import Requests
from nowait.fleet.wire.messages import (
    PIECE_BYTES,
    PIECES_IN_TRANSIT,
    Joining,
    number_of_workers,
)
from nowait.fleet.wire.secure import ProtocolError

SECONDS_TO_JOIN = 10.0
"""How long a host that has connected may take to say who it is."""
SECONDS_TO_EXIT = 10.0
"""How long a host that was told to exit may take to close its connection."""
SECONDS_TO_DELIVER = 30.0
"""For how long a host may run workers without a gradient before the user is told."""

LastMessage = Callable[[bytes], float]
"""Returns when the host with this identity last sent something."""


@final
@dataclass(eq=False)
class HostRecord:
    """A host that has connected."""

    identity: bytes
    place: int
    since: float
    """When it connected."""
    joining: Joining | None = None
    """What it has said about itself."""
    waits_for: Joining | None = None
    """What it has said about itself, while the server computes something that it needs for its answer."""
    ready: bool = False
    """True if workers can be started there."""
    reason_to_leave: str = ""
    """Why the server lets it leave; empty if it does not, or the run is over."""
    requests: Requests = field(default_factory=Requests)
    number: int = 1
    """Which of the hosts with this name of a machine it is: several ``nowait worker`` may run on one machine."""
    starts: int = 0
    """How many worker processes were started there."""
    first_start: float = math.inf
    """When the first of them was started; infinity if none was, or the user was told that none delivers."""

    @property
    def size(self) -> int:
        """How many workers it runs at most."""
        return 0 if self.joining is None else self.joining.workers

    @property
    def machine(self) -> str:
        """The name of its machine."""
        return "" if self.joining is None else self.joining.name

    @property
    def label(self) -> str:
        """Its name among the hosts: that of its machine, from the second one of a machine on with a number."""
        return self.machine if self.number == 1 else f"{self.machine}#{self.number}"

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"the host {self.label}" if self.machine else "a host"

    def started(self, now: float) -> None:
        """Note that a worker process is started there."""
        if not self.starts:
            self.first_start = now
        self.starts += 1


@final
class HostTable:
    """The hosts of a run. Each connection is a place of its own, also if it is one of the same host again."""

    def __init__(self, *, heartbeat_seconds: float, bytes_per_gradient: int) -> None:
        self._silence, self._bytes_per_gradient = Silence(heartbeat_seconds), bytes_per_gradient
        self.by_identity: dict[bytes, HostRecord] = {}
        self.dismissed: dict[bytes, float] = {}
        """Hosts that were told to exit, and until when they have to close their connection."""
        self._last_place = HOME

    def add(self, identity: bytes, now: float) -> HostRecord:
        """Add a host that has connected."""
        self._last_place += 1
        host = self.by_identity[identity] = HostRecord(identity, self._last_place, now)
        return host

    def joins(self, host: HostRecord, joining: Joining, now: float) -> list[HostRecord]:
        """Note what a host says about itself. Returns earlier connections of the same process, to be closed."""
        if host.joining is not None:
            raise ProtocolError("a host joined twice")
        others = [other for other in self.by_identity.values() if other.joining is not None]
        earlier = [other for other in others if other.joining is not None and other.joining.process == joining.process]
        host.joining, host.waits_for, host.since = joining, None, now
        numbers = {other.number for other in others if other.machine == joining.name and other not in earlier}
        host.number = next(number for number in count(1) if number not in numbers)
        return earlier

    def is_ready(self, host: HostRecord) -> None:
        """Note that workers can be started on a host."""
        if host.joining is None:
            raise ProtocolError("a host offers workers before it has joined")
        host.ready = True

    def at(self, place: int) -> HostRecord | None:
        """Return the host at a place; None if it is gone."""
        return next((host for host in self.by_identity.values() if host.place == place), None)

    def named(self, name: str) -> list[HostRecord]:
        """Return the hosts with this label, or on a machine with this name, that can be told to leave."""
        return [host for host in self.by_identity.values() if host.ready and name in (host.machine, host.label)]

    def without_gradients(self, delivered: Callable[[bytes], bool], now: float) -> list[str]:
        """Return, once for each host that has run workers for a while and has not delivered, what to tell the user."""
        found = []
        for host in self.by_identity.values():
            if now - host.first_start > SECONDS_TO_DELIVER:
                seconds, host.first_start = now - host.first_start, math.inf
                if not delivered(host.identity):
                    found.append(
                        f"{host.name} has run {number_of_workers(min(host.starts, host.size))} for {seconds:.0f} s and "
                        f"has not delivered a gradient: if it should not keep them, nowait drain {host.label}"
                    )
        return found

    def described(self) -> str:
        """Return which hosts there are, in words."""
        hosts = [host for host in self.by_identity.values() if host.joining is not None]
        return "the hosts are " + ", ".join(_described(host) for host in hosts) if hosts else "there are no hosts"

    def remove(self, host: HostRecord) -> None:
        """Remove a host that is gone."""
        self.by_identity.pop(host.identity, None)

    def take_lingering(self, now: float) -> list[bytes]:
        """Return the hosts that were told to exit and have not closed their connection in time, once."""
        found = [identity for identity, until in self.dismissed.items() if now > until]
        for identity in found:
            del self.dismissed[identity]
        return found

    @property
    def capacity(self) -> int:
        """How many workers the hosts that are ready run at most."""
        return sum(host.size for host in self.by_identity.values() if host.ready)

    @property
    def loading(self) -> int:
        """How many hosts have joined and are not ready."""
        return sum(host.joining is not None and not host.ready for host in self.by_identity.values())

    def overdue(self, last_message: LastMessage, now: float) -> list[tuple[HostRecord, str]]:
        """Return the hosts that did not join in time or were silent for too long, with reasons."""
        self._silence.look(now)
        found = []
        for host in self.by_identity.values():
            silent = self._silence.seconds(last_message(host.identity), now)
            if host.waits_for is not None:
                continue
            if host.joining is None and self._silence.seconds(host.since, now) > SECONDS_TO_JOIN:
                found.append((host, f"it did not join within {SECONDS_TO_JOIN:.0f} s"))
            elif silent > self._longest_silence(host):
                found.append((host, f"it was silent for {silent:.0f} s"))
        return found

    def _longest_silence(self, host: HostRecord) -> float:
        """Return how long a host may be silent; on a slow network its gradients alone may take a while."""
        workers = min(host.starts, host.size)  # however many it offers
        expected = workers * self._bytes_per_gradient if host.ready else PIECES_IN_TRANSIT * PIECE_BYTES
        return self._silence.longest(expected)


def _described(host: HostRecord) -> str:
    return f"{host.label} ({number_of_workers(host.size)}{'' if host.ready else ', loading the problem'})"


@final
class Refusals:
    """Lets one line about refused hosts through at a time, and counts the others: a host may come back at once.

    >>> refusals = Refusals(seconds=10.0)
    >>> (
    ...     refusals.add("a was refused", now=0.0),
    ...     refusals.add("b was refused", now=1.0),
    ...     refusals.due(now=9.0),
    ... )
    ('a was refused', '', '')
    >>> refusals.due(now=10.0), refusals.due(now=30.0)
    ('b was refused', '')
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = -math.inf
        self._latest, self._waiting = "", 0

    def add(self, text: str, now: float) -> str:
        """Note a refusal. Returns the line to log now; empty if it has to wait."""
        self._latest = text
        self._waiting += 1
        return self.due(now)

    def due(self, now: float) -> str:
        """Return the line about the refusals since the latest one; empty if there are none, or it is too early."""
        if not self._waiting or now < self._next:
            return ""
        more, self._waiting, self._next = self._waiting - 1, 0, now + self._seconds
        return f"{self._latest} (and {more} more before it)" if more else self._latest


def what_is_missing(room: int, wanted: int, loading: int, instructions: str) -> str:
    """Return for what a run without workers waits."""
    hosts = f", and {loading} more {'host loads' if loading == 1 else 'hosts load'} the problem" if loading else ""
    return f"there is room for {room} of {wanted} workers{hosts}; connect more with: {instructions}"
