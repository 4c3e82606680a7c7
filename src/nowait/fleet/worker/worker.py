"""The worker process: computes one ticket after the other. The evaluator and the fingerprint process begin here too."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import astuple, dataclass
from time import monotonic
from typing import Any, NamedTuple, NoReturn, final

import numpy as np

from nowait.core.capabilities import Capabilities
from nowait.core.memory import Slots
from nowait.core.problem import evaluation
from nowait.core.types import Vector
from nowait.engines.fingerprint import Fingerprint
from nowait.fleet.platform import DetailsSocket, spin
from nowait.fleet.wire.records import (
    ANNOUNCE,
    AUDIT,
    AUDITED,
    BEGIN,
    ERROR,
    EVALUATOR,
    FINGERPRINT,
    FINGERPRINTER,
    GRADIENT,
    HURRY,
    LEAVING,
    LOSS,
    ORDER,
    READY,
    REPORT,
    Job,
)
from nowait.fleet.wire.shared import SharedSlots, shared_slots, unpickle
from nowait.fleet.worker.compute import Computation, EncodedComputation, SendDetails, details_of
from nowait.problems.encodings import Codecs, Encodings
from nowait.recording.best import BestFile
from nowait.speeds import Timing

STANDARD_ERROR = 2
RESET = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_CODECS = Codecs()


# What a worker gets at its start


class Inherited(NamedTuple):
    """What a zygote and its workers receive: sizes of the payload's parts, how vectors are stored, five descriptors."""

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
@dataclass(frozen=True)
class Connections:
    """The pipes, the socket and the shared memory of one worker process."""

    orders: int
    """The pipe through which its orders come."""
    reports: int
    """The pipe through which all workers report."""
    details: DetailsSocket
    """Sends tracebacks and other data that do not fit into a report."""
    points: Slots
    gradients: Slots
    began: float
    """When the run began, on the monotonic clock of this machine."""
    serial: int = 0
    """The serial number of the process."""
    codecs: Codecs = NO_CODECS
    """For points and gradients that are in the slots as they are sent between machines."""

    def send_details(self, worker: int, ticket: int, details: tuple[Any, ...]) -> None:
        """Send what the next report on a ticket announces."""
        self.details.send(pickle.dumps((worker, ticket, *details)))


def open_slots(job: Job, inherited: Inherited) -> tuple[Slots, Slots, Codecs]:
    """Return the slots for points and gradients, and the codecs for what is in them."""
    if not inherited.encoded:
        points = shared_slots(job.memory, job.length, job.dtype, inherited.points, writeable=False)
        return points, shared_slots(job.memory, job.length, job.dtype, inherited.gradients), NO_CODECS
    codecs = Encodings.of(job.problem).codecs(job.length, job.dtype)
    codecs.warm_up(job.length, job.dtype)
    point_shape, gradient_shape = codecs.shapes(job.length, job.dtype)
    return (
        SharedSlots(*point_shape, inherited.points, writeable=False),
        SharedSlots(*gradient_shape, inherited.gradients),
        codecs,
    )


# The process


def main(values: tuple[Any, ...], worker: int, serial: int, orders: int, began: float, lifeline: int) -> None:
    """Run a worker in an interpreter that a zygote started, where forking is not safe. It ends with its lifeline."""
    inherited = Inherited(*values)
    for fd in (*inherited.descriptors, orders, lifeline):
        os.set_inheritable(fd, False)
    end_with(lifeline)
    flush_lines()

    def load() -> tuple[Job, Connections]:
        job: Job = unpickle(inherited.payload, inherited.sizes)
        os.close(inherited.payload)
        job.prepare()
        points, gradients, codecs = open_slots(job, inherited)
        details = DetailsSocket(socket.socket(fileno=inherited.details))
        connections = Connections(orders, inherited.reports, details, points, gradients, began, serial, codecs)
        return job, connections

    run_worker(worker, load)


def end_with(lifeline: int, end: Callable[[int], object] = os._exit) -> threading.Thread:
    """Watch a pipe in a thread, and exit this process as soon as the other end is closed."""

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        end(1)

    thread = threading.Thread(target=watch, name="nowait-lifeline", daemon=True)
    thread.start()
    return thread


