"""The host: a Ray actor that runs some workers of a run on its node.

On the driver's own node it starts a zygote whose socket leads straight to the server, and has nothing more to do. On
other nodes it is a relay between its workers, with whom it shares memory, and the server.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, final

import numpy as np

from nowait.core.errors import WorkerFailedError
from nowait.core.types import Vector
from nowait.core.versions import Version
from nowait.engines.cluster.network import Address, Dial
from nowait.engines.cluster.wire import AHEAD, CLOCK, DEATH, HIRED, SAME_POINT, Format, Message, Say
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.payload import Payload
from nowait.engines.processes.places import Died, Gone
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.processes.staff import Office, PipeLine, Staff, start_zygote
from nowait.engines.processes.wire import ORDER, REPORT, Order, Report

BEAT_SECONDS = 1.0
LOOKS_AT_THE_CLOCK = 5
"""So often the server is asked for the time; the quickest answer counts."""
SECONDS_FOR_AN_ANSWER = 120.0
UNDER_WAY = 3
"""So many messages of reports may be under way without an answer."""
NOBODY = -1
GRADIENT, HURRY = int(Report.GRADIENT), int(Order.HURRY)


@final
@dataclass(frozen=True)
class Assignment:
    """What a host is told when it starts. ``door`` is for the driver's own node, the rest for all others."""

    identity: bytes
    door: tuple[str, bytes] | None
    """The server's socket on this machine, and the password."""
    address: Address | None
    payload: list[Any]
    """Ray's references to the parts of the payload."""
    length: int
    dtype: str
    threads: int
    path: list[str]
    """Where the driver looks for modules."""
    ray_threads: str
    """What Ray sets OMP_NUM_THREADS to for the whole host, if nobody has set it."""


