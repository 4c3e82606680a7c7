"""The server's side of a zygote: starts it, has it fork and kill, hears who died."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nowait.core.types import Vector
from nowait.core.versions import Version
from nowait.engines.processes.channel import Channel
from nowait.engines.processes.log import open_log
from nowait.engines.processes.mailbox import Mailbox
from nowait.engines.processes.payload import Payload
from nowait.engines.processes.places import Died, Gone, News
from nowait.engines.processes.readiness import is_ready
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.processes.wire import LONGEST_MESSAGE, ORDER

SECONDS_TO_END = 2.0
"""How long a zygote that is not our child may take to end."""
SECONDS_BETWEEN_LOOKS = 0.05
"""How often a signal is looked for while a problem is loaded."""
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@final
@dataclass(frozen=True)
class Office:
    """What zygotes and the server of one machine share: memory, the mailbox, the job."""

    points: SharedSlots
    gradients: SharedSlots
    mailbox: Mailbox
    payload: Payload


@final
class PipeLine:
    """Orders through a pipe, to a worker that shares memory with us."""

    __slots__ = ("_pipe", "gradient")

    def __init__(self, pipe: int, gradient: Vector) -> None:
        self._pipe = pipe
        self.gradient = gradient

    def order(self, ticket: int, job: int, version: Version, instruction: int) -> None:
        """As ``Line.order``."""
        try:  # contextlib.suppress would take half as long as the write
            os.write(self._pipe, ORDER.pack(ticket, job, version.slot, instruction))
        except BrokenPipeError:
            return  # it died, which the zygote will tell

    def close(self) -> None:
        """As ``Line.close``."""
        os.close(self._pipe)


@final
class Staff:
    """The workers of one zygote. ``control`` is its socket, which tells of deaths."""

    clock_ahead = 0.0

    def __init__(self, control: socket.socket, office: Office, zygote: subprocess.Popen[bytes] | None = None) -> None:
        self.control = control
        self.ready = False
        self._office = office
        self._zygote = zygote
        self._channel = Channel(control)
        self._gone = False
        self._handed: dict[int, int] = {}
        """Pipes of workers that the zygote has not started yet, by serial number. They stay open here until then:
        macOS may lose a descriptor that its sender closes while it is under way."""
        payload = office.payload
        fds = [payload.fd, office.points.fd, office.gradients.fd]
        fds += [office.mailbox.their_reports, office.mailbox.their_letters.fileno()]
        self._channel.send((payload.sizes,), fds, wait=lambda: None)
        control.setblocking(False)

    @classmethod
    def start(cls, office: Office, threads: int, log: Path | None) -> Staff:
        """With a zygote that is a child of this process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        zygote = start_zygote(theirs, threads, log=log)
        theirs.close()
        return cls(ours, office, zygote)

    def wait_until_ready(self, interrupted: Callable[[], bool] = lambda: False) -> Gone | None:
        """Wait until the zygote has loaded the problem, or ``interrupted()``. Returns why it could not, else None."""
        while not self.ready:
            if interrupted():
                return None
            is_ready(self.control, SECONDS_BETWEEN_LOOKS)
            for news in self.news():
                if isinstance(news, Gone):
                    return news._replace(cause=f"workers could not load the problem:\n{news.cause}")
        return None

    def hire(self, worker: int, serial: int, began: float) -> PipeLine:
        """As ``Place.hire``."""
        gradient = self._office.gradients[max(worker, 0)]  # first: the file must not grow at both ends
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        self._handed[serial] = theirs
        self._send(("start", worker, serial, began), [theirs])
        return PipeLine(ours, gradient)

    def kill(self, serial: int) -> None:
        """As ``Place.kill``."""
        self._send(("kill", 0, serial, 0.0), [])

    def _send(self, message: tuple[Any, ...], fds: list[int]) -> None:
        """Send, and drain replies meanwhile to avoid a deadlock. If the zygote is gone, ``news`` will tell."""
        self._channel.send(message, fds, wait=self._drain)

    def _drain(self) -> None:
        self._collect()
        is_ready(self.control, 1.0, select.POLLIN | select.POLLOUT)

    @property
    def has_news(self) -> bool:
        """Was something heard while something was said? The socket does not tell of it again."""
        return bool(self._channel.messages)

    def news(self) -> Iterable[News]:
        """What the zygote said."""
        self._collect()
        messages = list(self._channel.messages)
        self._channel.messages.clear()
        for kind, *details in messages:
            if kind == "ready":
                self.ready = True
            elif kind == "started":
                os.close(self._handed.pop(details[0]))
            elif kind == "died":
                yield Died(*details)
            else:
                yield Gone(self, str(details[0]), lasting=kind == "failed")

    def _collect(self) -> None:
        """Receive all that is there; the end of the socket becomes a message too, once."""
        try:
            while not self._gone:
                if not self._channel.receive():
                    self._gone = True
                    self._channel.messages.append(("gone", "the process that starts workers was killed"))
        except BlockingIOError:
            return

    def close(self) -> None:
        """End the zygote, and with it all workers; nothing is left."""
        if self._zygote is None:
            self._hang_up()
        self.control.close()
        while self._handed:
            os.close(self._handed.popitem()[1])
        if self._zygote is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._zygote.pid, signal.SIGKILL)
            self._zygote.wait()

    def _hang_up(self) -> None:
        """The zygote is not our child: it ends when we hang up. Wait for that: nobody may write to memory later."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_WR)
            while is_ready(self.control, SECONDS_TO_END) and self.control.recv(LONGEST_MESSAGE):
                pass


def start_zygote(
    theirs: socket.socket,
    threads: int,
    *,
    log: Path | None = None,
    limit_output: bool = False,
    path: Iterable[str] = (),
) -> subprocess.Popen[bytes]:
    """A zygote at the other end of a socket, which looks for modules where this process does, and in ``path``.

    What it and its workers print goes to ``log``, of which the beginning and the end are kept; without one, wherever
    this process prints. ``limit_output`` limits that as well: only for files that nobody else writes to.
    """
    entries = [*sys.path, *(entry for entry in path if entry not in sys.path)]
    code = (
        f"import sys; sys.path[:] = {[str(entry) for entry in entries]!r}; "
        f"from nowait.engines.processes.zygote import main; "
        f"main({theirs.fileno()}, limit_output={limit_output or log is not None})"
    )
    environment = os.environ | {name: os.environ.get(name, str(threads)) for name in THREAD_VARIABLES}
    output = None if log is None else open_log(log)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )
    finally:
        if output is not None:
            os.close(output)
