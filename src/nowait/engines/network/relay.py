"""The host's side of a run: passes messages between the server and the workers of this machine.

Nothing here needs Ray.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import final

from nowait.core.types import Vector
from nowait.engines.network.adoption import Adoption
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.pool import (
    Ended,
    Leaves,
    PipeChannel,
    WorkerPool,
)
from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.transport import Died
from nowait.fleet.host.launch import Zygote
from nowait.fleet.wire.connection import Address, DisconnectedError, HostSocket
from nowait.fleet.wire.messages import (
    AHEAD,
    CLOCK,
    EXIT,
    GRACE,
    POINT_ORDER,
    START,
    Format,
    Message,
    MessageKind,
    Shapes,
    text_of,
)
from nowait.fleet.wire.records import AUDITED, BEGIN, GRACE_SECONDS, GRADIENT, HURRY, LEAVING, REPORT, WITH_DETAILS
from nowait.fleet.wire.secure import ProtocolError
from nowait.fleet.wire.shared import Payload, SharedSlots

HEARTBEAT_SECONDS = 1.0
CLOCK_REQUESTS = 5
"""How often the server is asked for the time; the quickest reply counts."""
SECONDS_FOR_A_REPLY = 120.0
MESSAGES_IN_TRANSIT = 3
"""How many messages of reports may be without a reply."""
SECONDS_TO_ADOPT = 10.0
"""How long processes of an earlier connection wait for the server to start their workers again."""
RUN_IS_OVER = "the run is over"
DRAINED = "this host was drained"
GIVEN_UP = "this host was given up: "
"""Why the server ends a host; the last one is followed by the reason."""
NOBODY = -1
CLOCK_ERROR = 0.1
"""Seconds by which two measurements of the difference between two clocks may differ."""
LEFT = "the host was told to leave"
"""The reason of a relay that ends because of ``leave``."""

StartZygote = Callable[[socket.socket], "subprocess.Popen[bytes]"]
"""Starts a zygote at the other end of a socket."""


def clock_difference(replies: Iterable[tuple[float, float, float]]) -> float:
    """Return by how many seconds this machine's clock is ahead of the server's.

    Each reply is (our clock at the request, the server's clock, our clock at the reply). The server's time belongs to
    the middle of the round trip; the shortest round trip counts.
    """
    return min((now - asked, (asked + now) / 2 - theirs) for asked, theirs, now in replies)[1]


def connect(address: Address, identity: bytes, points: SharedSlots, form: Format) -> HostSocket:
    """Connect to the server, which will send points for the slots. Raises ``DisconnectedError``."""
    server = HostSocket.connect(address, identity, form, partial(point_slots, points))
    try:
        server.finish_handshake(SECONDS_FOR_A_REPLY)
    except BaseException:
        server.close()
        raise
    return server


def point_slots(points: SharedSlots | None, kind: int, content: bytes, count: int) -> list[Vector]:
    """Return the slots of the points that a message of orders brings; None: there are no slots yet."""
    if points is None or kind != MessageKind.ORDERS or len(content) % POINT_ORDER.size:
        raise ProtocolError(f"a message of the kind {kind} must not have vectors")
    slots = [slot for *_, slot, is_new in POINT_ORDER.iter_unpack(content) if is_new]
    if len(slots) != count:
        raise ProtocolError(f"{count} points came with orders that announce {len(slots)}")
    return [points[slot] for slot in slots]


@final
class Relay:
    """Passes messages between the server and the workers of this node."""

    def __init__(self, server: HostSocket, pool: WorkerPool, resources: SharedResources) -> None:
        self._server, self._pool = server, pool
        self._mailbox, self._points, self._gradients = resources.mailbox, resources.points, resources.gradients
        self._channels: dict[int, PipeChannel] = {}
        self._workers: dict[int, int] = {}
        """The worker number of each process, by serial number."""
        self._began: dict[int, float] = {}
        """When the run began according to the order that started each process, by serial number."""
        self._adoption = Adoption()
        self._last_sent = monotonic()
        self._without_reply = 0
        """Messages of reports to which the server has not replied."""
        self._control = pool.control.fileno()
        self._poller = select.poll()
        self._reading_reports = False
        self._server_may_have_sent = True
        self._grace: float | None = None
        """In how many seconds to exit, if ``leave`` was called."""
        self._exit_at = math.inf
        """When to exit, on this machine's clock, once the server was told."""
        self._alarm, self._wake = os.pipe()
        for fd in (server.fd, self._control, self._alarm):
            self._poller.register(fd, select.POLLIN)

    @classmethod
    def open(
        cls,
        server: HostSocket,
        points: SharedSlots,
        shapes: Shapes,
        load_payload: Callable[[], list[memoryview]],
        start_zygote: StartZygote,
        stack: contextlib.ExitStack,
    ) -> Relay:
        """Start a zygote with the job that ``load_payload`` returns; ``stack`` closes everything."""
        gradients = stack.enter_context(contextlib.closing(SharedSlots(*shapes.gradients)))
        mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
        with contextlib.closing(Payload(load_payload())) as payload:
            resources = SharedResources(points, gradients, mailbox, payload, shapes.encoded)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, contextlib.ExitStack() as on_error:
                on_error.callback(ours.close)
                zygote = Zygote(ours, start_zygote(theirs))
                on_error.pop_all()
            pool = WorkerPool.around(ours, resources, zygote)
        stack.callback(pool.close)
        relay = cls(server, pool, resources)
        stack.callback(relay.close)
        return relay

    def attach(self, server: HostSocket) -> None:
        """Go on with another connection, after the first one broke. The processes stay, and are offered for adoption.

        The server starts workers as on a new host. A worker whose process still runs keeps it.
        """
        self._poller.unregister(self._server.fd)
        self._server = server
        self._poller.register(server.fd, server.events)
        self._without_reply = 0
        self._adoption.offer({worker: serial for serial, worker in self._workers.items()})

    def run(self) -> str:
        """Pass messages until the run is over; returns the reason for the end. Raises ``DisconnectedError``."""
        ended = self._wait_until_loaded()
        if isinstance(ended, str):
            return ended
        if ended is not None:
            cause = f"workers could not load the problem:\n{ended.cause}"
            if ended.lasting:
                self._send(MessageKind.FAILED, cause.encode())
            return cause
        self._send(MessageKind.READY, AHEAD.pack(self._clock_ahead()))
        self._adoption.wait_until(monotonic() + SECONDS_TO_ADOPT)
        self._server_may_have_sent = True
        while True:
            reason = (self._obey() if self._server_may_have_sent else "") or self._receive()
            if reason:
                return reason

    def leave(self, seconds: float) -> None:
        """Tell the server that this host exits in so many seconds, or earlier if it says so. For signal handlers.

        Until then reports are passed on, so that workers deliver what they compute. A second call does nothing.
        """
        if self._grace is None:
            self._grace = seconds
            os.write(self._wake, b"1")

    @property
    def leaves(self) -> bool:
        """True once ``leave`` was called."""
        return self._grace is not None

    def _depart(self, grace: float) -> str:
        """Tell the server, once, that this host leaves. Returns the reason to end when its time is over."""
        if self._exit_at == math.inf:
            os.read(self._alarm, 1)
            self._exit_at = monotonic() + grace
            self._send(MessageKind.LEAVING, GRACE.pack(grace))
        return LEFT if monotonic() > self._exit_at else ""

    def close(self) -> None:
        """Close the pipes to the workers."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        os.close(self._alarm)
        os.close(self._wake)

    def _wait_until_loaded(self) -> Ended | str | None:
        """Wait until the zygote has loaded the problem. Returns its end if it could not, or why this host ends."""
        while not self._pool.ready:
            self._poll(HEARTBEAT_SECONDS)
            self._heartbeat()
            reason = LEFT if self.leaves else self._obey()
            if reason:
                return reason
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
            self._poll(0 if self._server.pending() else HEARTBEAT_SECONDS)
            self._heartbeat()
        raise DisconnectedError(f"the server did not reply within {SECONDS_FOR_A_REPLY:.0f} s")

    def _poll(self, seconds: float) -> list[int]:
        """Return the descriptors that are ready, at the latest after so many seconds."""
        self._poller.modify(self._server.fd, self._server.events)
        return [fd for fd, _ in self._poller.poll(1000 * seconds)]

    # From the server to the workers

    def _obey(self) -> str:
        """Execute what the server sent. Returns the reason to end if that was an order to end."""
        while (received := self._server.receive()) is not None:
            if received.kind == MessageKind.ORDERS:
                self._pass_orders_on(received)
            elif received.kind == MessageKind.START:
                self._start(*START.unpack(received.content))
            elif received.kind == MessageKind.KILL:
                self._kill(EXIT.unpack(received.content)[0])
            elif received.kind == MessageKind.END:
                return text_of(received.content) or RUN_IS_OVER
        return ""

    def _pass_orders_on(self, orders: Message) -> None:
        """Send orders to the workers. Large points are in their slots already; small ones are copied."""
        self._without_reply = max(0, self._without_reply - 1)
        arrived = iter(orders.vectors)
        for ticket, job, worker, instruction, slot, is_new in POINT_ORDER.iter_unpack(orders.content):
            point = self._points[slot]
            if is_new and (sent := next(arrived)) is not point:
                point[:] = sent
            if self._adoption.uncertain and instruction < HURRY:
                self._adoption.ordered(worker, ticket)
            channel = self._channels.get(worker)
            if channel is not None:  # else it died, and the server will know
                channel.send(ticket, job, slot, instruction)

    def _start(self, worker: int, serial: int, began: float) -> None:
        if self._adoption.adopt(worker, serial):
            self._correct_start(worker, serial, began)
            return
        self._forget(worker)
        self._channels[worker] = self._pool.start(worker, serial, began)
        self._workers[serial], self._began[serial] = worker, began
        self._adoption.started(serial)

    def _correct_start(self, worker: int, serial: int, began: float) -> None:
        """Tell a process that was adopted when the run began, if that was after the process was started."""
        here = self._adoption.serial_here(serial)
        later = began - self._began.get(NOBODY if here is None else here, began)
        if later > CLOCK_ERROR:
            self._channels[worker].send(0, round(1e9 * later), 0, BEGIN)

    def _kill(self, serial: int) -> None:
        here = self._adoption.serial_here(serial)
        if here is not None:
            self._pool.kill(here)

    def _forget(self, worker: int) -> None:
        if worker in self._channels:
            self._channels.pop(worker).close()
            self._workers = {serial: number for serial, number in self._workers.items() if number != worker}

    # From the workers to the server

    def _receive(self) -> str:
        """Wait for workers or the server, and pass reports and deaths on. Returns the cause if the zygote is gone."""
        self._read_reports(self._without_reply < MESSAGES_IN_TRANSIT)
        has_input = self._server.pending()
        wait = not has_input and not self._pool.has_messages
        ready = self._poll(HEARTBEAT_SECONDS if wait else 0)
        self._server_may_have_sent = has_input or self._server.fd in ready
        if self._mailbox.reports in ready:
            self._pass_reports_on(self._mailbox.read())
        if self._control in ready or self._pool.has_messages:
            for event in self._pool.receive():
                self._pass_reports_on(self._mailbox.drain())
                if isinstance(event, Ended):
                    return event.cause
                if isinstance(event, Leaves):
                    self.leave(GRACE_SECONDS)
                if isinstance(event, Died):
                    self._on_death(event)
        self._heartbeat()
        for worker, serial in self._adoption.not_adopted(monotonic()):
            self._pool.kill(serial)
            self._forget(worker)
        return "" if self._grace is None else self._depart(self._grace)

    def _on_death(self, event: Died) -> None:
        self._forget(self._workers.get(event.serial, NOBODY))
        self._began.pop(event.serial, None)
        serial = self._adoption.died(event.serial)
        if serial is not None:
            self._send(MessageKind.DIED, EXIT.pack(serial, event.code))

    def _read_reports(self, reading: bool) -> None:
        """Poll the report pipe or not: while enough messages are in transit, reports collect into a larger batch."""
        if reading and not self._reading_reports:
            self._poller.register(self._mailbox.reports, select.POLLIN)
        elif self._reading_reports and not reading:
            self._poller.unregister(self._mailbox.reports)
        self._reading_reports = reading

    def _pass_reports_on(self, records: bytes) -> None:
        if records and self._adoption.uncertain:
            records = self._adoption.wanted(records)
        if not records:
            return
        vectors: list[Vector] = []
        gradients = self._gradients.views
        for ticket, _, _, worker, kind in REPORT.iter_unpack(records):
            if kind in (GRADIENT, AUDITED):
                vectors.append(gradients[worker])
            elif kind == LEAVING:
                records = self._adoption.with_serials(records)
            elif kind in WITH_DETAILS and (details := self._mailbox.details(worker, ticket)) is not None:
                self._send(MessageKind.DETAILS, json.dumps((worker, ticket, details)).encode())
        self._without_reply += 1
        self._send(MessageKind.REPORTS, records, vectors)

    def _heartbeat(self) -> None:
        if monotonic() - self._last_sent > HEARTBEAT_SECONDS:
            self._send(MessageKind.HEARTBEAT)

    def _send(self, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        self._last_sent = monotonic()
        self._server.send(kind, content, vectors)