@final
class Host:
    """The actor."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def serve(self) -> str:
        """Until the server has enough; why it ended."""
        if self._assignment.door is not None:
            return _knock(self._assignment, self._assignment.door)
        relay = Relay(self._assignment)
        try:
            return relay.run()
        finally:
            relay.close()


def _knock(assignment: Assignment, door: tuple[str, bytes]) -> str:
    """Start a zygote that talks to the server, and wait for its end."""
    name, password = door
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.connect(name)
        control.send(password + assignment.identity)
        zygote = _start_zygote(assignment, control)
    status = zygote.wait()
    return f"the process that starts workers ended with status {status}"


def _start_zygote(assignment: Assignment, control: socket.socket) -> subprocess.Popen[bytes]:
    if os.environ.get("OMP_NUM_THREADS") == assignment.ray_threads:
        del os.environ["OMP_NUM_THREADS"]
    path = [entry for entry in assignment.path if os.path.isdir(entry)]
    return start_zygote(control, assignment.threads, limit_output=True, path=path)


@final
class Relay:
    """Between the server and the workers of this node."""

    def __init__(self, assignment: Assignment) -> None:
        import ray

        if assignment.address is None:
            raise ValueError("a relay needs the server's address")
        length, dtype = assignment.length, np.dtype(assignment.dtype)
        self._points, self._gradients = SharedSlots(length, dtype), SharedSlots(length, dtype)
        self._mailbox = Mailbox()
        self._dial = Dial(assignment.address, assignment.identity, Format(length, dtype))
        payload = Payload([memoryview(part) for part in ray.get(assignment.payload)])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            zygote = _start_zygote(assignment, theirs)
        self._staff = Staff(ours, Office(self._points, self._gradients, self._mailbox, payload), zygote)
        payload.close()
        self._lines: dict[int, PipeLine] = {}
        self._workers: dict[int, int] = {}
        """By serial number."""
        self._versions: dict[int, Version] = {}
        """Where each worker finds its point."""
        self._said = monotonic()
        self._unanswered = 0
        """Messages of reports that the server has not answered."""
        self._control = self._staff.control.fileno()
        self._poller = select.poll()
        self._listening = False
        for fd in (self._dial.fd, self._dial.break_fd, self._control):
            self._poller.register(fd, select.POLLIN)

    def run(self) -> str:
        """As ``Host.serve``."""
        self._say(Say.BEAT)  # connections that have sent nothing are closed if there are many
        gone = self._staff.wait_until_ready()
        if gone is not None:
            if gone.lasting:
                self._say(Say.FAILED, gone.cause.encode())
            return gone.cause
        self._say(Say.READY, AHEAD.pack(self._clock_ahead()))
        while True:
            reason = self._obey() or self._listen()
            if reason:
                return reason

    def close(self) -> None:
        """Nothing is left."""
        self._staff.close()
        for line in self._lines.values():
            line.close()
        self._mailbox.close()
        self._points.close()
        self._gradients.close()
        self._dial.close()

    def _clock_ahead(self) -> float:
        """By how many seconds this machine's clock is ahead of the server's: half of the quickest answer's way."""
        answers: list[tuple[float, float]] = []
        for _ in range(LOOKS_AT_THE_CLOCK):
            self._say(Say.ASK_TIME, CLOCK.pack(monotonic(), 0.0))
            asked, theirs = CLOCK.unpack(self._await_answer())
            now = monotonic()
            answers.append((now - asked, (asked + now) / 2 - theirs))
        return min(answers)[1]

    def _await_answer(self) -> bytes:
        deadline = monotonic() + SECONDS_FOR_AN_ANSWER
        while monotonic() < deadline:
            while (received := self._dial.receive()) is not None:
                if received.kind == Say.TIME:
                    return received.content
            self._poller.poll(0 if self._dial.pending() else 1000 * BEAT_SECONDS)
            self._beat()
        raise WorkerFailedError(f"the server did not answer within {SECONDS_FOR_AN_ANSWER:.0f} s")

    # From the server to the workers

    def _obey(self) -> str:
        """Do what the server said meanwhile. If that was to end, the reason to."""
        while (received := self._dial.receive()) is not None:
            if received.kind == Say.ORDERS:
                self._hand_out(received)
            elif received.kind == Say.HIRE:
                self._hire(*HIRED.unpack(received.content))
            elif received.kind == Say.KILL:
                self._staff.kill(DEATH.unpack(received.content)[0])
            elif received.kind == Say.END:
                return "the run is over"
        return ""

    def _hand_out(self, orders: Message) -> None:
        self._unanswered = max(0, self._unanswered - 1)
        arrived, point = iter(orders.vectors), None
        for ticket, job, worker, instruction in ORDER.iter_unpack(orders.content):
            version, line = self._versions[worker], self._lines.get(worker)
            if instruction != HURRY:
                if not instruction & SAME_POINT:
                    point = next(arrived)
                version.array[:] = point
            if line is not None:  # else it died, which the server will hear
                line.order(ticket, job, version, instruction & ~SAME_POINT)

    def _hire(self, worker: int, serial: int, began: float) -> None:
        self._hang_up(worker)
        self._lines[worker] = self._staff.hire(worker, serial, began)
        self._workers[serial] = worker
        if worker not in self._versions:
            self._versions[worker] = Version(self._points[worker], worker)

    def _hang_up(self, worker: int) -> None:
        if worker in self._lines:
            self._lines.pop(worker).close()
            self._workers = {serial: number for serial, number in self._workers.items() if number != worker}

    # From the workers to the server

    def _listen(self) -> str:
        """Wait for workers or the server, and pass reports and deaths on. If the zygote is gone, that."""
        self._listen_to_workers(self._unanswered < UNDER_WAY)
        pending = self._dial.pending() or self._staff.has_news
        ready = [fd for fd, _ in self._poller.poll(0 if pending else 1000 * BEAT_SECONDS)]
        if (not ready or self._dial.break_fd in ready) and self._dial.broken():
            return "the connection to the server broke"
        if self._mailbox.reports in ready:
            self._pass_on(self._mailbox.read())
        if self._control in ready or self._staff.has_news:
            for news in self._staff.news():
                self._pass_on(self._mailbox.drain())
                if isinstance(news, Gone):
                    return news.cause
                if isinstance(news, Died):
                    self._hang_up(self._workers.get(news.serial, NOBODY))
                    self._say(Say.DIED, DEATH.pack(news.serial, news.code))
        self._beat()
        return ""

    def _listen_to_workers(self, listen: bool) -> None:
        """While enough reports are under way, further ones gather, and travel together."""
        if listen and not self._listening:
            self._poller.register(self._mailbox.reports, select.POLLIN)
        elif self._listening and not listen:
            self._poller.unregister(self._mailbox.reports)
        self._listening = listen

    def _pass_on(self, records: bytes) -> None:
        if not records:
            return
        vectors: list[Vector] = []
        gradients = self._gradients.views
        for ticket, _, _, worker, kind in REPORT.iter_unpack(records):
            if kind == GRADIENT:
                vectors.append(gradients[worker])
            elif (letter := self._mailbox.letter(worker, ticket)) is not None:
                self._say(Say.LETTER, json.dumps((worker, ticket, letter)).encode())
        self._unanswered += 1
        self._say(Say.REPORTS, records, vectors)

    def _beat(self) -> None:
        if monotonic() - self._said > BEAT_SECONDS:
            self._say(Say.BEAT)

    def _say(self, kind: Say, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        self._said = monotonic()
        self._dial.send(kind, content, vectors)
