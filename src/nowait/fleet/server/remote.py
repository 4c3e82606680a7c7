"""One host on another machine, as the server reaches it: its connection, its orders and its reports.

Orders are collected, and sent in batches; gradients arrive with the reports. A host that sends something wrong is
disconnected, and the run goes on.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Protocol, final

from nowait.core import Ticket
from nowait.core.types import Vector
from nowait.fleet.platform import is_ready
from nowait.fleet.server.events import Emit, ProcessDied, SendOrder, TakeReports
from nowait.fleet.server.vectors import HostPoints, ServerVectors
from nowait.fleet.wire.connection import DisconnectedError, Link
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.messages import (
    CLOCK,
    EXIT,
    POINT_ORDER,
    START,
    Message,
    MessageKind,
    details_of,
    exit_of,
    ready_of,
    request_time,
    text_of,
)
from nowait.fleet.wire.records import (
    AUDIT,
    AUDITED,
    CHECKSUM,
    ERROR,
    GRADIENT,
    HURRY,
    LEAVING,
    LOADING,
    MISFIT,
    READY,
    REPORT,
    TRAINING_LOSS,
)
from nowait.fleet.wire.secure import ProtocolError

MESSAGES_AT_ONCE = 64
"""How many messages of one host are handled before others get their turn."""
MOST_QUEUED = 10_000
"""How many parts of messages may wait to be sent to a host that goes on asking."""
LONGEST_TEXT = 60_000
"""Bytes of a text of a host that are shown."""
SECONDS_TO_EXIT = 10.0
"""How long a host that was told to exit may take to close its connection."""
UNKNOWN = -1
"""The number of a host that its owner has not seen yet."""
REPORTS, REPLY, ORDERS = int(MessageKind.REPORTS), MessageKind.REPLY, MessageKind.ORDERS
OTHER_REPORTS = frozenset((MISFIT, ERROR, TRAINING_LOSS, LOADING, READY, CHECKSUM))
"""What workers report besides gradients. Evaluations and fingerprints are not computed by hosts."""


class HostOwner(Protocol):
    """Decides about the hosts of a run: a source."""

    def connected(self, host: RemoteHost) -> bool:
        """Set the number of a host that has authenticated; False to disconnect it."""

    def connected_here(self, identity: bytes, control: socket.socket) -> None:
        """Take the socket to a process on this machine that starts the workers of a host."""

    def ready(self, host: RemoteHost) -> None:
        """Handle that a host can start workers; it may run ``processes`` already."""

    def on_message(self, host: RemoteHost, message: Message) -> None:
        """Handle a message of a kind that only some sources use. A ``ProtocolError`` disconnects the host."""

    def lost(self, host: RemoteHost, cause: str, *, wrong: bool, lasting: bool) -> None:
        """Handle that a host is disconnected.

        ``wrong``: it had sent something wrong, or nothing for too long. ``lasting``: it could not load the problem, and
        no other could.
        """


@final
@dataclass(frozen=True)
class Exchange:
    """What the connections to all hosts of a run use."""

    hub: Hub
    vectors: ServerVectors
    add_details: Callable[[int, int, tuple[Any, ...]], None]
    """``add_details(number, ticket, details)`` keeps what comes with a report."""
    emit: Emit
    take: TakeReports
    owner: HostOwner


@final
class RemoteHost:
    """A host on another machine, as the server reaches it: the port of its workers, and the end of its connection.

    ``forget(host)`` is called once the connection is closed.
    """

    def __init__(self, exchange: Exchange, link: Link, identity: bytes, forget: Callable[[RemoteHost], None]) -> None:
        self.identity, self._exchange, self._forget = identity, exchange, forget
        self.number = UNKNOWN
        self.link, self._hub, self._vectors = link, exchange.hub, exchange.vectors
        self.clock_ahead = 0.0
        """By how many seconds the host's clock is ahead of ours."""
        self.last_message = monotonic()
        """When the host last sent something."""
        self.may_be_silent = False
        """True while silence is no sign of a failure: the host is being started, or waits for us."""
        self.ready = self.delivered = False
        """Whether processes can be started, and whether a worker has delivered a gradient."""
        self.starts, self.first_start = 0, math.inf
        """How many processes were started or adopted, and when the first of them was; infinity if none was."""
        self.exits_by = math.inf
        """When its connection is closed, at the latest, because the host was told to exit."""
        self.processes: dict[int, int] = {}
        """The worker number of each process whose death was not reported, by serial number. Until the host is ready,
        these are the processes of its earlier connections."""
        self._serials: dict[int, int] = {}
        """The serial number of each worker's process."""
        self._host_points = HostPoints()
        self._announced: tuple[bytes, list[int]] = b"", []
        """The latest reports that came with large gradients, and whose gradients these are."""
        self._orders: list[bytes] = []
        self._points: list[Vector] = []
        self._owes_a_reply = self._waits_to_write = False
        self._broken = ""
        """Why nothing could be sent, if it could not."""

    # What the loop calls

    def start(self, number: int, serial: int, began: float) -> SendOrder:
        """Start a process on the host."""
        self.processes[serial], self._serials[number] = number, serial
        return self._started(MessageKind.START, number, serial, began)

    def adopt(self, number: int, serial: int, began: float) -> SendOrder:
        """Use a process that runs already, for a run that began then."""
        return self._started(MessageKind.ADOPT, number, serial, began)

    def _started(self, kind: MessageKind, number: int, serial: int, began: float) -> SendOrder:
        if not self.starts:
            self.first_start = monotonic()
        self.starts += 1
        self.flush()  # these orders are for processes that the host has
        self.send(kind, START.pack(number, serial, began + self.clock_ahead))
        return partial(self.order, number)

    def kill(self, serial: int) -> None:
        """Kill a process on the host; its death is reported like any other."""
        self.send(MessageKind.KILL, EXIT.pack(serial, 0))

    def order(self, number: int, ticket: Ticket, slot: int, instruction: int) -> None:
        """Add an order to the next batch."""
        host_slot, missing = 0, False
        if instruction < HURRY or instruction >= AUDIT:  # the others have no ticket to compute
            host_slot, missing = self._host_points.place(number, ticket[2])
            if missing:
                self._points.append(self._vectors.point(slot, ticket[2]))
        if not (self._orders or self._owes_a_reply):
            self._hub.dirty.append(self)
        self._orders.append(POINT_ORDER.pack(ticket[0], ticket[3], number, instruction, host_slot, missing))

    def flush(self) -> None:
        """Send the batch of orders, also an empty one if the host waits for a reply to its reports."""
        if self._orders or self._owes_a_reply:
            kind = REPLY if self._owes_a_reply else ORDERS
            orders, points, self._orders, self._points, self._owes_a_reply = self._orders, self._points, [], [], False
            self.send(kind, b"".join(orders), points)

    def end(self, reason: str = "") -> None:
        """Tell the host that the run is over, or another reason to exit, and use nothing more that it sends.

        It has some seconds to close its connection; so this message arrives also if others wait to be sent.
        """
        if self.exits_by == math.inf and not self.link.closed:
            self.link.connection.detach()  # somebody else may deliver to the same slot
            self.send(MessageKind.END, reason.encode())
            self.exits_by = monotonic() + SECONDS_TO_EXIT
            self._write()

    # Sending

    def send(self, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Send a message; to a host that is gone or told to exit nothing. Vectors must not change until they are sent.

        A connection that breaks is reported later: whoever sends is in the middle of something.
        """
        if self.exits_by == math.inf and not self.link.closed:
            self.link.connection.send(kind, content, vectors)
            self._write()

    def _write(self) -> None:
        """Send what the system takes; the rest when it takes more."""
        try:
            finished = self.link.write() if self.exits_by == math.inf else self.link.end()
        except DisconnectedError as error:
            self._broken = str(error)
            self._hub.again(self.read)
            return
        if finished == self._waits_to_write:
            self._waits_to_write = not finished
            self._hub.writable(self.link.fd, None if finished else self._write)

    # Receiving

    def read(self) -> None:
        """Handle the messages that have arrived."""
        link = self.link
        try:
            for _ in range(MESSAGES_AT_ONCE):
                if link.closed or (message := link.receive()) is None:
                    break
                if self.exits_by < math.inf:
                    continue
                self.last_message = monotonic()
                if len(link.connection.queued) > MOST_QUEUED:
                    self.check_queue(MOST_QUEUED)
                if message.kind == REPORTS:
                    self.on_reports(message.content, message.vectors)
                else:
                    self._on_other(message)
            else:
                self._hub.again(self.read)  # the socket may not become readable for what is left
        except DisconnectedError as error:
            self.lose(str(error))
        except ProtocolError as error:
            self.lose(str(error), wrong=True)
        if self._broken:
            self.lose(self._broken)

    def read_all(self) -> None:
        """Handle all messages that have arrived: the host has exited, and no more will come."""
        while not self.link.closed and (self.link.connection.has_input or is_ready(self.link.fd, 0)):
            self.read()

    def check_queue(self, most: int) -> None:
        """Raise ``ProtocolError`` if more messages wait to be sent than this: the host does not read them."""
        if len(self.link.connection.queued) > most:
            raise ProtocolError("it asks for more than it reads")

    def lose(self, cause: str, *, wrong: bool = False, lasting: bool = False) -> None:
        """Disconnect the host, and say so if that was not expected."""
        if not self.link.closed:
            self.close()
            if self.exits_by == math.inf:
                self._exchange.owner.lost(self, cause, wrong=wrong, lasting=lasting)

    def close(self, linger_seconds: float | None = None) -> None:
        """Close the connection at once, or within some seconds, in which the last messages are sent."""
        if not self.link.closed:
            self._hub.remove(self.link.fd)
            if linger_seconds is None:
                self.link.close()
            else:
                self.link.finish(linger_seconds)
            self._forget(self)

    def _on_other(self, message: Message) -> None:
        """Handle a message that is not a batch of reports."""
        kind, content, vectors = message
        if len(vectors):
            raise ProtocolError(f"a message of the kind {kind} has {len(vectors)} vectors")
        if kind == MessageKind.DIED:
            self._died(*exit_of(content))
        elif kind == MessageKind.DETAILS:
            number, ticket, details = details_of(content)
            self._check_number(number)
            self._exchange.add_details(number, ticket, details)
        elif kind == MessageKind.ASK_TIME:
            self.send(MessageKind.TIME, CLOCK.pack(request_time(content), monotonic()))
        elif kind == MessageKind.READY:
            self._on_ready(content)
        elif kind == MessageKind.FAILED:
            self.lose(text_of(content[-LONGEST_TEXT:]), lasting=True)
        elif kind not in (MessageKind.HELLO, MessageKind.HEARTBEAT):
            self._exchange.owner.on_message(self, message)

    def _on_ready(self, content: bytes) -> None:
        """Take the difference between the clocks, and which processes run: only such as this host was given before."""
        ahead, running = ready_of(content)
        if self.ready:
            return
        for serial, number in running.items():
            if self.processes.get(serial) != number:
                raise ProtocolError(f"a host has process {serial} for worker {number}, which was not started there")
        self.ready, self.clock_ahead, self.processes = True, ahead, running
        self._serials = {number: serial for serial, number in running.items()}
        self._exchange.owner.ready(self)

    def _died(self, serial: int, code: int) -> None:
        number = self.processes.pop(serial, None)
        if number is None or not self.ready:
            raise ProtocolError(f"a host reported the death of process {serial}, which it does not have")
        if self._serials.get(number) == serial:
            del self._serials[number]
            self._host_points.leave(number)
        self._exchange.emit(ProcessDied(serial, code))

    # Reports

    def on_reports(self, records: bytes, vectors: Sequence[Vector]) -> None:
        """Pass a batch of reports on. The host waits for a reply, which has the next orders."""
        content, numbers = self._announced
        if content is not records:
            numbers = self._checked(records)
        if len(numbers) != len(vectors):
            raise ProtocolError(f"{len(vectors)} gradients came with reports that announce {len(numbers)}")
        gradients: Mapping[int, Vector] = dict(zip(numbers, vectors, strict=True))
        if self._vectors.decodes:
            gradients = self._vectors.decoded(gradients)
        self._owes_a_reply = True
        if numbers:
            self.delivered = True
        self._exchange.take(records, gradients)
        self.flush()

    def _checked(self, records: bytes) -> list[int]:
        """Return the workers whose gradients come with a batch of reports, in their order.

        Raises ``ProtocolError`` if the batch is not one of workers of this host.
        """
        if len(records) % REPORT.size:
            raise ProtocolError(f"a batch of reports has {len(records)} bytes")
        numbers, serials = [], self._serials
        for ticket, started, seconds, number, kind in REPORT.iter_unpack(records):
            if number not in serials:
                self._check_number(number)
            if kind in (GRADIENT, AUDITED):
                if not (-math.inf < started < math.inf and 0 <= seconds < math.inf):
                    raise ProtocolError(f"a gradient was begun at {started} s and took {seconds} s")
                numbers.append(number)
            elif kind == LEAVING:
                if serials[number] != ticket:
                    raise ProtocolError(f"a host said that process {ticket} leaves, which it does not have")
            elif kind not in OTHER_REPORTS or (kind == CHECKSUM and not math.isfinite(started)):
                raise ProtocolError(f"a host sent a report of the kind {kind} with the number {started}")
        return numbers

    def _check_number(self, number: int) -> None:
        if number not in self._serials:
            raise ProtocolError(f"a host reported for worker {number}, which it does not have")

    def destinations(self, kind: int, content: bytes, count: int) -> Sequence[Vector]:
        """Return where the large gradients of a message are written; called before they are received."""
        if self.exits_by < math.inf:
            return [self._vectors.unwanted] * count
        if kind != REPORTS:
            raise ProtocolError(f"a message of the kind {kind} must not have vectors")
        numbers = self._checked(content)
        if len(numbers) != count:
            raise ProtocolError(f"{count} gradients came with reports that announce {len(numbers)}")
        self._announced = content, numbers
        return [self._vectors.destination(number) for number in numbers]
