"""Machines that connect to this one, with ``nowait worker``. Each connection is a host of its own."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, final

from nowait.core.errors import WorkerFailedError
from nowait.fleet.host.host import Machine, Resources
from nowait.fleet.host.launch import Zygote
from nowait.fleet.options import Listen
from nowait.fleet.server.admission import NO_DRAIN_KEY, Admission, Refusals
from nowait.fleet.server.events import (
    HOME,
    FingerprintAsked,
    HostGone,
    HostLeaves,
    HostReady,
    Port,
    SourceEmit,
    TakeReports,
)
from nowait.fleet.server.gateway import Gateway
from nowait.fleet.server.patience import SECONDS_BETWEEN_WARNINGS, Silence, Wait
from nowait.fleet.server.remote import Exchange, RemoteHost
from nowait.fleet.server.vectors import ServerVectors
from nowait.fleet.wire.connection import ENDED
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.job import Offer, Requests, to_bytes, user_sources
from nowait.fleet.wire.messages import (
    DRAINED,
    GIVEN_UP,
    PIECES_IN_TRANSIT,
    Joining,
    Message,
    MessageKind,
    grace_seconds,
    number_of_workers,
)
from nowait.fleet.wire.records import GRACE_SECONDS
from nowait.fleet.wire.secure import ProtocolError, ServerKey
from nowait.fleet.wire.shared import Payload

logger = logging.getLogger("nowait.listen")

SECONDS_TO_JOIN = 10.0
"""How long a host that has connected may take to say who it is."""
SECONDS_TO_DELIVER = 30.0
"""For how long a host may run workers without a gradient before the user is told."""
SPARE_MESSAGES = 8
"""How many other messages may wait to be sent while a host asks for the job."""


@final
@dataclass(eq=False)
class HostRecord:
    """A host that has connected."""

    remote: RemoteHost
    since: float
    """When it connected; later when it joined."""
    joining: Joining | None = None
    """What it has said about itself."""
    waits_for: Joining | None = None
    """What it has said about itself, while the server computes something that it needs for its answer."""
    reason_to_leave: str = ""
    """Why the server lets it leave; empty if it does not, or the run is over."""
    requests: Requests = field(default_factory=Requests)
    copy: int = 1
    """Which of the hosts with this name of a machine it is: several ``nowait worker`` may run on one machine."""
    is_warned_of: bool = False
    """True if the user was told, or need not be told, that it delivers nothing."""

    @property
    def ready(self) -> bool:
        """True if workers can be started there."""
        return self.joining is not None and self.remote.ready

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
        return self.machine if self.copy == 1 else f"{self.machine}#{self.copy}"

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"the host {self.label}" if self.machine else "a host"


@final
class HostTable:
    """The hosts of a run: who has joined, who is lost, and what to tell the user. Times are arguments."""

    def __init__(self) -> None:
        self.by_number: dict[int, HostRecord] = {}
        self._last_number = HOME
        self._processes: dict[str, dict[int, int]] = {}
        """The workers' processes of hosts that are gone and may come back, by the name of the host's process."""

    def add(self, remote: RemoteHost, now: float) -> HostRecord:
        """Add a host that has connected, and give it a number."""
        self._last_number = remote.number = self._last_number + 1
        host = self.by_number[remote.number] = HostRecord(remote, now)
        return host

    def joins(self, host: HostRecord, joining: Joining, now: float) -> list[HostRecord]:
        """Note what a host says about itself. Returns earlier connections of the same process, to be closed."""
        if host.joining is not None:
            raise ProtocolError("a host joined twice")
        others = [other for other in self.by_number.values() if other.joining is not None]
        earlier = [other for other in others if other.joining is not None and other.joining.process == joining.process]
        host.joining, host.waits_for, host.since = joining, None, now
        host.remote.may_be_silent, host.remote.last_message = False, now
        copies = {other.copy for other in others if other.machine == joining.name and other not in earlier}
        host.copy = next(number for number in count(1) if number not in copies)
        return earlier

    def takes_processes(self, host: HostRecord) -> None:
        """Let a host that has joined have the processes again that its earlier connections had."""
        if host.joining is not None:
            host.remote.processes = self._processes.pop(host.joining.process, {})

    def remove(self, host: HostRecord) -> None:
        """Remove a host that is gone."""
        self.by_number.pop(host.remote.number, None)

    def remember_processes(self, host: HostRecord) -> None:
        """Keep what processes a host has whose connection broke: it may come back with them."""
        if host.joining is not None and host.remote.processes:
            self._processes[host.joining.process] = host.remote.processes

    def named(self, name: str) -> list[HostRecord]:
        """Return the hosts with this label, or on a machine with this name, that can be told to leave."""
        return [host for host in self.by_number.values() if host.ready and name in (host.machine, host.label)]

    def without_gradients(self, now: float) -> list[str]:
        """Return, once for each host that has run workers for a while and has not delivered, what to tell the user."""
        texts = []
        for host in self.by_number.values():
            seconds = now - host.remote.first_start
            if seconds > SECONDS_TO_DELIVER and not host.is_warned_of:
                host.is_warned_of = True
                if not host.remote.delivered:
                    texts.append(
                        f"{host.name} has run {number_of_workers(min(host.remote.starts, host.size))} for "
                        f"{seconds:.0f} s and has not delivered a gradient: if it should not keep them, nowait drain "
                        f"{host.label}"
                    )
        return texts

    def described(self) -> str:
        """Return which hosts there are, in words."""
        hosts = [host for host in self.by_number.values() if host.joining is not None]
        return "the hosts are " + ", ".join(_described(host) for host in hosts) if hosts else "there are no hosts"

    @property
    def capacity(self) -> int:
        """How many workers the hosts that are ready run at most."""
        return sum(host.size for host in self.by_number.values() if host.ready)

    @property
    def loading(self) -> int:
        """How many hosts have joined and are not ready."""
        return sum(host.joining is not None and not host.ready for host in self.by_number.values())

    def late_to_join(self, silence: Silence, now: float) -> list[HostRecord]:
        """Return the hosts that have not said in time who they are."""
        unknown = [host for host in self.by_number.values() if host.joining is None and host.waits_for is None]
        return [host for host in unknown if silence.seconds(host.since, now) > SECONDS_TO_JOIN]


def _described(host: HostRecord) -> str:
    return f"{host.label} ({number_of_workers(host.size)}{'' if host.ready else ', loading the problem'})"


def what_is_missing(room: int, wanted: int, loading: int, instructions: str) -> str:
    """Return for what a run without workers waits."""
    hosts = f", and {loading} more {'host loads' if loading == 1 else 'hosts load'} the problem" if loading else ""
    return f"there is room for {room} of {wanted} workers{hosts}; connect more with: {instructions}"


@final
class ListenSource:
    """Hosts that connect. The evaluator runs here, in ``HOME``, which has no seats for workers."""

    engine = "listen"

    def __init__(
        self,
        listen: Listen,
        key: ServerKey,
        drain_key: bytes | None,
        resources: Resources,
        hub: Hub,
        settings: memoryview,
        *,
        deterministic: bool,
        log: Path | None,
    ) -> None:
        """``settings`` are the pickled job without its problem."""
        self._listen, self._key, self._drain_key = listen, key, drain_key
        self._resources, self._hub, self._settings, self._log = resources, hub, settings, log
        self._deterministic = deterministic
        self._hosts = HostTable()
        self._refusals = Refusals(SECONDS_BETWEEN_WARNINGS)
        self._asked_for_fingerprint = False
        self._wait = Wait(0.0)
        self._open_parts = contextlib.ExitStack()

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes were received from other machines and sent to them."""
        return self._gateway.traffic

    def open(self, emit: SourceEmit, take: TakeReports) -> None:
        """Listen, and launch the zygote of the evaluator."""
        resources, listen, self._emit = self._resources, self._listen, emit
        with contextlib.ExitStack() as stack:
            self._machine = Machine(resources, self._hub, take)
            stack.callback(self._machine.close)
            code, settings = (
                stack.enter_context(contextlib.closing(Payload([part])))
                for part in (memoryview(to_bytes(user_sources())), self._settings)
            )
            offer = Offer([code, resources.payload, settings])
            vectors = ServerVectors(resources.points, resources.gradients, resources.encodings)
            self._admission = Admission(vectors.shapes, offer, self._drain_key, deterministic=self._deterministic)
            exchange = Exchange(self._hub, vectors, resources.mailbox.add_details, emit, take, self)
            self._gateway = Gateway(exchange, listen.heartbeat_seconds)
            stack.callback(self._gateway.close)
            self._gateway.open(listen.host, listen.port, encrypt=listen.encrypt, key=self._key)
            logger.info("workers connect with: %s", self.instructions)
            self._machine.open()
            self.open_home()
            self._wait = Wait(monotonic())
            self._open_parts = stack.pop_all()

    def open_home(self) -> None:
        """Launch the zygote of the evaluator."""
        self._machine.add(Zygote.launch(1), self._emit, seats=0, log=self._log)

    @property
    def instructions(self) -> str:
        """How workers connect. It does not contain a key."""
        name = socket.gethostname() if self._listen.host in ("0.0.0.0", "::") else self._listen.host
        return f"nowait worker --connect {name}:{self._gateway.address.port} --key-file {self._listen.key_file}"

    def port(self, host: int) -> Port:
        """Return the port of a host."""
        return self._machine.pools[HOME] if host == HOME else self._hosts.by_number[host].remote

    def details(self, number: int, ticket_id: int) -> tuple[Any, ...] | None:
        """Return what a worker sent besides its report on a ticket; None if nothing arrived."""
        return self._resources.mailbox.details(number, ticket_id)

    def end_host(self, host: int, reason: str) -> None:
        """Let a host exit. It may be gone already."""
        record = self._hosts.by_number.get(host)
        if record is None:
            return
        if not reason:
            logger.info("%s has left", record.name)
        elif record.joining is not None:
            record.reason_to_leave = f"{GIVEN_UP}{reason}"
            self._admission.bar(record.joining, record.reason_to_leave)
        self._hosts.remove(record)
        record.remote.end(record.reason_to_leave)

    def identified(self, fingerprint: tuple[Any, ...] | None) -> None:
        """Answer the hosts that have a problem of their own."""
        self._admission.identified(fingerprint)
        for host in list(self._hosts.by_number.values()):
            if host.waits_for is not None:
                try:
                    self._join(host, host.waits_for)
                except ProtocolError as error:
                    host.remote.lose(str(error), wrong=True)

    def close(self) -> None:
        """End all hosts and close everything. It may be called twice."""
        while self._hosts.by_number:
            _, host = self._hosts.by_number.popitem()
            if host.joining is not None:
                host.remote.end()
        _warn([self._refusals.due(math.inf)])
        self._open_parts.close()

    # From the hosts

    def connected(self, host: RemoteHost) -> bool:
        """Add a host that has authenticated, which has some seconds to join."""
        self._hosts.add(host, monotonic())
        self._gateway.expect(len(self._hosts.by_number))
        return True

    def connected_here(self, identity: bytes, control: socket.socket) -> None:
        """Close a connection that only Ray's hosts make."""
        control.close()

    def ready(self, host: RemoteHost) -> None:
        """Offer the seats of a host that has loaded the problem."""
        record = self._hosts.by_number[host.number]
        if not record.ready:
            raise ProtocolError("a host offers workers before it has joined")
        logger.info("%s is ready for %s", record.name, number_of_workers(record.size))
        self._emit(
            HostReady(
                host.number,
                record.size,
                distance=1,
                name=record.machine,
                label=record.label,
                processes=dict(host.processes),
            )
        )

    def on_message(self, host: RemoteHost, message: Message) -> None:
        """Handle a message by which a host joins or leaves, or somebody drains hosts."""
        record, kind = self._hosts.by_number[host.number], message.kind
        if kind == MessageKind.JOIN:
            self._join(record, Joining.read(message.content))
        elif kind == MessageKind.SEND_JOB and record.joining is not None:
            host.check_queue(PIECES_IN_TRANSIT + SPARE_MESSAGES)
            host.send(MessageKind.JOB_PART, self._admission.piece(record.requests, message.content))
        elif kind == MessageKind.LEAVING and record.ready:
            self._emit(HostLeaves(host.number, grace_seconds(message.content)))
        elif kind == MessageKind.DRAIN and record.joining is None:
            self._drain(record, message.content)
        else:
            raise ProtocolError(f"a message of the kind {kind} is not expected here")

    def lost(self, host: RemoteHost, cause: str, *, wrong: bool, lasting: bool) -> None:
        """Give up a host that is disconnected. One that has ended its connection has not failed."""
        record = self._hosts.by_number[host.number]
        if record.ready and cause == ENDED:
            self._emit(HostLeaves(host.number, 0.0))
            if host.number not in self._hosts.by_number:
                return  # it was ended, because no worker was computing there
        self._hosts.remove(record)
        self._hosts.remember_processes(record)
        if record.ready:
            how = "has left" if cause == ENDED else f"is lost ({cause})"
            self._emit(HostGone(host.number, f"{record.name} {how}"))
        elif record.joining is not None and cause != ENDED:
            _warn([self._refusals.add(f"{record.name} could not start: {cause}", monotonic())])

    # Joining

    def _join(self, host: HostRecord, joining: Joining) -> None:
        if host.joining is not None or (host.waits_for is not None and host.waits_for is not joining):
            raise ProtocolError("a host joined twice")
        reason = self._admission.reason_to_refuse(joining)
        if reason is None:
            host.waits_for, host.remote.may_be_silent = joining, True
            self._ask_for_fingerprint()
            return
        if reason:
            self._refuse(host, f"the host {joining.name}", reason)
            return
        for earlier in self._hosts.joins(host, joining, monotonic()):
            earlier.remote.lose("it connected again")
        self._hosts.takes_processes(host)
        host.remote.send(MessageKind.WELCOME, self._admission.welcome())
        logger.info("%s joins with %s", host.name, number_of_workers(host.size))

    def _ask_for_fingerprint(self) -> None:
        """Ask once for the fingerprint of our problem; ``identified`` is called when it is known, or cannot be."""
        if not self._asked_for_fingerprint:
            self._asked_for_fingerprint = True
            self._emit(FingerprintAsked())

    def _refuse(self, host: HostRecord, what: str, reason: str) -> None:
        """Tell a host why it cannot join or drain others, and end its connection."""
        _warn([self._refusals.add(f"{what} was refused: {reason}", monotonic())])
        host.remote.send(MessageKind.REFUSED, reason.encode())
        self._hosts.remove(host)
        host.remote.end()

    def _drain(self, asking: HostRecord, content: bytes) -> None:
        """Let the hosts of a machine deliver what they compute, and leave; without a name, say which there are."""
        name, has_drain_key = self._admission.name_to_drain(content, asking.remote.link.connection.binding)
        if not has_drain_key:
            self._refuse(asking, "a request to drain hosts", NO_DRAIN_KEY)
            return
        hosts = [] if name is None else self._hosts.named(name)
        if name is not None and not hosts:
            text = f"there is no host {name!r}: {self._hosts.described()}"
            asking.remote.send(MessageKind.REFUSED, text.encode())
            return
        text = self._hosts.described() if name is None else f"the host {name} leaves when its workers have delivered"
        asking.remote.send(MessageKind.DRAIN, text.encode())
        for host in hosts:
            host.reason_to_leave = DRAINED
            if host.joining is not None:  # its connection may break before it has left
                self._admission.bar(host.joining, DRAINED)
            self._emit(HostLeaves(host.remote.number, GRACE_SECONDS))

    # Periodic work

    def tick(self, missing: int, working: int) -> None:
        """Find hosts that are silent or do not join, and say for what the run waits if it has no workers."""
        now = monotonic()
        self._gateway.tick(now)
        for host in self._hosts.late_to_join(self._gateway.silence, now):
            host.remote.lose(f"it did not join within {SECONDS_TO_JOIN:.0f} s")
        _warn([self._refusals.due(now), *self._hosts.without_gradients(now)])
        if working:
            self._wait.ended(now)
        elif missing:
            self._wait_for_workers(missing, now)

    def _wait_for_workers(self, missing: int, now: float) -> None:
        """Warn while no worker runs, and raise after ``start_seconds``."""
        waited, limit = self._wait.seconds(now), self._listen.start_seconds
        text = what_is_missing(self._hosts.capacity, missing, self._hosts.loading, self.instructions)
        if limit is not None and waited > limit:
            raise WorkerFailedError(f"after {waited:.0f} s {text}")
        if self._wait.is_due(now):
            logger.warning("waiting for workers: %s", text)


def _warn(lines: Iterable[str]) -> None:
    for line in filter(None, lines):
        logger.warning("%s", line)