def flush_lines() -> None:
    """Flush output after each line, so that nothing is lost when a worker is killed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def run_worker(worker: int, begin: Callable[[], tuple[Job, Connections]]) -> NoReturn:
    """Handle orders until the server closes the pipe, then exit this process, whatever happens."""
    status = 1
    try:
        _lower_scheduling_priority()
        faulthandler.enable(file=STANDARD_ERROR, all_threads=False)  # a segmentation fault shows its line in Python
        for number in RESET:
            signal.signal(number, signal.SIG_DFL)
        work = {EVALUATOR: _evaluate, FINGERPRINTER: _fingerprint}.get(worker, _compute_gradients)
        job, connections = begin()
        if worker >= 0:
            leave_on_sigterm(worker, connections.serial, connections.reports)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, RESET)  # a zygote that forks blocks signals until here
        work(worker, job, connections)
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


def _lower_scheduling_priority() -> None:
    """Use SCHED_BATCH, so that a worker that wakes up does not preempt the server that woke it."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


# What it computes


def _compute_gradients(worker: int, job: Job, connections: Connections) -> None:
    capabilities = Capabilities.of(job.problem)
    capabilities.take_share(job.share_of(worker), len(job.workers))
    capabilities.start_worker(worker, len(job.workers))
    orders, reports, points, began = connections.orders, connections.reports, connections.points, connections.began
    computation, compute = _computation(worker, job, connections)
    between = computation.between
    reports_before = computation.reports_before(None if connections.codecs.gradients is not None else job.audit)
    slowness = Slowness(worker, job, connections)
    views, is_slow = points.views, slowness.is_slow
    unpack, pack, size, write = ORDER.unpack, REPORT.pack, ORDER.size, os.write
    read = slowness.reading(os.read if job.spin_seconds == 0 else _spinning_read(orders, job.spin_seconds))
    while len(order := read(orders, size)) == size:
        ticket, number, slot, instruction = unpack(order)
        if instruction >= HURRY:
            if instruction == ANNOUNCE:
                write(reports, pack(0, 0.0, 0.0, worker, READY))
            elif instruction == BEGIN:
                began = slowness.began = connections.began + 1e-9 * number
            elif instruction >= AUDIT:
                kind = compute(ticket, number, points[slot], instruction)
                write(reports, pack(ticket, 0.0, 0.0, worker, AUDITED if kind == GRADIENT else kind))
            continue
        started = monotonic()
        kind = compute(ticket, number, views[slot] if slot < len(views) else points[slot], instruction)
        seconds = monotonic() - started
        if is_slow:
            seconds = slowness.wait(ticket, number, started, seconds)
        report = pack(ticket, started - began, seconds, worker, kind)
        write(reports, report if reports_before is None else reports_before(ticket, number, kind) + report)
        if between is not None:
            between()


def _computation(
    worker: int, job: Job, connections: Connections
) -> tuple[Computation, Callable[[int, int, Any, int], int]]:
    """Return the computation of a worker, and what to call for each ticket: with codecs that is another object's."""
    setup = (worker, job.problem, job.seed, connections.gradients[worker], connections.send_details)
    if not any(connections.codecs):
        computation = Computation(*setup)
        return computation, computation.compute
    encoded = EncodedComputation(*setup, like=np.zeros(job.length, job.dtype), codecs=connections.codecs)
    return encoded.plain, encoded.compute


