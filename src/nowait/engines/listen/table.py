"""Decides about the hosts that connected: who has joined, who is lost, and what to wait for. Times are arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from nowait.engines.listen.joining import PIECE_BYTES, PIECES_IN_TRANSIT, Joining, number_of_workers
from nowait.engines.listen.transfer import Requests
from nowait.engines.network.handshake import ProtocolError
from nowait.engines.workers.transport import HOME

SECONDS_TO_JOIN = 10.0
"""How long a host that has connected may take to say who it is."""
SECONDS_TO_EXIT = 10.0
"""How long a host that was told to exit may take to close its connection."""
LONGEST_SILENCE = 600.0
"""How long any host may be silent, however large its gradients are."""
SLOW_NETWORK = 1e6
"""Bytes per second that any network is expected to carry."""
LONG_PAUSE = 2.0
"""If the server has not checked for this long, it cannot know which hosts were silent."""

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

    @property
    def size(self) -> int:
        """How many workers it runs at most."""
        return 0 if self.joining is None else self.joining.workers

    @property
    def machine(self) -> str:
        """The name of its machine."""
        return "" if self.joining is None else self.joining.name

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"the host {self.machine}" if self.machine else "a host"


@final
class HostTable:
    """The hosts of a run. Each connection is a place of its own, also if it is one of the same host again."""

    def __init__(self, *, heartbeat_seconds: float, bytes_per_gradient: int) -> None:
        self._heartbeat_seconds, self._bytes_per_gradient = heartbeat_seconds, bytes_per_gradient
        self.by_identity: dict[bytes, HostRecord] = {}
        self.dismissed: dict[bytes, float] = {}
        """Hosts that were told to exit, and until when they have to close their connection."""
        self._last_place = HOME
        self._last_check: float | None = None

    def add(self, identity: bytes, now: float) -> HostRecord:
        """Add a host that has connected."""
        self._last_place += 1
        host = self.by_identity[identity] = HostRecord(identity, self._last_place, now)
        return host

    def joins(self, host: HostRecord, joining: Joining, now: float) -> list[HostRecord]:
        """Note what a host says about itself. Returns earlier connections of the same process, to be closed."""
        if host.joining is not None:
            raise ProtocolError("a host joined twice")
        host.joining, host.waits_for, host.since = joining, None, now
        return [
            other
            for other in self.by_identity.values()
            if other is not host and other.joining is not None and other.joining.process == joining.process
        ]

    def is_ready(self, host: HostRecord) -> None:
        """Note that workers can be started on a host."""
        if host.joining is None:
            raise ProtocolError("a host offers workers before it has joined")
        host.ready = True

    def at(self, place: int) -> HostRecord | None:
        """Return the host at a place; None if it is gone."""
        return next((host for host in self.by_identity.values() if host.place == place), None)

    def named(self, name: str) -> list[HostRecord]:
        """Return the hosts that run on a machine with this name and can be told to leave."""
        return [host for host in self.by_identity.values() if host.ready and host.machine == name]

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
        paused = self._last_check is not None and now - self._last_check > LONG_PAUSE
        self._last_check = now
        return [] if paused else list(self._overdue(last_message, now))

    def _overdue(self, last_message: LastMessage, now: float) -> list[tuple[HostRecord, str]]:
        found = []
        for host in self.by_identity.values():
            silent = now - last_message(host.identity)
            if host.waits_for is not None:
                continue
            if host.joining is None and now - host.since > SECONDS_TO_JOIN:
                found.append((host, f"it did not join within {SECONDS_TO_JOIN:.0f} s"))
            elif silent > self._longest_silence(host):
                found.append((host, f"it was silent for {silent:.0f} s"))
        return found

    def _longest_silence(self, host: HostRecord) -> float:
        """Return how long a host may be silent; on a slow network its gradients alone may take a while."""
        expected = host.size * self._bytes_per_gradient if host.ready else PIECES_IN_TRANSIT * PIECE_BYTES
        return self._heartbeat_seconds + min(expected / SLOW_NETWORK, LONGEST_SILENCE)


def _described(host: HostRecord) -> str:
    return f"{host.machine} ({number_of_workers(host.size)}{'' if host.ready else ', loading the problem'})"


def what_is_missing(room: int, wanted: int, loading: int, instructions: str) -> str:
    """Return for what a run without workers waits."""
    hosts = f", and {loading} more {'host loads' if loading == 1 else 'hosts load'} the problem" if loading else ""
    return f"there is room for {room} of {wanted} workers{hosts}; connect more with: {instructions}"
