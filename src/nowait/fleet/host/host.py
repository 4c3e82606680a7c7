"""The worker processes of one machine: starts and kills them, sends orders, and passes on what they report.

A ``Machine`` has the memory and the pipes that all its workers share. Each ``Pool`` of it is a host of the fleet: one
zygote and the workers that it has started. The server calls a pool directly; on other machines a relay does.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nowait.core import Ticket
from nowait.core.memory import Slots
from nowait.core.types import Vector
from nowait.fleet.host.launch import Zygote, ZygoteCopy
from nowait.fleet.host.log import open_log
from nowait.fleet.platform import details_sockets, is_ready
from nowait.fleet.server.events import (
    HOME,
    Emit,
    HostGone,
    HostLeaves,
    HostReady,
    ProcessDied,
    SendOrder,
    TakeReports,
)
from nowait.fleet.wire.hub import Hub
from nowait.fleet.wire.records import GRACE_SECONDS, ORDER, REPORT, Job
from nowait.fleet.wire.shared import Payload, shared_slots
from nowait.fleet.wire.stream import LONGEST_MESSAGE, MessageStream
from nowait.problems.encodings import AS_THEY_ARE, Encodings

READ_BYTES = 2048 * REPORT.size
READS = 8
"""How often reports are read at most before it is the turn of other descriptors."""
SECONDS_TO_END = 2.0
"""How long a zygote that is not a child of this process may take to exit."""


@final
class Mailbox:
    """One pipe for the reports of all workers, read in batches, and one datagram socket for details of reports.

    This process keeps the workers' ends open too, to pass them to zygotes that start later.
    """

    def __init__(self, pipe: tuple[int, int], sockets: tuple[socket.socket, socket.socket]) -> None:
        self.reports, self.workers_reports = pipe
        os.set_blocking(self.reports, False)
        self._socket, self.workers_details = sockets
        self._socket.setblocking(False)
        self._latest: dict[int, tuple[int, tuple[Any, ...]]] = {}
        """The latest details of each worker, with their ticket. A worker has one ticket at a time, and sends details
        before the report. Details of another ticket come from a process that died before it reported."""

    @classmethod
    def open(cls) -> Mailbox:
        """Open the pipe and the socket."""
        sockets = details_sockets()
        try:
            return cls(os.pipe(), sockets)
        except BaseException:
            for end in sockets:
                end.close()
            raise

    def drain(self) -> bytes:
        """Read all reports that have arrived. Details are read too: a full socket would block workers."""
        self._collect()
        reports = b""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self.reports, READ_BYTES):
                reports += more
        return reports

    def details(self, number: int, ticket_id: int) -> tuple[Any, ...] | None:
        """Return what a worker sent besides its report on a ticket; None if nothing arrived. Never waits."""
        self._collect()
        ticket, content = self._latest.pop(number, (None, None))
        return content if ticket == ticket_id else None

    def add_details(self, number: int, ticket_id: int, details: tuple[Any, ...]) -> None:
        """Store details that arrived through another connection."""
        self._latest[number] = (ticket_id, details)

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                number, ticket_id, *content = pickle.loads(self._socket.recv(2 * LONGEST_MESSAGE))
                self._latest[number] = (ticket_id, tuple(content))

    def close(self) -> None:
        """Close both ends; a worker that writes gets an error."""
        for pipe in (self.reports, self.workers_reports):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._socket.close()
        self.workers_details.close()


@final
@dataclass(frozen=True)
class Resources:
    """What the workers of one machine share: slots for points and gradients, the mailbox, and the job."""

    points: Slots
    gradients: Slots
    mailbox: Mailbox
    payload: Payload
    encoded: bool = False
    """True if slots have vectors as they are sent between machines: workers decode points, and encode gradients."""
    encodings: Encodings = AS_THEY_ARE
    """How vectors are sent to other machines."""


@contextlib.contextmanager
def shared_resources(points: Slots, job: Job) -> Iterator[Resources]:
    """Open the resources of a run, and close them (and ``points``) at its end."""
    with contextlib.ExitStack() as stack:
        stack.callback(points.close)
        gradients = shared_slots(job.memory, points.length, points.dtype)
        stack.callback(gradients.close)
        mailbox = stack.enter_context(contextlib.closing(Mailbox.open()))
        payload = stack.enter_context(contextlib.closing(Payload.of(job)))
        yield Resources(points, gradients, mailbox, payload, encodings=Encodings.of(job.problem))


@final
class Machine:
    """The worker processes of this machine, by host. ``take(records, gradients)`` receives their reports."""

    def __init__(self, resources: Resources, hub: Hub, take: TakeReports) -> None:
        self.resources, self.hub, self._take = resources, hub, take
        self._mailbox = resources.mailbox
        self._gradients: list[Vector] = resources.gradients.views
        self.pools: dict[int, Pool] = {}
        self.details = resources.mailbox.details
        self._is_paused = True

    def open(self) -> None:
        """Begin, or go on, to read reports."""
        self._is_paused = False
        self.hub.add(self._mailbox.reports, self.read_reports)

    def pause(self) -> None:
        """Read no reports until ``open`` is called: they collect into a larger batch."""
        self._is_paused = True
        self.hub.remove(self._mailbox.reports)

    def read_reports(self) -> None:
        """Pass on the reports that have arrived, if they were not drained since the pipe became readable.

        While workers are quick, more arrive meanwhile: reading once more costs less than waiting for the pipe again.
        """
        try:
            for _ in range(READS):
                self._take(os.read(self._mailbox.reports, READ_BYTES), self._gradients)
                if self._is_paused:
                    return
        except BlockingIOError:
            return

    def drain(self) -> None:
        """Pass on all reports that have arrived."""
        reports = self._mailbox.drain()
        if reports:
            self._take(reports, self._gradients)

    def add(
        self,
        zygote: Zygote | ZygoteCopy | socket.socket,
        emit: Emit,
        *,
        seats: float,
        host: int = HOME,
        distance: int = 0,
        name: str = "",
        log: Path | None = None,
    ) -> Pool:
        """Send the job to a zygote, or to the one at the other end of a socket; ``HostReady`` follows.

        The output of the zygote and its workers goes to ``log`` from now on.
        """
        ready = HostReady(host, seats, distance, name or socket.gethostname())
        pool = self.pools[host] = Pool(self, zygote, ready, emit)
        try:
            pool.open(log)
        except BaseException:
            self.remove(host)
            raise
        return pool

    def remove(self, host: int) -> None:
        """Kill a zygote with all its processes, and forget them. Does nothing if it is unknown."""
        pool = self.pools.pop(host, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Kill all zygotes and their processes, and release the memory of gradients."""
        for host in list(self.pools):
            self.remove(host)
        self.pause()
        self._gradients = []
        self.resources.gradients.close()


