"""The worker process: computes one ticket after the other."""

from __future__ import annotations

import os
import pickle
import select
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from time import monotonic
from typing import Any, final

import numpy as np

from nowait.core.capabilities import Capabilities
from nowait.core.memory import Slots
from nowait.engines.fingerprint import Fingerprint
from nowait.engines.processes.departure import leave_on_sigterm
from nowait.engines.workers.computation import AUDITED_OR, Computation, checksums, details_of, reports_before
from nowait.engines.workers.encoded_computation import EncodedComputation
from nowait.engines.workers.evaluator import EvaluatorTask
from nowait.fleet.platform import DetailsSocket, spin
from nowait.fleet.wire.records import (
    EVALUATOR,
    FINGERPRINTER,
    ORDER,
    REPORT,
    Instruction,
    Job,
    ReportKind,
)
from nowait.problems.encodings import Codecs
from nowait.speeds import Timing

NO_CODECS = Codecs()


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


def work(worker: int, job: Job, connections: Connections) -> None:
    """Handle orders until the server closes the pipe."""
    if worker == EVALUATOR:
        _evaluate(job, connections)
    elif worker == FINGERPRINTER:
        _fingerprint(job, connections)
    else:
        _compute_gradients(worker, job, connections)


def _evaluate(job: Job, connections: Connections) -> None:
    task = EvaluatorTask(job.problem, job.best, connections.send_details)
    while len(order := os.read(connections.orders, ORDER.size)) == ORDER.size:
        number, step, slot, _ = ORDER.unpack(order)
        began = monotonic()
        loss, kind = task.compute(number, step, connections.points[slot])
        os.write(connections.reports, REPORT.pack(number, loss, monotonic() - began, EVALUATOR, kind))


def _fingerprint(job: Job, connections: Connections) -> None:
    try:
        found, kind = Fingerprint.of(job.problem), ReportKind.FINGERPRINT
        connections.send_details(FINGERPRINTER, 0, astuple(found))
    except Exception as error:
        connections.send_details(FINGERPRINTER, 0, details_of(error))
        kind = ReportKind.ERROR
    os.write(connections.reports, REPORT.pack(0, 0.0, 0.0, FINGERPRINTER, kind))


def _compute_gradients(worker: int, job: Job, connections: Connections) -> None:
    leave_on_sigterm(worker, connections.serial, connections.reports)
    capabilities = Capabilities.of(job.problem)
    capabilities.take_share(job.share_of(worker), len(job.workers))
    capabilities.start_worker(worker, len(job.workers))
    orders, reports, points, began = connections.orders, connections.reports, connections.points, connections.began
    setup = (worker, job.problem, job.seed, connections.gradients[worker], connections.send_details)
    if any(connections.codecs):
        encoded = EncodedComputation(*setup, like=np.zeros(job.length, job.dtype), codecs=connections.codecs)
        computation, compute = encoded.plain, encoded.compute
    else:
        computation = Computation(*setup)
        compute = computation.compute
    between, more_reports = computation.between, _more_reports(worker, job, connections, computation)
    slowness = _Slowness(worker, job, connections)
    views, is_slow, hurry = points.views, slowness.is_slow, int(Instruction.HURRY)
    ready = REPORT.pack(0, 0.0, 0.0, worker, ReportKind.READY)
    unpack, pack, size, write = ORDER.unpack, REPORT.pack, ORDER.size, os.write
    read = slowness.reading(os.read if job.spin_seconds == 0 else _spinning_read(orders, job.spin_seconds))
    while len(order := read(orders, size)) == size:
        ticket, number, slot, instruction = unpack(order)
        if instruction >= hurry:
            if instruction == Instruction.ANNOUNCE:
                write(reports, ready)
            elif instruction == Instruction.BEGIN:
                began = slowness.began = connections.began + 1e-9 * number
            elif instruction >= Instruction.AUDIT:
                with computation.instead_of(instruction - Instruction.AUDIT):
                    kind = compute(ticket, number, points[slot], Instruction.KEEP)
                write(reports, pack(ticket, 0.0, 0.0, worker, AUDITED_OR.get(kind, kind)))
            continue
        started = monotonic()
        kind = compute(ticket, number, views[slot] if slot < len(views) else points[slot], instruction)
        seconds = monotonic() - started
        if is_slow:
            seconds = slowness.wait(ticket, number, started, seconds)
        report = pack(ticket, started - began, seconds, worker, kind)
        write(reports, report if more_reports is None else more_reports(ticket, number, kind) + report)
        if between is not None:
            between()


def _more_reports(
    worker: int, job: Job, connections: Connections, computation: Computation
) -> Callable[[int, int, int], bytes] | None:
    """Return what makes the reports to put before that of a gradient, from ticket, job and kind; None if none."""
    is_encoded = connections.codecs.gradients is not None
    taken = None if is_encoded else checksums(worker, connections.gradients[worker], job.audit, job.seed)
    return reports_before(taken, computation.more_reports)


def _spinning_read(fd: int, seconds: float) -> Callable[[int, int], bytes]:
    """Return a function like ``os.read`` for one file descriptor, which polls for some time before it sleeps."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)

    def read(fd: int, size: int) -> bytes:
        spin(poller, seconds)
        return os.read(fd, size)

    return read


@final
class _Slowness:
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
            if instruction != Instruction.HURRY:
                self._kept = order
                return
            if number == ticket:
                return