def _spinning_read(fd: int, seconds: float) -> Callable[[int, int], bytes]:
    """Return a function like ``os.read`` for one file descriptor, which polls for some time before it sleeps."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)

    def read(fd: int, size: int) -> bytes:
        spin(poller, seconds)
        return os.read(fd, size)

    return read


def _evaluate(_: int, job: Job, connections: Connections) -> None:
    task = EvaluatorTask(job.problem, job.best, connections.send_details)
    while len(order := os.read(connections.orders, ORDER.size)) == ORDER.size:
        number, step, slot, _ = ORDER.unpack(order)
        began = monotonic()
        loss, kind = task.compute(number, step, connections.points[slot])
        os.write(connections.reports, REPORT.pack(number, loss, monotonic() - began, EVALUATOR, kind))


@final
class EvaluatorTask:
    """Evaluates params, and keeps the best in a file. The loss goes into the report, other metrics into its details."""

    def __init__(self, problem: Any, best: BestFile | None, send_details: SendDetails) -> None:
        capabilities = Capabilities.of(problem)
        self._evaluation, self._write_model = evaluation(problem, capabilities), capabilities.write_model
        self._best, self._send_details = best, send_details

    def compute(self, number: int, step: int, point: Vector) -> tuple[float, int]:
        """Evaluate the params of a step; returns the loss and the kind of the report."""
        try:
            values = self._evaluation(point)
            if self._best is not None:
                self._best.offer(step, values, point, self._write_model)
            if values.metrics:
                self._send_details(EVALUATOR, number, (values.metrics,))
        except Exception as error:
            self._send_details(EVALUATOR, number, details_of(error))
            return 0.0, ERROR
        return values.loss, LOSS


def _fingerprint(_: int, job: Job, connections: Connections) -> None:
    try:
        details, kind = astuple(Fingerprint.of(job.problem)), FINGERPRINT
    except Exception as error:
        details, kind = details_of(error), ERROR
    connections.send_details(FINGERPRINTER, 0, details)
    os.write(connections.reports, REPORT.pack(0, 0.0, 0.0, FINGERPRINTER, kind))


# Leaving


def leave_on_sigterm(worker: int, serial: int, reports: int) -> None:
    """At the first SIGTERM, report that this process leaves; a second one ends it.

    The process goes on: the server sends it no more orders, and closes its pipe when it has reported on the one it has.
    Processes that the problem forks end at the first SIGTERM, as those of any program. SIGTERM is blocked while they
    are made: Python forgets the signals that come to a child before it is ready.
    """
    record = REPORT.pack(serial, 0.0, 0.0, worker, LEAVING)

    def on_sigterm(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.write(reports, record)

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()

    signal.signal(signal.SIGTERM, on_sigterm)
    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)


# Imitating slower workers


@final
class Slowness:
    """Imitates a slower worker by waiting after each gradient."""

    def __init__(self, worker: int, job: Job, connections: Connections) -> None:
        self._worker = worker
        self.began = connections.began
        self._factor = job.slowdown.get(worker, 1.0)
        self._timing: Timing | None = None if job.speeds is None else job.speeds.timing(job.seed)
        self._orders = connections.orders
        self._kept = b""
        """An order that came while this worker was waiting."""
        self.is_slow = self._factor != 1.0 or self._timing is not None

    def reading(self, read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
        """Return a function like ``read`` that first returns the order that was kept."""
        if not self.is_slow:
            return read

        def next_order(fd: int, size: int) -> bytes:
            order, self._kept = self._kept, b""
            return order or read(fd, size)

        return next_order

    def wait(self, ticket: int, job: int, started: float, seconds: float) -> float:
        """Wait until a slower worker would have finished; returns how long the gradient took in all."""
        end = started + seconds * self._factor
        if self._timing is not None:
            start = started - self.began
            end = max(end, started + (self._timing(self._worker, job, start)[1] - start) * self._factor)
        self._wait_until(end, ticket)
        return monotonic() - started

    def _wait_until(self, end: float, ticket: int) -> None:
        """Sleep until a time, until the ticket is cancelled, or until there is another order.

        Then the connection of this host broke and was made again, and nobody waits for the ticket.
        """
        poller = select.poll()
        poller.register(self._orders, select.POLLIN)
        while (left := end - monotonic()) > 0:
            if not poller.poll(min(left, 3600.0) * 1000):
                continue
            order = os.read(self._orders, ORDER.size)
            if len(order) < ORDER.size:
                sys.exit(0)
            number, _, _, instruction = ORDER.unpack(order)
            if instruction != HURRY:
                self._kept = order
                return
            if number == ticket:
                return
