"""The host's side of a run: passes messages between the server and the worker processes of this machine.

The processes survive their connection. When it breaks and is made again, they keep their serial numbers: the server is
told which of them still run, uses those whose workers it wants, and kills the others. What they computed for an
earlier connection is dropped: the server has lost that ticket, and the gradient might be overwritten while it is sent.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any, final

from nowait.core import Ticket
from nowait.core.types import Vector
from nowait.fleet.host.host import Machine, Pool, Resources
from nowait.fleet.host.launch import Zygote
from nowait.fleet.server.events import HostEvent, HostGone, HostLeaves, HostReady, ProcessDied, SendOrder
from nowait.fleet.wire.connection import Address, DisconnectedError, HostSocket
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.messages import (
    AHEAD,
    CLOCK,
    EXIT,
    GRACE,
    POINT_ORDER,
    RUN_IS_OVER,
    RUNNING,
    START,
    Format,
    Message,
    MessageKind,
    text_of,
)
from nowait.fleet.wire.records import (
    AUDITED,
    BEGIN,
    GRACE_SECONDS,
    GRADIENT,
    HURRY,
    LEAVING,
    READY,
    REPORT,
    WITH_DETAILS,
)
from nowait.fleet.wire.secure import ProtocolError
from nowait.fleet.wire.shared import SharedSlots

HEARTBEAT_SECONDS = 1.0
CLOCK_REQUESTS = 5
"""How often the server is asked for the time; the quickest reply counts."""
SECONDS_FOR_A_REPLY = 120.0
MESSAGES_IN_TRANSIT = 3
"""How many messages of reports may be without a reply."""
CLOCK_ERROR = 0.1
"""Seconds by which two measurements of the difference between two clocks may differ."""
LEFT = "the host was told to leave"
"""The reason of a relay that ends because of ``leave``."""
THIS_HOST = 1
"""The number of the only host of the machine. It may leave, which ``HOME`` does not."""
ORDERS, REPLY = int(MessageKind.ORDERS), int(MessageKind.REPLY)


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
    if points is None or kind not in (ORDERS, REPLY) or len(content) % POINT_ORDER.size:
        raise ProtocolError(f"a message of the kind {kind} must not have vectors")
    slots = [slot for *_, slot, is_new in POINT_ORDER.iter_unpack(content) if is_new]
    if len(slots) != count:
        raise ProtocolError(f"{count} points came with orders that announce {len(slots)}")
    return [points[slot] for slot in slots]


@final
class Relay:
    """Passes messages between the server and the workers of this machine. It closes the zygote that it is given."""

    def __init__(self, resources: Resources, zygote: Zygote) -> None:
        self._resources, self._zygote = resources, zygote
        self._points = resources.points
        self._hub = Hub()
        self._server: HostSocket
        self._sends: dict[int, SendOrder] = {}
        """What sends orders to the process of each worker."""
        self._running: dict[int, int] = {}
        """The worker of each process whose death was not reported here, by serial number."""
        self._began: dict[int, float] = {}
        """When the run began according to the order that started each process, by serial number."""
        self._uncertain: dict[int, float] = {}
        """For workers that may still report to the earlier connection: the first ticket of the present one."""
        self.loaded = False
        """True once the zygote has loaded the problem."""
        self._is_ready = False
        """True once the server was told that workers can be started."""
        self._times: list[tuple[float, float, float]] = []
        """The replies of the server to requests for the time."""
        self._last_sent = self._asked = 0.0
        """When something was sent last, and when the server was asked for the time."""
        self._in_transit = 0
        """Messages of reports to which the server has not replied."""
        self._is_reading = self._waits_to_write = False
        """Whether the reports of workers are read, and whether the system has not taken all that was sent."""
        self._grace: float | None = None
        """In how many seconds to exit, if ``leave`` was called."""
        self._exit_at = math.inf
        """When to exit, on this machine's clock, once the server was told."""
        self._reason = ""
        """Why this host ends."""
        self._broken: DisconnectedError | None = None
        self._stack = contextlib.ExitStack()

    def open(self) -> None:
        """Give the job to the zygote. It is loaded while ``run`` passes messages."""
        with contextlib.ExitStack() as stack:
            self._machine = Machine(self._resources, self._hub, self._on_reports)
            stack.callback(self._machine.close)
            self._alarm, self._wake = os.pipe()
            stack.callback(os.close, self._alarm)
            stack.callback(os.close, self._wake)
            self._hub.add(self._alarm, self._on_alarm)
            self._pool: Pool = self._machine.add(self._zygote, self._on_event, seats=math.inf, host=THIS_HOST)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Kill all processes."""
        self._stack.close()

    def run(self, server: HostSocket) -> str:
        """Pass messages until the run is over; returns the reason for the end. Raises ``DisconnectedError``.

        It may be called again with another connection of the same run.
        """
        self._begin(server)
        try:
            self._read()  # what arrived earlier
            while not self._reason:
                self._hub.wait(HEARTBEAT_SECONDS)
                self._look(monotonic())
                if self._broken is not None and not self._reason:
                    raise self._broken
            return self._reason
        finally:
            self._hub.remove(server.fd)

    def leave(self, seconds: float) -> None:
        """Tell the server that this host exits in so many seconds, or earlier if it says so. For signal handlers.

        Until then reports are passed on, so that workers deliver what they compute. A second call does nothing.
        """
        if self._grace is None:
            self._grace = seconds
            os.write(self._wake, b"1")

    def _begin(self, server: HostSocket) -> None:
        """Use a connection. The server starts workers as on a new host, but can use the processes that run."""
        self._server, self._broken, self._is_ready, self._waits_to_write = server, None, False, False
        self._last_sent, self._in_transit = monotonic(), 0
        latest = {number: serial for serial, number in self._running.items()}  # an earlier one was killed, and dies
        self._running = {serial: number for number, serial in latest.items()}
        self._uncertain = dict.fromkeys(latest, math.inf)
        self._read_reports(reading=False)
        self._hub.add(server.fd, self._read)
        if self.loaded:
            self._measure_clock()

    def _look(self, now: float) -> None:
        """Do what is due: send a heartbeat, leave, give up a server that does not reply."""
        if now - self._last_sent > HEARTBEAT_SECONDS:
            self._send(MessageKind.HEARTBEAT)
        if self._grace is not None:
            self._depart(self._grace, now)
        if self.loaded and not self._is_ready and now - self._asked > SECONDS_FOR_A_REPLY:
            raise DisconnectedError(f"the server did not reply within {SECONDS_FOR_A_REPLY:.0f} s")

    def _depart(self, grace: float, now: float) -> None:
        """Tell the server, once, that this host leaves. Without workers, or when its time is over, end."""
        if not self._is_ready or now > self._exit_at:
            self._reason = self._reason or LEFT
        elif self._exit_at == math.inf:
            self._exit_at = now + grace
            self._send(MessageKind.LEAVING, GRACE.pack(grace))

    def _on_alarm(self) -> None:
        os.read(self._alarm, 1)

    # To the server

    def _send(self, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Send to the server. If the connection breaks, ``run`` says so: whoever sends goes on first."""
        if self._broken is not None:
            return
        self._last_sent = monotonic()
        try:
            self._server.send(kind, content, vectors)
        except DisconnectedError as error:
            self._broken = error
        if self._server.blocked != self._waits_to_write:
            self._wait_to_write()

    def _wait_to_write(self) -> None:
        """Go on writing when the system takes more, or no longer."""
        self._waits_to_write = self._server.blocked
        self._hub.writable(self._server.fd, self._read if self._waits_to_write else None)

    def _measure_clock(self) -> None:
        """Ask the server for the time, as often as is needed to know by how much its clock differs."""
        self._times = []
        self._ask_for_time()

    def _ask_for_time(self) -> None:
        self._asked = monotonic()
        self._send(MessageKind.ASK_TIME, CLOCK.pack(self._asked, 0.0))

    def _on_time(self, asked: float, theirs: float) -> None:
        self._times.append((asked, theirs, monotonic()))
        if len(self._times) < CLOCK_REQUESTS:
            self._ask_for_time()
        elif not self._is_ready:
            running = b"".join(RUNNING.pack(serial, number) for serial, number in self._running.items())
            self._send(MessageKind.READY, AHEAD.pack(clock_difference(self._times)) + running)
            self._is_ready = True
            self._read_reports(reading=True)

    # From the server to the workers

    def _read(self) -> None:
        """Execute what the server sent."""
        try:
            while not self._reason and (message := self._server.receive()) is not None:
                if message.kind in (ORDERS, REPLY):
                    self._on_orders(message)
                else:
                    self._on_other(message)
        except DisconnectedError as error:
            self._broken = self._broken or error
        if self._server.blocked != self._waits_to_write:
            self._wait_to_write()

    def _on_orders(self, message: Message) -> None:
        """Send orders to the workers. Large points are in their slots already; small ones are copied."""
        if message.kind == REPLY:
            self._in_transit -= 1
            if not self._is_reading:
                self._read_reports(reading=True)
        arrived, sends = iter(message.vectors), self._sends
        for ticket, job, number, instruction, slot, is_new in POINT_ORDER.iter_unpack(message.content):
            if is_new:
                sent, point = next(arrived), self._points[slot]
                if sent is not point:
                    point[:] = sent
            if self._uncertain and instruction < HURRY and self._uncertain.get(number) == math.inf:
                self._uncertain[number] = ticket
            send = sends.get(number)
            if send is not None:  # else it died, and the server will know
                send(Ticket(ticket, number, 0, job), slot, instruction)

    def _on_other(self, message: Message) -> None:
        kind, content = message.kind, message.content
        if kind == MessageKind.TIME:
            self._on_time(*CLOCK.unpack(content))
        elif kind == MessageKind.START:
            self._start(*START.unpack(content))
        elif kind == MessageKind.ADOPT:
            self._correct_start(*START.unpack(content))
        elif kind == MessageKind.KILL:
            self._pool.kill(EXIT.unpack(content)[0])
        elif kind == MessageKind.END:
            self._reason = text_of(content) or RUN_IS_OVER

    def _start(self, number: int, serial: int, began: float) -> None:
        self._sends[number] = self._pool.start(number, serial, began)
        self._running[serial], self._began[serial] = number, began

    def _correct_start(self, number: int, serial: int, began: float) -> None:
        """Tell a process that the server uses again when the run began, if that was after the process was started."""
        later = began - self._began.get(serial, began)
        if later > CLOCK_ERROR:
            self._sends[number](Ticket(0, number, 0, round(1e9 * later)), 0, BEGIN)

    # From the workers to the server

    def _on_event(self, event: HostEvent) -> None:
        """Handle what the zygote says."""
        if isinstance(event, ProcessDied):
            self._on_death(event.serial, event.code)
        elif isinstance(event, HostReady):
            self.loaded = True
            self._measure_clock()
        elif isinstance(event, HostLeaves):
            self.leave(GRACE_SECONDS)
        elif isinstance(event, HostGone):
            cause = event.cause if self.loaded else f"workers could not load the problem:\n{event.cause}"
            if event.lasting:
                self._send(MessageKind.FAILED, cause.encode())
            self._reason = self._reason or cause

    def _on_death(self, serial: int, code: int) -> None:
        number = self._running.pop(serial, None)
        self._began.pop(serial, None)
        if number is None:
            return
        if number not in self._running.values():
            del self._sends[number]
            self._uncertain.pop(number, None)
        if self._is_ready:
            self._send(MessageKind.DIED, EXIT.pack(serial, code))

    def _read_reports(self, *, reading: bool) -> None:
        """Read reports or not: while enough messages are in transit, they collect into a larger batch."""
        reading = reading and self._is_ready and self._in_transit < MESSAGES_IN_TRANSIT
        if reading and not self._is_reading:
            self._machine.open()
        elif self._is_reading and not reading:
            self._machine.pause()
        self._is_reading = reading

    def _on_reports(self, records: bytes, gradients: Sequence[Vector]) -> None:
        """Pass reports on, with the gradients and details that they announce."""
        if records and self._uncertain:
            records = self._wanted(records)
        if not records or not self._is_ready:
            return
        vectors: list[Vector] = []
        for ticket, _, _, number, kind in REPORT.iter_unpack(records):
            if kind in (GRADIENT, AUDITED):
                vectors.append(gradients[number])
            elif kind in WITH_DETAILS and (details := self._machine.details(number, ticket)) is not None:
                self._send(MessageKind.DETAILS, json.dumps((number, ticket, details)).encode())
        self._in_transit += 1
        if self._in_transit >= MESSAGES_IN_TRANSIT:
            self._read_reports(reading=False)
        self._send(MessageKind.REPORTS, records, vectors)

    def _wanted(self, records: bytes) -> bytes:
        """Return the reports of a batch without those on orders of an earlier connection.

        The tickets of a worker have rising numbers. Those of audits are below 0, and never used again.
        """
        kept: list[tuple[Any, ...]] = []
        for record in REPORT.iter_unpack(records):
            ticket, *_, number, kind = record
            if kind in (LEAVING, READY) or ticket < 0:
                kept.append(record)
            elif ticket >= self._uncertain.get(number, -math.inf):
                self._uncertain.pop(number, None)
                kept.append(record)
        return b"".join(REPORT.pack(*record) for record in kept)
