"""The server's side of a zygote: asks it to start and kill workers, and receives their deaths."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path
from typing import Any, NamedTuple, final

from nowait.engines.processes.resources import SharedResources
from nowait.engines.workers.transport import Died
from nowait.fleet.host.launch import Zygote, ZygoteCopy
from nowait.fleet.host.log import open_log
from nowait.fleet.platform import is_ready
from nowait.fleet.wire.records import ORDER
from nowait.fleet.wire.stream import LONGEST_MESSAGE, MessageStream

SECONDS_TO_END = 2.0
"""How long a zygote that is not a child of this process may take to exit."""


class Ready(NamedTuple):
    """The zygote has loaded the problem."""


class Ended(NamedTuple):
    """The zygote is gone. ``lasting``: it could not load the problem, and another one could not either."""

    cause: str
    lasting: bool


class Leaves(NamedTuple):
    """The zygote was sent SIGTERM: the workers of the pool are to deliver what they compute, and leave."""


PoolEvent = Ready | Died | Ended | Leaves


@final
class PipeChannel:
    """Sends orders through a pipe to a process that shares memory with this one."""

    __slots__ = ("_pipe",)

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def send(self, ticket: int, job: int, slot: int, instruction: int) -> None:
        """Write an order; does nothing if the process is gone."""
        try:  # contextlib.suppress would take half as long as the write
            os.write(self._pipe, ORDER.pack(ticket, job, slot, instruction))
        except BrokenPipeError:
            return  # the zygote will report the death

    def close(self) -> None:
        """Close the pipe; the process exits."""
        os.close(self._pipe)


@final
class WorkerPool:
    """The worker processes of one zygote. ``control`` is the socket through which the zygote reports deaths."""

    def __init__(self, control: socket.socket, resources: SharedResources, zygote: Zygote | None = None) -> None:
        self.control = control
        self.ready = False
        """True once the zygote has loaded the problem."""
        self._resources = resources
        self._zygote = zygote
        self._stream = MessageStream(control)
        self._ended = False
        self._sent: dict[int, int] = {}
        """Pipes of processes that the zygote has not started yet, by serial number. They stay open here until then:
        macOS may lose a descriptor that its sender closes while it is in transit."""

    @classmethod
    def of(cls, zygote: Zygote | ZygoteCopy, resources: SharedResources, log: Path | None = None) -> WorkerPool:
        """Return a pool with a zygote on this machine. Its output goes to ``log`` from now on."""
        output = None if log is None else open_log(log)
        child = zygote if isinstance(zygote, Zygote) else None
        try:
            return cls.around(zygote.control, resources, child, output)
        finally:
            if output is not None:
                os.close(output)

    @classmethod
    def around(
        cls,
        control: socket.socket,
        resources: SharedResources,
        zygote: Zygote | None = None,
        output: int | None = None,
    ) -> WorkerPool:
        """Return a pool with the zygote at the other end of a socket, which is sent the shared resources.

        ``output`` is a log file, which becomes its standard output and error.
        """
        pool = cls(control, resources, zygote)
        payload, mailbox = resources.payload, resources.mailbox
        fds = [payload.fd, resources.points.fd, resources.gradients.fd]
        fds += [mailbox.workers_reports, mailbox.workers_details.fileno()]
        try:
            message = (payload.sizes, output is not None, resources.encoded)
            pool._stream.send(message, fds if output is None else [*fds, output], wait=lambda: None)
            control.setblocking(False)
        except BaseException:
            pool.close()
            raise
        return pool

    def start(self, worker: int, serial: int, began: float) -> PipeChannel:
        """Start a process; ``Died`` with its serial number follows when it ends."""
        _ = self._resources.gradients[max(worker, 0)]  # map its slot now: only this process may enlarge the file
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        self._sent[serial] = theirs
        self._send(("start", worker, serial, began), [theirs])
        return PipeChannel(ours)

    def kill(self, serial: int) -> None:
        """Kill a process; its death is reported like any other."""
        self._send(("kill", 0, serial, 0.0), [])

    def _send(self, message: tuple[Any, ...], fds: list[int]) -> None:
        """Send a message, and read replies meanwhile to avoid a deadlock."""
        self._stream.send(message, fds, wait=self._drain)

    def _drain(self) -> None:
        self._collect()
        is_ready(self.control, 1.0, select.POLLIN | select.POLLOUT)

    @property
    def has_messages(self) -> bool:
        """True if messages were received while one was sent: the socket will not become readable for them again."""
        return bool(self._stream.messages)

    def receive(self) -> list[PoolEvent]:
        """Return what the zygote has reported, without waiting."""
        self._collect()
        events: list[PoolEvent] = []
        while self._stream.messages:
            kind, *details = self._stream.messages.popleft()
            if kind == "ready":
                self.ready = True
                events.append(Ready())
            elif kind == "started":
                os.close(self._sent.pop(details[0]))
            elif kind == "died":
                events.append(Died(*details))
            elif kind == "leaving":
                events.append(Leaves())
            else:
                events.append(Ended(str(details[0]), lasting=kind == "failed"))
        return events

    def _collect(self) -> None:
        """Receive all messages that have arrived; the end of the socket becomes a message, once."""
        try:
            while not self._ended:
                if not self._stream.receive():
                    self._ended = True
                    self._stream.messages.append(("gone", "the process that starts workers was killed"))
        except BlockingIOError:
            return

    def close(self) -> None:
        """Kill the zygote and with it all its processes."""
        if self._zygote is None:
            self._disconnect()
        self.control.close()
        while self._sent:
            os.close(self._sent.popitem()[1])
        if self._zygote is not None:
            self._zygote.close()

    def _disconnect(self) -> None:
        """Wait until a zygote that is not a child has exited, so that no process writes to shared memory later."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
            while is_ready(self.control, SECONDS_TO_END) and self.control.recv(LONGEST_MESSAGE):
                pass