@final
class Pool:
    """One zygote and the worker processes that it has started: a host of the fleet."""

    def __init__(
        self, machine: Machine, zygote: Zygote | ZygoteCopy | socket.socket, ready: HostReady, emit: Emit
    ) -> None:
        self._machine, self._event, self._emit = machine, ready, emit
        self._zygote = zygote if isinstance(zygote, Zygote) else None
        self._control = zygote if isinstance(zygote, socket.socket) else zygote.control
        self._stream = MessageStream(self._control)
        self.is_loaded = False
        """True once the zygote has loaded the problem."""
        self._is_closed = self._has_ended = False
        self._orders: dict[int, int] = {}
        """The pipes through which processes get their orders, by serial number."""
        self._sent: dict[int, int] = {}
        """The other ends of pipes of processes that are not started yet, by serial number. They stay open until then:
        macOS may lose a descriptor that its sender closes while it is in transit."""

    def open(self, log: Path | None) -> None:
        """Send the job to the zygote, and listen to what it says."""
        resources, output = self._machine.resources, None if log is None else open_log(log)
        mailbox = resources.mailbox
        fds = [resources.payload.fd, resources.points.fd, resources.gradients.fd]
        fds += [mailbox.workers_reports, mailbox.workers_details.fileno()]
        try:
            message = (resources.payload.sizes, output is not None, resources.encoded)
            self._stream.send(message, fds if output is None else [*fds, output], wait=lambda: None)
        finally:
            if output is not None:
                os.close(output)
        self._control.setblocking(False)
        self._machine.hub.add(self._control.fileno(), self._listen)

    # What the fleet asks for

    def start(self, number: int, serial: int, began: float) -> SendOrder:
        """Start a process; ``ProcessDied`` with its serial number follows when it ends."""
        _ = self._machine.resources.gradients[max(number, 0)]  # map it now: only this process may enlarge the file
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        self._sent[serial], self._orders[serial] = theirs, ours
        self._say(("start", number, serial, began), [theirs])
        return sender(ours)

    def adopt(self, number: int, serial: int, began: float) -> SendOrder:
        """Return what sends orders to a process that runs already."""
        return sender(self._orders[serial])

    def kill(self, serial: int) -> None:
        """Kill a process; its death is reported like any other."""
        self._say(("kill", 0, serial, 0.0), [])

    def _say(self, message: tuple[Any, ...], fds: list[int]) -> None:
        """Send a message to the zygote, and receive replies meanwhile to avoid a deadlock."""
        self._stream.send(message, fds, wait=self._receive_and_wait)
        if self._stream.messages:
            self._machine.hub.again(self._listen)

    def _receive_and_wait(self) -> None:
        self._receive()
        is_ready(self._control, 1.0, select.POLLIN | select.POLLOUT)

    # What the zygote says

    def _receive(self) -> None:
        """Receive all messages that have arrived; the end of the socket becomes a message, once."""
        try:
            while not self._has_ended:
                if not self._stream.receive():
                    self._has_ended = True
                    self._stream.messages.append(("gone", "the process that starts workers was killed"))
        except BlockingIOError:
            return

    def _listen(self) -> None:
        """Pass on what the zygote says. The last reports of a process come before its death."""
        if self._is_closed:
            return
        self._receive()
        if self._stream.messages:
            self._machine.drain()
        while self._stream.messages and not self._is_closed:  # what is passed on may close this pool
            self._on_message(*self._stream.messages.popleft())

    def _on_message(self, kind: str, *content: Any) -> None:
        host = self._event.host
        if kind == "ready":
            self.is_loaded = True
            self._emit(self._event)
        elif kind == "started":
            os.close(self._sent.pop(content[0]))
        elif kind == "died":
            serial, code = content
            os.close(self._orders.pop(serial))
            self._emit(ProcessDied(serial, code))
        elif kind == "leaving":
            if host != HOME:  # which ends with the run
                self._emit(HostLeaves(host, GRACE_SECONDS))
        else:
            self._machine.remove(host)
            self._emit(HostGone(host, str(content[0]), lasting=kind == "failed"))

    def close(self) -> None:
        """Kill the zygote and with it all its processes."""
        self._is_closed = True
        self._machine.hub.remove(self._control.fileno())
        if self._zygote is None:
            self._disconnect()
        self._control.close()
        for pipes in (self._sent, self._orders):
            while pipes:
                os.close(pipes.popitem()[1])
        if self._zygote is not None:
            self._zygote.close()

    def _disconnect(self) -> None:
        """Wait until a zygote that is not a child has exited, so that no process writes to shared memory later."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            while is_ready(self._control, SECONDS_TO_END) and self._control.recv(LONGEST_MESSAGE):
                pass


def sender(pipe: int) -> SendOrder:
    """Return what writes orders to a pipe; it does nothing if the process is gone."""
    write, pack = os.write, ORDER.pack

    def send(ticket: Ticket, slot: int, instruction: int) -> None:
        try:  # contextlib.suppress would take half as long as the write
            write(pipe, pack(ticket[0], ticket[3], slot, instruction))
        except BrokenPipeError:
            return  # the zygote will report the death

    return send
