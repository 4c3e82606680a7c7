"""Workers of hosts that connect to the server."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, final

from nowait.core.errors import WorkerFailedError
from nowait.engines.listen.comparing import Comparison
from nowait.engines.listen.table import SECONDS_TO_EXIT, HostRecord, HostTable, Refusals, what_is_missing
from nowait.engines.network.descriptors import Descriptors
from nowait.engines.network.gateway import Disconnected, Failed, Gateway, GatewayEvent, Other, Ready
from nowait.engines.network.relay import DRAINED, GIVEN_UP
from nowait.engines.network.remote import RemotePool, VersionOf
from nowait.engines.processes.local import LocalPools
from nowait.engines.processes.pool import WorkerPool
from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.transport import (
    HOME,
    Channel,
    Died,
    Gone,
    Leaving,
    Opened,
    Reports,
    TransportEvent,
)
from nowait.fleet.host.launch import Zygote
from nowait.fleet.options import Listen
from nowait.fleet.wire.connection import ENDED
from nowait.fleet.wire.job import Offer, to_bytes, user_sources
from nowait.fleet.wire.messages import (
    PIECES_IN_TRANSIT,
    Joining,
    Message,
    MessageKind,
    Welcome,
    grace_seconds,
    library_version,
    name_to_drain,
    number_of_workers,
    python_version,
)
from nowait.fleet.wire.records import FINGERPRINTER, GRACE_SECONDS
from nowait.fleet.wire.secure import ProtocolError, ServerKey
from nowait.fleet.wire.shared import Payload

logger = logging.getLogger("nowait.listen")

NO_SERIAL = -1
"""The serial number of a process whose end matters to nobody."""

NO_DRAIN_KEY = (
    "draining needs the drain key of this run: the file that the server makes beside its key file, with the name that "
    "ends in .drain"
)
SPARE_MESSAGES = 8
"""How many other messages may wait to be sent while a host asks for the job."""
SECONDS_BETWEEN_WARNINGS = 10.0
"""How often a run that waits for workers logs that."""


@final
class ListenTransport:
    """Hosts that connect to this machine. The evaluator runs here, in HOME. Each connection is a place."""

    engine = "listen"

    def __init__(
        self,
        listen: Listen,
        key: ServerKey,
        drain_key: bytes | None,
        resources: SharedResources,
        version_of: VersionOf,
        settings: memoryview,
        *,
        deterministic: bool,
        log: Path | None,
    ) -> None:
        """``settings`` are the pickled job without its problem."""
        self._listen, self._key, self._resources, self._log = listen, key, resources, log
        self._drain_key = drain_key
        self._settings = settings
        self._comparison = Comparison(deterministic=deterministic)
        self._pools = LocalPools(resources)
        self._open_parts = contextlib.ExitStack()
        points = resources.points
        self._hosts = HostTable(
            heartbeat_seconds=listen.heartbeat_seconds,
            bytes_per_gradient=points.length * points.dtype.itemsize,
        )
        self._gateway = Gateway(resources, version_of, self._knows, resources.encodings)
        self._given_up: dict[str, str] = {}
        """Why a host was given up or drained, by the name of its process: it may not join again."""
        self._refusals = Refusals(SECONDS_BETWEEN_WARNINGS)
        self._run = secrets.token_hex(16)
        self._descriptors = Descriptors()
        self._worked = self._warned = monotonic()

    @property
    def fds(self) -> frozenset[int]:
        """The descriptors of the evaluator's pool, and of the connections."""
        return self._descriptors.of(self._pools.fds, self._gateway.fds)

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes were received from other machines and sent to them."""
        return self._gateway.traffic

    def open(self) -> None:
        """Listen, and launch the zygote of the evaluator."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._pools.close)
            code, settings = (
                stack.enter_context(contextlib.closing(Payload([part])))
                for part in (memoryview(to_bytes(user_sources())), self._settings)
            )
            self._offer = Offer([code, self._resources.payload, settings])
            listen = self._listen
            self._gateway.open(listen.host, listen.port, encrypt=listen.encrypt, key=self._key)
            stack.callback(self._gateway.close)
            logger.info("workers connect with: %s", self.instructions)
            self.reopen()
            self._worked = self._warned = monotonic()
            self._open_parts = stack.pop_all()

    def reopen(self) -> None:
        """Launch the zygote of the evaluator."""
        self._comparison.ask_again()
        self._pools.add(HOME, WorkerPool.of(Zygote.launch(1), self._resources, self._log), 0)

    @property
    def instructions(self) -> str:
        """How workers connect. It does not contain a key."""
        name = socket.gethostname() if self._listen.host in ("0.0.0.0", "::") else self._listen.host
        return f"nowait worker --connect {name}:{self._gateway.address.port} --key-file {self._listen.key_file}"

    def close(self) -> None:
        """End all hosts and close everything."""
        while self._hosts.by_identity:  # it may be called twice
            identity, host = self._hosts.by_identity.popitem()
            if host.joining is not None and identity in self._gateway.pools:
                self._gateway.pools[identity].end()
        _warn(self._refusals.due(math.inf))
        self._open_parts.close()

    # To the workers

    def start(self, worker: int, serial: int, place: int, began: float) -> Channel:
        """Start a process in a place."""
        if (host := self._hosts.at(place)) is not None:
            host.started(monotonic())
        return self._pool(place).start(worker, serial, began)

    def kill(self, serial: int, place: int) -> None:
        """Kill a process; that of a host that is gone is dead."""
        if place == HOME or self._hosts.at(place) is not None:
            self._pool(place).kill(serial)

    def _pool(self, place: int) -> WorkerPool | RemotePool:
        host = self._hosts.at(place)
        return self._pools[place] if host is None else self._gateway.pools[host.identity]

    def dismiss(self, place: int, reason: str = "") -> None:
        """Let a host exit."""
        host = self._hosts.at(place)
        if host is not None:
            if not reason:
                logger.info("%s has left", host.name)
            elif host.joining is not None:
                host.reason_to_leave = self._given_up[host.joining.process] = f"{GIVEN_UP}{reason}"
            self._hosts.remove(host)
            self._hosts.dismissed[host.identity] = monotonic() + SECONDS_TO_EXIT
            self._gateway.pools.pop(host.identity).end(host.reason_to_leave)

    def flush(self) -> bool:
        """Send collected orders. Returns True if something has arrived that no descriptor announces."""
        self._gateway.flush()
        pending = self._pools.pending()  # also if the network is busy: a death must not wait for it
        return self._gateway.pending() or pending

    # From the workers

    def receive(self, ready: Collection[int]) -> Iterator[TransportEvent]:
        """Return what workers, zygotes and hosts reported."""
        local = [fd for fd in ready if fd in self._pools.fds]
        if local or self._pools.pending():
            for local_event in self._pools.receive(local):
                if isinstance(local_event, Died) and local_event.serial == NO_SERIAL:
                    self._comparison.ended()
                else:
                    yield local_event
        for event in self._gateway.receive([fd for fd in ready if fd in self._gateway.fds]):
            if type(event) is Reports:
                yield event
            else:
                yield from self._on_event(event)

    def _knows(self, identity: bytes) -> bool:
        """Add a host that has authenticated, which has some seconds to join; False if it was told to exit."""
        if identity in self._hosts.dismissed:
            return False
        if identity not in self._hosts.by_identity:
            self._hosts.add(identity, monotonic())
            self._gateway.expect(len(self._hosts.by_identity))
        return True

    def _on_event(self, event: GatewayEvent) -> Iterator[TransportEvent]:
        if isinstance(event, (Reports, Died)):
            yield event
            return
        host = self._hosts.by_identity.get(event.identity)
        if host is None:
            self._hosts.dismissed.pop(event.identity, None)
            return
        yield from self._guarded(host, self._on_host_event(host, event))

    def _guarded(self, host: HostRecord, events: Iterator[TransportEvent]) -> Iterator[TransportEvent]:
        """Give up a host that says something wrong; the run goes on."""
        try:
            yield from events
        except ProtocolError as error:
            yield from self._lose(host, str(error))

    def _on_host_event(
        self, host: HostRecord, event: Ready | Failed | Disconnected | Other
    ) -> Iterator[TransportEvent]:
        if isinstance(event, Ready):
            self._hosts.is_ready(host)
            logger.info("%s is ready for %s", host.name, number_of_workers(host.size))
            yield Opened(host.place, host.size, distance=1, name=host.machine, label=host.label)
        elif isinstance(event, (Failed, Disconnected)):
            yield from self._lose(host, event.cause)
        else:
            yield from self._on_message(host, event.message)

    def _on_message(self, host: HostRecord, message: Message) -> Iterator[TransportEvent]:
        if message.kind == MessageKind.JOIN:
            yield from self._join(host, Joining.read(message.content))
        elif message.kind == MessageKind.SEND_JOB and host.joining is not None:
            self._gateway.check_queue(host.identity, PIECES_IN_TRANSIT + SPARE_MESSAGES)
            piece = self._offer.piece(host.requests.read(message.content))
            self._gateway.send(host.identity, MessageKind.JOB_PART, piece)
        elif message.kind == MessageKind.LEAVING and host.ready:
            yield Leaving(host.place, grace_seconds(message.content))
        elif message.kind == MessageKind.DRAIN and host.joining is None:
            yield from self._drain(host, message.content)
        else:
            raise ProtocolError(f"a message of the kind {message.kind} is not expected here")

    def _join(self, host: HostRecord, joining: Joining) -> Iterator[TransportEvent]:
        if host.joining is not None or (host.waits_for is not None and host.waits_for is not joining):
            raise ProtocolError("a host joined twice")
        reason = joining.reason_to_refuse(library_version(), python_version())
        reason = reason or self._given_up.get(joining.process, "")
        if not reason and joining.problem is not None:
            if not self._comparison.finished:
                host.waits_for = joining
                return
            reason = self._comparison.reason_to_refuse(joining.name, joining.problem)
        if reason:
            self._refuse(host, f"the host {joining.name}", reason)
            return
        for earlier in self._hosts.joins(host, joining, monotonic()):
            yield from self._lose(earlier, "it connected again")
        welcome = Welcome(self._run, self._gateway.shapes, self._offer.parts)
        self._gateway.send(host.identity, MessageKind.WELCOME, welcome.to_bytes())
        logger.info("%s joins with %s", host.name, number_of_workers(host.size))

    def _refuse(self, host: HostRecord, what: str, reason: str) -> None:
        """Tell a host why it cannot join or drain others, and end its connection."""
        _warn(self._refusals.add(f"{what} was refused: {reason}", monotonic()))
        self._gateway.send(host.identity, MessageKind.REFUSED, reason.encode())
        self._hosts.remove(host)
        self._hosts.dismissed[host.identity] = monotonic() + SECONDS_TO_EXIT
        self._gateway.pools.pop(host.identity).end()

    def _compare(self, host: HostRecord, joining: Joining) -> Iterator[TransportEvent]:
        """Answer a host that has its own problem, or let a process compute the fingerprint of ours for that."""
        if self._comparison.finished:
            yield from self._join(host, joining)
        elif not self._comparison.asked and HOME in self._pools:
            self._comparison.asked = True
            self._open_parts.callback(self._pools[HOME].start(FINGERPRINTER, NO_SERIAL, 0.0).close)

    def details(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """Return what a worker sent besides its report on a ticket; None if nothing arrived."""
        found = self._resources.mailbox.details(worker, ticket)
        if worker == FINGERPRINTER:
            self._comparison.answered(found)
        return found

    def _drain(self, asking: HostRecord, content: bytes) -> Iterator[TransportEvent]:
        """Let the hosts of a machine deliver what they compute, and leave; without a name, say which there are."""
        name, has_drain_key = name_to_drain(content, self._drain_key, self._gateway.binding(asking.identity))
        if not has_drain_key:
            self._refuse(asking, "a request to drain hosts", NO_DRAIN_KEY)
            return
        found = [] if name is None else self._hosts.named(name)
        if name is not None and not found:
            text = f"there is no host {name!r}: {self._hosts.described()}"
            self._gateway.send(asking.identity, MessageKind.REFUSED, text.encode())
            return
        text = self._hosts.described() if name is None else f"the host {name} leaves when its workers have delivered"
        self._gateway.send(asking.identity, MessageKind.DRAIN, text.encode())
        for host in found:
            host.reason_to_leave = DRAINED
            if host.joining is not None:  # its connection may break before it has left
                self._given_up[host.joining.process] = DRAINED
            yield Leaving(host.place, GRACE_SECONDS)

    def _lose(self, host: HostRecord, cause: str) -> Iterator[TransportEvent]:
        """Give up a host. Later messages from it are ignored. One that has ended its connection has not failed."""
        if host.ready and cause == ENDED:
            yield Leaving(host.place, 0.0)
            if host.identity not in self._hosts.by_identity:
                return  # it was dismissed, because no worker was computing there
        self._hosts.remove(host)
        self._gateway.disconnect(host.identity)
        if host.ready:
            yield Gone(host.place, f"{host.name} has left" if cause == ENDED else f"{host.name} is lost ({cause})")
        elif host.joining is not None and cause != ENDED:
            _warn(self._refusals.add(f"{host.name} could not start: {cause}", monotonic()))

    # Periodic work

    def tick(self, vacant: int, working: int) -> Iterator[TransportEvent]:
        """Find hosts that are silent, and say for what the run waits if it has no workers."""
        now = monotonic()
        self._gateway.close_overdue(now)
        for identity in self._hosts.take_lingering(now):
            self._gateway.disconnect(identity)
        for host, cause in self._hosts.overdue(self._last_message, now):
            yield from self._lose(host, cause)
        for host in list(self._hosts.by_identity.values()):
            if host.waits_for is not None:
                yield from self._guarded(host, self._compare(host, host.waits_for))
        _warn(self._refusals.due(now), *self._hosts.without_gradients(self._has_delivered, now))
        if working:
            self._worked = self._warned = now
        elif vacant:
            self._wait_for_workers(vacant, now)

    def _last_message(self, identity: bytes) -> float:
        pool = self._gateway.pools.get(identity)
        return monotonic() if pool is None else pool.last_message

    def _has_delivered(self, identity: bytes) -> bool:
        pool = self._gateway.pools.get(identity)
        return pool is not None and pool.delivered

    def _wait_for_workers(self, vacant: int, now: float) -> None:
        """Warn while no worker runs, and raise after ``start_seconds``."""
        waited, limit = now - self._worked, self._listen.start_seconds
        missing = what_is_missing(self._hosts.capacity, vacant, self._hosts.loading, self.instructions)
        if limit is not None and waited > limit:
            raise WorkerFailedError(f"after {waited:.0f} s {missing}")
        if now - self._warned > SECONDS_BETWEEN_WARNINGS:
            self._warned = now
            logger.warning("waiting for workers: %s", missing)


def _warn(*lines: str) -> None:
    for line in filter(None, lines):
        logger.warning("%s", line)
