"""A worker process: how it begins, and how it is started where forking is not safe."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, final

from nowait.core.problem import prepare
from nowait.engines.processes.payload import unpickle
from nowait.engines.processes.platform import LetterSocket
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.processes.worker import Desk, Job, work

RESET = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Handed(NamedTuple):
    """What a zygote is given: the sizes of the payload's parts, and five file descriptors."""

    sizes: list[int]
    payload: int
    points: int
    gradients: int
    reports: int
    letters: int


@final
class Spawn:
    """Workers are fresh interpreters. Each has the reading end of a pipe that ends with the zygote: its lifeline."""

    def __init__(self, handed: Handed) -> None:
        self._handed = handed
        self._lifeline, self._ours = os.pipe()

    def start(self, worker: int, orders: int, began: float) -> int:
        """As ``Starter.start``."""
        handed = self._handed
        code = (
            f"import sys; sys.path[:] = {[str(entry) for entry in sys.path]!r}; "
            f"from nowait.engines.processes.spawned import main; "
            f"main({tuple(handed)!r}, {worker}, {orders}, {began!r}, {self._lifeline})"
        )
        descriptors = (*handed[1:], orders, self._lifeline)
        for fd in descriptors:
            os.set_inheritable(fd, True)
        try:
            return os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
        finally:
            for fd in descriptors:
                os.set_inheritable(fd, False)


def main(handed: tuple[Any, ...], worker: int, orders: int, began: float, lifeline: int) -> None:
    """Be a worker that was not forked."""
    given = Handed(*handed)
    for fd in (*given[1:], orders, lifeline):
        os.set_inheritable(fd, False)
    end_with(lifeline)
    flush_lines()
    be_worker(worker, lambda: _load(given, orders, began))


def _load(given: Handed, orders: int, began: float) -> tuple[Job, Desk]:
    job: Job = unpickle(given.payload, given.sizes)
    os.close(given.payload)
    prepare(job.problem)
    points = SharedSlots(job.length, job.dtype, given.points, writeable=False)
    gradients = SharedSlots(job.length, job.dtype, given.gradients)
    letters = LetterSocket(socket.socket(fileno=given.letters))
    return job, Desk(orders, given.reports, letters, points, gradients, began)


def end_with(lifeline: int, end: Callable[[int], object] = os._exit) -> threading.Thread:
    """End this process, also while it computes, when the other end of a pipe is closed: its holder is gone."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        end(1)

    thread = threading.Thread(target=watch, name="nowait-lifeline", daemon=True)
    thread.start()
    return thread


def be_worker(worker: int, begin: Callable[[], tuple[Job, Desk]]) -> NoReturn:
    """Work until the server hangs up, and end this process whatever happens."""
    status = 1
    try:
        _let_the_server_go_first()
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        work(worker, *begin())
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


def flush_lines() -> None:
    """Write each printed line at once: a worker that is killed has said what it printed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _let_the_server_go_first() -> None:
    """A worker that is woken does not push the server, which woke it, off its core."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
