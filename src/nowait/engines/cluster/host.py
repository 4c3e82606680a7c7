"""The host: a Ray actor that runs some workers of a run on its node.

On the driver's own node it starts a zygote that is connected directly to the server, and waits for its exit. On other
nodes it passes messages between the server and its workers, with which it shares memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, final

import numpy as np

from nowait.core.errors import WorkerFailedError
from nowait.core.types import Vector
from nowait.engines.cluster.messages import AHEAD, CLOCK, EXIT, SAME_POINT, START, Format, Message, MessageKind
from nowait.engines.cluster.sockets import Address, HostSocket
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.payload import Payload
from nowait.engines.processes.pool import Ended, PipeChannel, WorkerPool, Zygote, start_zygote
from nowait.engines.processes.readiness import is_ready
from nowait.engines.processes.resources import SharedResources
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.workers.records import ORDER, REPORT, Instruction, ReportKind
from nowait.engines.workers.transport import Died

HEARTBEAT_SECONDS = 1.0
CLOCK_REQUESTS = 5
"""How often the server is asked for the time; the quickest reply counts."""
SECONDS_FOR_A_REPLY = 120.0
MESSAGES_IN_TRANSIT = 3
"""How many messages of reports may be without a reply."""
NOBODY = -1
GRADIENT, HURRY = int(ReportKind.GRADIENT), int(Instruction.HURRY)


@final
@dataclass(frozen=True)
class HostSettings:
    """The settings that a host receives at its start."""

    identity: bytes
    local_address: tuple[str, bytes] | None
    """On the driver's own node: the server's Unix socket and the password."""
    address: Address | None
    """On other nodes: where to connect."""
    payload: list[Any]
    """On other nodes: Ray's references to the parts of the payload."""
    length: int
    dtype: str
    threads: int
    path: list[str]
    """Where the driver looks for modules."""
    ray_threads: str
    """The value that Ray gives OMP_NUM_THREADS for the whole host if it is not set."""


