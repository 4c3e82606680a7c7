"""Where the workers of one machine leave their reports, and the details of those that need some."""

from __future__ import annotations

import contextlib
import os
import pickle
from typing import Any, final

from nowait.engines.processes.platform import letter_sockets
from nowait.engines.processes.readiness import is_ready
from nowait.engines.processes.wire import LONGEST_MESSAGE, REPORT

READ_BYTES = 2048 * REPORT.size


@final
class Letters:
    """Details of reports, by worker and ticket.

    A worker has one ticket at a time and sends the letter before the report, so only its latest letter can be
    asked for. One with another ticket was left by a process that died before it reported, and is dropped.
    """

    def __init__(self) -> None:
        self._latest: dict[int, tuple[int, tuple[Any, ...]]] = {}

    def add(self, worker: int, ticket: int, content: tuple[Any, ...]) -> None:
        """A letter arrived."""
        self._latest[worker] = (ticket, content)

    def take(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """Returns the letter about this ticket and forgets it; None if there is none."""
        found, content = self._latest.pop(worker, (None, None))
        return content if found == ticket else None


@final
class Mailbox:
    """One pipe for the reports of all workers, read in batches, and one socket for letters.

    This process keeps the workers' ends too, to give them to zygotes that start later.
    """

    def __init__(self) -> None:
        self.reports, self.their_reports = os.pipe()
        self._socket, self.their_letters = letter_sockets()
        self._socket.setblocking(False)
        self._letters = Letters()

    def read(self) -> bytes:
        """Reports; waits if there are none."""
        return os.read(self.reports, READ_BYTES)

    def drain(self) -> bytes:
        """All reports that are there. Letters are collected too: a full socket would block workers."""
        self._collect()
        reports = b""
        while is_ready(self.reports, 0) and (more := self.read()):
            reports += more
        return reports

    def letter(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """Returns what a worker sent with its report on a ticket; None if nothing came. Never waits."""
        self._collect()
        return self._letters.take(worker, ticket)

    def keep(self, worker: int, ticket: int, letter: tuple[Any, ...]) -> None:
        """Add a letter that came another way."""
        self._letters.add(worker, ticket, letter)

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                worker, ticket, *content = pickle.loads(self._socket.recv(2 * LONGEST_MESSAGE))
                self._letters.add(worker, ticket, tuple(content))

    def close(self) -> None:
        """Close both ends: a worker that writes gets an error."""
        for pipe in (self.reports, self.their_reports):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._socket.close()
        self.their_letters.close()
