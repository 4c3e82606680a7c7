"""The zygote: a small process that has everything loaded, and forks workers when asked.

Forking the user's own process would copy its threads' locks in any state; starting every worker afresh would import
everything again. The zygote has one thread, imports once, unpickles the problem once, and its children share all of it.
It ends when its socket does, that is with the process that started it, and takes its children along.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn, final

from nowait.core.problem import prepare
from nowait.engines.processes.payload import unpickle
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.processes.wire import LONGEST_MESSAGE
from nowait.engines.processes.worker import Desk, Job, work

SECONDS_BETWEEN_LOOKS = 0.25
"""How often it makes sure that the process is there that started it."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1


def main(control_fd: int) -> None:
    """Serve until the socket closes."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in STOPPING:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that workers start would inherit
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a worker that is killed has said what it printed
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    try:
        zygote = _Zygote(control)
    except BaseException:
        control.send(pickle.dumps(("failed", traceback.format_exc()[-LONGEST_MESSAGE // 2 :])))
        return
    control.send(pickle.dumps(("ready",)))
    zygote.serve()


@final
class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        message, fds, _, _ = socket.recv_fds(control, LONGEST_MESSAGE, 5)
        payload, points, gradients, self._reports, letters = fds
        for fd in fds:
            os.set_inheritable(fd, False)
        self._parent = os.getppid()
        self._job: Job = unpickle(payload, pickle.loads(message))
        os.close(payload)
        self._letters = socket.socket(fileno=letters)
        self._points = SharedSlots(self._job.length, self._job.dtype, points, writeable=False)
        self._gradients = SharedSlots(self._job.length, self._job.dtype, gradients)
        self._children: dict[int, int] = {}
        """Serial numbers by process id."""
        prepare(self._job.problem)
        if self._job.speeds is not None:
            self._job.speeds.timing(self._job.seed)(0, 0, 0.0)  # loads what is compiled
        gc.freeze()  # a collection in a child would write to pages that all share

    def serve(self) -> None:
        """Fork, kill and bury, as asked."""
        alarm, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(alarm, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(alarm, select.POLLIN)
        while os.getppid() == self._parent:
            for fd, _ in poller.poll(1000 * SECONDS_BETWEEN_LOOKS):
                if fd == alarm:
                    with contextlib.suppress(BlockingIOError):
                        os.read(alarm, 4096)
                    self._bury()
                elif not self._obey():
                    _kill_the_group()
        _kill_the_group()

    def _obey(self) -> bool:
        try:
            message, fds, _, _ = socket.recv_fds(self._control, LONGEST_MESSAGE, 1)
        except OSError:
            return False
        if not message:
            return False
        order, worker, serial, began = pickle.loads(message)
        if order == "fork":
            os.set_inheritable(fds[0], False)
            self._fork(worker, serial, fds[0], began)
        elif order == "kill":
            for process, number in self._children.items():
                if number == serial:
                    os.kill(process, signal.SIGKILL)
        return True

    def _fork(self, worker: int, serial: int, orders: int, began: float) -> None:
        zygote = os.getpid()
        process = os.fork()
        if process == 0:
            self._be_worker(worker, orders, zygote, began)
        os.close(orders)
        self._children[process] = serial

    def _be_worker(self, worker: int, orders: int, zygote: int, began: float) -> NoReturn:
        status = 1
        try:
            _die_with_parent(zygote)
            _let_the_server_go_first()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *STOPPING):
                signal.signal(number, signal.SIG_DFL)
            self._control.close()
            desk = Desk(orders, self._reports, self._letters, self._points, self._gradients, began)
            work(worker, self._job, desk)
            status = 0
        except BrokenPipeError:
            status = 0  # the server is gone
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

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
                self._say("died", serial, os.waitstatus_to_exitcode(status))

    def _say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the other side is gone, which the next receive will tell
            self._control.send(pickle.dumps(message))


def _kill_the_group() -> None:
    """The server is gone: so are all, those too that workers started."""
    os.killpg(0, signal.SIGKILL)


def _let_the_server_go_first() -> None:
    """A worker that is woken does not push the server, which woke it, off its core."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
