"""The zygote: a process with one thread that loads the problem once and starts workers on request.

Forking the user's own process could copy locks that its other threads hold; starting every worker as a new interpreter
would import everything again. The zygote imports once, unpickles the problem once, and its children share the memory.
Where forking is not safe (``platform.portable``, or ``prepare`` of the problem returns False) it loads the problem only
to check that it can be loaded, and starts each worker as a new interpreter. It exits when its socket is closed, that is
with the process that started it, and kills its children.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from typing import Protocol, final

import numpy as np

from nowait.fleet.host.log import OutputLimit
from nowait.fleet.platform import DetailsSocket, portable
from nowait.fleet.wire.records import NOT_STARTED, Job
from nowait.fleet.wire.shared import unpickle
from nowait.fleet.wire.stream import COPY, LONGEST_MESSAGE, MessageStream
from nowait.fleet.worker.worker import (
    Connections,
    Inherited,
    flush_lines,
    open_slots,
    run_worker,
)
from nowait.numerics.compiled import warm_up
from nowait.system import die_with_parent

SECONDS_BETWEEN_LOOKS = 0.25
"""How often it checks that its parent still exists, and that the log is not too large."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(control_fd: int, *, limit_output: bool, modules: Iterable[str] = (), warm: bool = False) -> None:
    """Import modules, then receive a job and serve until the socket closes.

    ``limit_output``: standard output is a log file whose size is limited. ``warm``: load numba and some compiled
    functions, which most problems need, while nothing else is to be done: it takes half a second.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in STOPPING:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that workers start would inherit
    flush_lines()
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    for name in modules:
        with contextlib.suppress(Exception, SystemExit):  # an error is reported when the job is loaded
            importlib.import_module(name)
    if warm:
        with contextlib.suppress(Exception):
            warm_up(np.zeros(1))
    stream = _wait_for_job(MessageStream(control))
    try:
        zygote = _Zygote(stream, limit_output=limit_output)
    except BaseException:
        _report(stream, "failed", traceback.format_exc()[-LONGEST_MESSAGE // 2 :])
        return
    zygote.serve()


def _wait_for_job(stream: MessageStream) -> MessageStream:
    """Return the stream through which a job has arrived. For each COPY before it, fork a zygote for another job.

    A copy returns from this function as well, with the stream of its own job. It ends with this process.
    """
    while True:
        while not stream.messages:
            if not stream.receive():
                os._exit(0)  # nobody has a job
        if stream.messages[0] != COPY:
            return stream
        stream.messages.popleft()
        theirs = stream.descriptors.popleft()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # copies that have ended
                pass
        template = os.getpid()
        if os.fork() == 0:
            die_with_parent(template)
            os.setsid()  # closing the stream of a zygote kills its process group
            stream.connected.close()
            stream = MessageStream(socket.socket(fileno=theirs))
        else:
            os.close(theirs)


class Starter(Protocol):
    """Starts worker processes."""

    def start(self, worker: int, serial: int, orders: int, began: float) -> int:
        """Start a worker that reads this pipe; returns its process id."""


@final
class _Zygote:
    def __init__(self, stream: MessageStream, *, limit_output: bool) -> None:
        self._stream, self._control = stream, stream.connected
        sizes, has_log, encoded = self._stream.messages.popleft()
        descriptors = self._stream.descriptors
        inherited = Inherited(sizes, encoded, *(descriptors.popleft() for _ in range(5)))
        if has_log:
            _write_output_to(descriptors.popleft())
        self._limit = OutputLimit() if has_log or limit_output else None
        self._parent = os.getppid()
        self._children: dict[int, int] = {}
        """Serial numbers by process id."""
        importlib.invalidate_caches()  # modules may have been written since this process was started
        job: Job = unpickle(inherited.payload, inherited.sizes)
        forkable = job.prepare() and not portable()
        if job.speeds is not None:
            job.speeds.timing(job.seed)(0, 0, 0.0)  # loads what is compiled
        self._starter: Starter = _Fork(inherited, job, self._control) if forkable else Spawn(inherited)

    def serve(self) -> None:
        """Start and kill workers as the server asks, and report their deaths."""
        alarm, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(alarm, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(alarm, select.POLLIN)
        _report(self._stream, "ready")
        while os.getppid() == self._parent:
            for fd, _ in poller.poll(1000 * SECONDS_BETWEEN_LOOKS):
                if fd == alarm:
                    self._on_signals(alarm)
                elif not self._obey():
                    _kill_the_group()
            if self._limit is not None:
                self._limit.enforce()
        _kill_the_group()

    def _on_signals(self, alarm: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if signal.SIGTERM in os.read(alarm, 4096):
                _report(self._stream, "leaving")
        self._reap()

    def _obey(self) -> bool:
        """Execute what the server sent. Returns False if the server is gone."""
        try:
            if not self._stream.receive():
                return False
        except OSError:
            return False
        while self._stream.messages:
            order, worker, serial, began = self._stream.messages.popleft()
            if order == "start":
                self._start(worker, serial, began)
            elif order == "kill":
                for process, number in self._children.items():
                    if number == serial:
                        os.kill(process, signal.SIGKILL)
        return True

    def _start(self, worker: int, serial: int, began: float) -> None:
        orders = self._stream.descriptors.popleft()
        code = None
        try:
            self._children[self._starter.start(worker, serial, orders, began)] = serial
        except OSError as error:  # too many processes, or too little memory, perhaps for a moment only
            code = NOT_STARTED + (error.errno or 0)
        os.close(orders)
        _report(self._stream, "started", serial)
        if code is not None:
            _report(self._stream, "died", serial, code)

    def _reap(self) -> None:
        while self._children:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            serial = self._children.pop(process, None)
            if serial is not None:  # the problem may have started processes of its own
                _report(self._stream, "died", serial, os.waitstatus_to_exitcode(status))


@final
class _Fork:
    """Starts workers by forking the zygote."""

    def __init__(self, inherited: Inherited, job: Job, control: socket.socket) -> None:
        self._job, self._control, self._reports = job, control, inherited.reports
        self._details = DetailsSocket(socket.socket(fileno=inherited.details))
        self._points, self._gradients, self._codecs = open_slots(job, inherited)
        os.close(inherited.payload)
        gc.freeze()  # a collection in a child would write to pages that all share

    def start(self, worker: int, serial: int, orders: int, began: float) -> int:
        """Fork a worker that reads its orders from a pipe; returns its process id."""
        zygote = os.getpid()
        # Python would forget a signal to a child that is not ready, or take it for one of the zygote
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            process = os.fork()
            if process == 0:
                run_worker(worker, lambda: self._begin(zygote, serial, orders, began))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        return process

    def _begin(self, zygote: int, serial: int, orders: int, began: float) -> tuple[Job, Connections]:
        die_with_parent(zygote)
        signal.set_wakeup_fd(-1)
        self._control.close()
        slots = self._points, self._gradients
        connections = Connections(
            orders, self._reports, self._details, *slots, began, serial=serial, codecs=self._codecs
        )
        return self._job, connections


@final
class Spawn:
    """Starts workers as new interpreters. Each reads a pipe that is closed when the zygote exits: its lifeline."""

    def __init__(self, inherited: Inherited) -> None:
        self._inherited = inherited
        self._lifeline, self._ours = os.pipe()

    def start(self, worker: int, serial: int, orders: int, began: float) -> int:
        """Start a worker that reads its orders from a pipe; returns its process id."""
        inherited = self._inherited
        code = (
            f"import sys; sys.path[:] = {[str(entry) for entry in sys.path]!r}; "
            f"from nowait.fleet.worker.worker import main; "
            f"main({tuple(inherited)!r}, {worker}, {serial}, {orders}, {began!r}, {self._lifeline})"
        )
        descriptors = (*inherited.descriptors, orders, self._lifeline)
        for fd in descriptors:
            os.set_inheritable(fd, True)
        try:
            return os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
        finally:
            for fd in descriptors:
                os.set_inheritable(fd, False)


def _write_output_to(log: int) -> None:
    """Make a file the standard output and error of this process and its workers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _report(stream: MessageStream, *message: object) -> None:
    """Send a message to the server. If the server is gone, the next receive notices it."""
    stream.send(message, (), wait=lambda: None)


def _kill_the_group() -> None:
    """Kill this process, all workers, and the processes that workers started: the server is gone."""
    os.killpg(0, signal.SIGKILL)
