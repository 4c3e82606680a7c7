"""The zygote: a small process that has everything loaded, and starts workers when asked.

Forking the user's own process would copy its threads' locks in any state; starting every worker afresh would import
everything again. The zygote has one thread, imports once, unpickles the problem once, and its children share all of it.
Where forking is not safe (``platform.portable``), it loads the problem to see that it can be loaded, and starts each
worker as a fresh interpreter. It ends when its socket does, that is with the process that started it, and takes its
children along.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import traceback
from typing import Protocol, final

from nowait.core.problem import prepare
from nowait.engines.processes.channel import Channel
from nowait.engines.processes.log import OutputLimit
from nowait.engines.processes.payload import unpickle
from nowait.engines.processes.platform import LetterSocket, portable
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.processes.spawned import Handed, Spawn, be_worker, flush_lines
from nowait.engines.processes.wire import LONGEST_MESSAGE
from nowait.engines.processes.worker import Desk, Job

SECONDS_BETWEEN_LOOKS = 0.25
"""How often it makes sure that the process is there that started it, and that the log is not too large."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1


def main(control_fd: int, *, limit_output: bool) -> None:
    """Serve until the socket closes. ``limit_output``: what goes to standard output is a log that has a limit."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in STOPPING:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that workers start would inherit
    flush_lines()
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    try:
        zygote = _Zygote(control, OutputLimit() if limit_output else None)
    except BaseException:
        _say(Channel(control), "failed", traceback.format_exc()[-LONGEST_MESSAGE // 2 :])
        return
    zygote.serve()


class Starter(Protocol):
    """How workers are started."""

    def start(self, worker: int, orders: int, began: float) -> int:
        """Start a worker that reads this pipe; returns its process id."""


@final
class _Zygote:
    def __init__(self, control: socket.socket, limit: OutputLimit | None) -> None:
        self._control = control
        self._limit = limit
        self._channel = Channel(control)
        while not self._channel.messages and self._channel.receive():
            pass
        handed = Handed(self._channel.messages.popleft()[0], *(self._channel.descriptors.popleft() for _ in range(5)))
        self._parent = os.getppid()
        self._children: dict[int, int] = {}
        """Serial numbers by process id."""
        job: Job = unpickle(handed.payload, handed.sizes)
        prepare(job.problem)
        if job.speeds is not None:
            job.speeds.timing(job.seed)(0, 0, 0.0)  # loads what is compiled
        self._starter: Starter = Spawn(handed) if portable() else _Fork(handed, job, control)

    def serve(self) -> None:
        """Start, kill and bury, as asked."""
        alarm, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(alarm, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(alarm, select.POLLIN)
        _say(self._channel, "ready")
        while os.getppid() == self._parent:
            for fd, _ in poller.poll(1000 * SECONDS_BETWEEN_LOOKS):
                if fd == alarm:
                    with contextlib.suppress(BlockingIOError):
                        os.read(alarm, 4096)
                    self._bury()
                elif not self._obey():
                    _kill_the_group()
            if self._limit is not None:
                self._limit.enforce()
        _kill_the_group()

    def _obey(self) -> bool:
        """Do what the server asked. Returns False if it is gone."""
        try:
            if not self._channel.receive():
                return False
        except OSError:
            return False
        while self._channel.messages:
            order, worker, serial, began = self._channel.messages.popleft()
            if order == "start":
                self._start(worker, serial, began)
            elif order == "kill":
                for process, number in self._children.items():
                    if number == serial:
                        os.kill(process, signal.SIGKILL)
        return True

    def _start(self, worker: int, serial: int, began: float) -> None:
        orders = self._channel.descriptors.popleft()
        self._children[self._starter.start(worker, orders, began)] = serial
        os.close(orders)
        _say(self._channel, "started", serial)

    def _bury(self) -> None:
        while self._children:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            serial = self._children.pop(process, None)
            if serial is not None:  # the problem may have started processes of its own
                _say(self._channel, "died", serial, os.waitstatus_to_exitcode(status))


@final
class _Fork:
    """Workers are forks of the zygote."""

    def __init__(self, handed: Handed, job: Job, control: socket.socket) -> None:
        self._job, self._control, self._reports = job, control, handed.reports
        self._letters = LetterSocket(socket.socket(fileno=handed.letters))
        self._points = SharedSlots(job.length, job.dtype, handed.points, writeable=False)
        self._gradients = SharedSlots(job.length, job.dtype, handed.gradients)
        os.close(handed.payload)
        gc.freeze()  # a collection in a child would write to pages that all share

    def start(self, worker: int, orders: int, began: float) -> int:
        """As ``Starter.start``."""
        zygote = os.getpid()
        process = os.fork()
        if process == 0:
            be_worker(worker, lambda: self._begin(zygote, orders, began))
        return process

    def _begin(self, zygote: int, orders: int, began: float) -> tuple[Job, Desk]:
        _die_with_parent(zygote)
        signal.set_wakeup_fd(-1)
        self._control.close()
        return self._job, Desk(orders, self._reports, self._letters, self._points, self._gradients, began)


def _say(channel: Channel, *message: object) -> None:
    """Tell the server. If it is gone, the next receive will tell."""
    channel.send(message, (), wait=lambda: None)


def _kill_the_group() -> None:
    """The server is gone: so are all, those too that workers started."""
    os.killpg(0, signal.SIGKILL)


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
