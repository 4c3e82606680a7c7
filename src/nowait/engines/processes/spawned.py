"""The entry point of worker processes, and how they are started where forking is not safe."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, final

from nowait.core.memory import Slots
from nowait.engines.processes.worker import Connections, work
from nowait.fleet.platform import DetailsSocket
from nowait.fleet.wire.records import Job
from nowait.fleet.wire.shared import SharedSlots, shared_slots, unpickle
from nowait.problems.encodings import Codecs, Encodings

STANDARD_ERROR = 2
RESET = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Inherited(NamedTuple):
    """What a zygote receives: the sizes of the payload's parts, how vectors are stored, and five file descriptors."""

    sizes: list[int]
    encoded: bool
    payload: int
    points: int
    gradients: int
    reports: int
    details: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The file descriptors."""
        return self[2:]


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
            f"from nowait.engines.processes.spawned import main; "
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


def main(inherited: tuple[Any, ...], worker: int, serial: int, orders: int, began: float, lifeline: int) -> None:
    """Run a worker process that was not forked."""
    given = Inherited(*inherited)
    for fd in (*given.descriptors, orders, lifeline):
        os.set_inheritable(fd, False)
    end_with(lifeline)
    flush_lines()
    run_worker(worker, lambda: _load(given, serial, orders, began))


def _load(given: Inherited, serial: int, orders: int, began: float) -> tuple[Job, Connections]:
    job: Job = unpickle(given.payload, given.sizes)
    os.close(given.payload)
    job.prepare()
    points, gradients, codecs = open_slots(job, given)
    details = DetailsSocket(socket.socket(fileno=given.details))
    return job, Connections(orders, given.reports, details, points, gradients, began, serial=serial, codecs=codecs)


def open_slots(job: Job, given: Inherited) -> tuple[Slots, Slots, Codecs]:
    """Return the slots for points and gradients, and the codecs for what is in them."""
    if not given.encoded:
        points = shared_slots(job.memory, job.length, job.dtype, given.points, writeable=False)
        return points, shared_slots(job.memory, job.length, job.dtype, given.gradients), Codecs()
    codecs = Encodings.of(job.problem).codecs(job.length, job.dtype)
    codecs.warm_up(job.length, job.dtype)
    point_shape, gradient_shape = codecs.shapes(job.length, job.dtype)
    return (
        SharedSlots(*point_shape, given.points, writeable=False),
        SharedSlots(*gradient_shape, given.gradients),
        codecs,
    )


def end_with(lifeline: int, end: Callable[[int], object] = os._exit) -> threading.Thread:
    """Watch a pipe in a thread, and exit this process as soon as the other end is closed."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        end(1)

    thread = threading.Thread(target=watch, name="nowait-lifeline", daemon=True)
    thread.start()
    return thread


def run_worker(worker: int, begin: Callable[[], tuple[Job, Connections]]) -> NoReturn:
    """Handle orders until the server closes the pipe, then exit this process, whatever happens."""
    status = 1
    try:
        _lower_scheduling_priority()
        faulthandler.enable(file=STANDARD_ERROR, all_threads=False)  # a segmentation fault shows its line in Python
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        work(worker, *begin())
        status = 0
    except BrokenPipeError:
        status = 0  # the server is gone
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
        if status != 0:
            traceback.print_exc()  # the code of the problem has ended its process
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def flush_lines() -> None:
    """Flush output after each line, so that nothing is lost when a worker is killed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _lower_scheduling_priority() -> None:
    """Use SCHED_BATCH, so that a worker that wakes up does not preempt the server that woke it."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
