"""Receives the reports of the workers of one machine, and the details of those that have some."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from typing import Any, Self, final

from nowait.fleet.platform import details_sockets, is_ready
from nowait.fleet.wire.records import REPORT
from nowait.fleet.wire.stream import LONGEST_MESSAGE

READ_BYTES = 2048 * REPORT.size


@final
class DetailsTable:
    """The details of reports, by worker and ticket.

    A worker has one ticket at a time and sends the details before the report, so only its latest details can be asked
    for. Details of another ticket come from a process that died before it reported, and are dropped.
    """

    def __init__(self) -> None:
        self._latest: dict[int, tuple[int, tuple[Any, ...]]] = {}

    def add(self, worker: int, ticket: int, content: tuple[Any, ...]) -> None:
        """Store details that arrived."""
        self._latest[worker] = (ticket, content)

    def take(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """Remove the details of this ticket and return them; None if there are none."""
        found, content = self._latest.pop(worker, (None, None))
        return content if found == ticket else None


@final
class Mailbox:
    """One pipe for the reports of all workers, read in batches, and one datagram socket for details.

    This process keeps the workers' ends open too, to pass them to zygotes that start later.
    """

    def __init__(self, pipe: tuple[int, int], sockets: tuple[socket.socket, socket.socket]) -> None:
        self.reports, self.workers_reports = pipe
        self._socket, self.workers_details = sockets
        self._socket.setblocking(False)
        self._details = DetailsTable()

    @classmethod
    def open(cls) -> Self:
        """Open the pipe and the socket."""
        sockets = details_sockets()
        try:
            return cls(os.pipe(), sockets)
        except BaseException:
            for end in sockets:
                end.close()
            raise

    def read(self) -> bytes:
        """Read reports; waits if there are none."""
        return os.read(self.reports, READ_BYTES)

    def drain(self) -> bytes:
        """Read all reports that have arrived. Details are read too: a full socket would block workers."""
        self._collect()
        reports = b""
        while is_ready(self.reports, 0) and (more := self.read()):
            reports += more
        return reports

    def details(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """Return what a worker sent besides its report on a ticket; None if nothing arrived. Never waits."""
        self._collect()
        return self._details.take(worker, ticket)

    def add_details(self, worker: int, ticket: int, details: tuple[Any, ...]) -> None:
        """Store details that arrived through another connection."""
        self._details.add(worker, ticket, details)

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                worker, ticket, *content = pickle.loads(self._socket.recv(2 * LONGEST_MESSAGE))
                self._details.add(worker, ticket, tuple(content))

    def close(self) -> None:
        """Close both ends; a worker that writes gets an error."""
        for pipe in (self.reports, self.workers_reports):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._socket.close()
        self.workers_details.close()