@final
class Host:
    """The actor."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings

    def serve(self) -> str:
        """Run until the run is over; returns the reason for the end."""
        if self._settings.local_address is not None:
            return _serve_locally(self._settings, self._settings.local_address)
        with contextlib.ExitStack() as stack:
            return Relay.open(self._settings, stack).run()


def _serve_locally(settings: HostSettings, local_address: tuple[str, bytes]) -> str:
    """Start a zygote that is connected to the server, and wait for its exit."""
    name, password = local_address
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.connect(name)
        control.send(password + settings.identity)
        zygote = _start_zygote(settings, control)
    status = zygote.wait()
    return f"the process that starts workers ended with status {status}"


def _start_zygote(settings: HostSettings, control: socket.socket) -> subprocess.Popen[bytes]:
    if os.environ.get("OMP_NUM_THREADS") == settings.ray_threads:
        del os.environ["OMP_NUM_THREADS"]
    path = [entry for entry in settings.path if os.path.isdir(entry)]
    return start_zygote(control, settings.threads, limit_output=True, path=path)


def clock_difference(replies: Iterable[tuple[float, float, float]]) -> float:
    """Return by how many seconds this machine's clock is ahead of the server's.

    Each reply is (our clock at the request, the server's clock, our clock at the reply). The server's time belongs to
    the middle of the round trip; the shortest round trip counts.
    """
    return min((now - asked, (asked + now) / 2 - theirs) for asked, theirs, now in replies)[1]


@final
class Relay:
    """Passes messages between the server and the workers of this node."""

    def __init__(self, server: HostSocket, pool: WorkerPool, resources: SharedResources) -> None:
        self._server, self._pool = server, pool
        self._mailbox, self._points, self._gradients = resources.mailbox, resources.points, resources.gradients
        self._channels: dict[int, PipeChannel] = {}
        self._workers: dict[int, int] = {}
        """The worker number of each process, by serial number."""
        self._last_sent = monotonic()
        self._without_reply = 0
        """Messages of reports to which the server has not replied."""
        self._control = pool.control.fileno()
        self._poller = select.poll()
        self._reading_reports = False
        for fd in (server.fd, server.break_fd, self._control):
            self._poller.register(fd, select.POLLIN)

    @classmethod
    def open(cls, settings: HostSettings, stack: contextlib.ExitStack) -> Relay:
        """Connect to the server and start a zygote; ``stack`` closes everything."""
        import ray

        if settings.address is None:
            raise ValueError("a relay needs the server's address")
        length, dtype = settings.length, np.dtype(settings.dtype)
        server = HostSocket.connect(settings.address, settings.identity, Format(length, dtype))
        stack.callback(server.close)
        points = stack.enter_context(contextlib.closing(SharedSlots(length, dtype)))
        gradients = stack.enter_context(contextlib.closing(SharedSlots(length, dtype)))
        mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
        with contextlib.closing(Payload([memoryview(part) for part in ray.get(settings.payload)])) as payload:
            resources = SharedResources(points, gradients, mailbox, payload)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, contextlib.ExitStack() as on_error:
                on_error.callback(ours.close)
                zygote = Zygote(ours, _start_zygote(settings, theirs))
                on_error.pop_all()
            pool = WorkerPool.around(ours, resources, zygote)
        stack.callback(pool.close)
        relay = cls(server, pool, resources)
        stack.callback(relay._close_channels)
        return relay

    def run(self) -> str:
        """Pass messages until the run is over; returns the reason for the end."""
        self._send(MessageKind.HEARTBEAT)  # authenticates: connections that have sent nothing may be closed
        ended = self._wait_until_loaded()
        if ended is not None:
            cause = f"workers could not load the problem:\n{ended.cause}"
            if ended.lasting:
                self._send(MessageKind.FAILED, cause.encode())
            return cause
        self._send(MessageKind.READY, AHEAD.pack(self._clock_ahead()))
        while True:
            reason = self._obey() or self._receive()
            if reason:
                return reason

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _wait_until_loaded(self) -> Ended | None:
        """Wait until the zygote has loaded the problem. Returns its end if it could not."""
        while not self._pool.ready:
            is_ready(self._control, HEARTBEAT_SECONDS)
            for event in self._pool.receive():
                if isinstance(event, Ended):
                    return event
        return None

    def _clock_ahead(self) -> float:
        replies = []
        for _ in range(CLOCK_REQUESTS):
            self._send(MessageKind.ASK_TIME, CLOCK.pack(monotonic(), 0.0))
            replies.append((*CLOCK.unpack(self._wait_for_time()), monotonic()))
        return clock_difference(replies)

    def _wait_for_time(self) -> bytes:
        deadline = monotonic() + SECONDS_FOR_A_REPLY
        while monotonic() < deadline:
            while (received := self._server.receive()) is not None:
                if received.kind == MessageKind.TIME:
                    return received.content
            self._poller.poll(0 if self._server.pending() else 1000 * HEARTBEAT_SECONDS)
            self._heartbeat()
        raise WorkerFailedError(f"the server did not reply within {SECONDS_FOR_A_REPLY:.0f} s")

    # From the server to the workers

    def _obey(self) -> str:
        """Execute what the server sent. Returns the reason to end if that was an order to end."""
        while (received := self._server.receive()) is not None:
            if received.kind == MessageKind.ORDERS:
                self._pass_orders_on(received)
            elif received.kind == MessageKind.START:
                self._start(*START.unpack(received.content))
            elif received.kind == MessageKind.KILL:
                self._pool.kill(EXIT.unpack(received.content)[0])
            elif received.kind == MessageKind.END:
                return "the run is over"
        return ""

    def _pass_orders_on(self, orders: Message) -> None:
        """Copy the points into the slots of the workers, and send them their orders."""
        self._without_reply = max(0, self._without_reply - 1)
        arrived, point = iter(orders.vectors), None
        for ticket, job, worker, instruction in ORDER.iter_unpack(orders.content):
            if instruction != HURRY:
                if not instruction & SAME_POINT:
                    point = next(arrived)
                self._points[worker][:] = point
            channel = self._channels.get(worker)
            if channel is not None:  # else it died, and the server will know
                channel.send(ticket, job, worker, instruction & ~SAME_POINT)

    def _start(self, worker: int, serial: int, began: float) -> None:
        self._forget(worker)
        _ = self._points[worker]
        self._channels[worker] = self._pool.start(worker, serial, began)
        self._workers[serial] = worker

    def _forget(self, worker: int) -> None:
        if worker in self._channels:
            self._channels.pop(worker).close()
            self._workers = {serial: number for serial, number in self._workers.items() if number != worker}

    # From the workers to the server

    def _receive(self) -> str:
        """Wait for workers or the server, and pass reports and deaths on. Returns the cause if the zygote is gone."""
        self._read_reports(self._without_reply < MESSAGES_IN_TRANSIT)
        pending = self._server.pending() or self._pool.has_messages
        ready = [fd for fd, _ in self._poller.poll(0 if pending else 1000 * HEARTBEAT_SECONDS)]
        if (not ready or self._server.break_fd in ready) and self._server.broken():
            return "the connection to the server broke"
        if self._mailbox.reports in ready:
            self._pass_reports_on(self._mailbox.read())
        if self._control in ready or self._pool.has_messages:
            for event in self._pool.receive():
                self._pass_reports_on(self._mailbox.drain())
                if isinstance(event, Ended):
                    return event.cause
                if isinstance(event, Died):
                    self._forget(self._workers.get(event.serial, NOBODY))
                    self._send(MessageKind.DIED, EXIT.pack(event.serial, event.code))
        self._heartbeat()
        return ""

    def _read_reports(self, reading: bool) -> None:
        """Poll the report pipe or not: while enough messages are in transit, reports collect into a larger batch."""
        if reading and not self._reading_reports:
            self._poller.register(self._mailbox.reports, select.POLLIN)
        elif self._reading_reports and not reading:
            self._poller.unregister(self._mailbox.reports)
        self._reading_reports = reading

    def _pass_reports_on(self, records: bytes) -> None:
        if not records:
            return
        vectors: list[Vector] = []
        gradients = self._gradients.views
        for ticket, _, _, worker, kind in REPORT.iter_unpack(records):
            if kind == GRADIENT:
                vectors.append(gradients[worker])
            elif (details := self._mailbox.details(worker, ticket)) is not None:
                self._send(MessageKind.DETAILS, json.dumps((worker, ticket, details)).encode())
        self._without_reply += 1
        self._send(MessageKind.REPORTS, records, vectors)

    def _heartbeat(self) -> None:
        if monotonic() - self._last_sent > HEARTBEAT_SECONDS:
            self._send(MessageKind.HEARTBEAT)

    def _send(self, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        self._last_sent = monotonic()
        self._server.send(kind, content, vectors)
