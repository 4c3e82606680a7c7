"""The worker process: computes one ticket after the other."""

from __future__ import annotations

import os
import pickle
import select
import sys
import traceback
from dataclasses import astuple, dataclass, field
from time import monotonic
from typing import Any, final

import numpy as np

from nowait.core import Sample, sampler
from nowait.core.problem import gradient_function, loss_of
from nowait.core.types import Vector
from nowait.engines.fingerprint import Fingerprint
from nowait.engines.processes.platform import LetterSocket
from nowait.engines.processes.shared import SharedSlots
from nowait.engines.processes.wire import EVALUATOR, FINGERPRINTER, ORDER, REPORT, Order, Report
from nowait.speeds import Speeds, Timing

LONGEST_LETTER = 60_000
"""In bytes. Longer tracebacks are cut: a letter must fit into a datagram."""


@final
@dataclass(frozen=True)
class Job:
    """What every worker of a run is told once."""

    problem: Any
    seed: int
    length: int
    dtype: str
    slowdown: dict[int, float] = field(default_factory=dict)
    speeds: Speeds | None = None


@final
@dataclass(frozen=True)
class Desk:
    """What a worker works with."""

    orders: int
    """The pipe its orders come through."""
    reports: int
    """The pipe all reports go through."""
    letters: LetterSocket
    """For what does not fit into a report."""
    points: SharedSlots
    gradients: SharedSlots
    began: float
    """When the run began, on the clock all processes share."""


def work(worker: int, job: Job, desk: Desk) -> None:
    """Compute until the server hangs up."""
    if worker == EVALUATOR:
        _evaluate(job, desk)
    elif worker == FINGERPRINTER:
        _fingerprint(job, desk)
    else:
        _Worker(worker, job, desk).run()


def _evaluate(job: Job, desk: Desk) -> None:
    while len(order := os.read(desk.orders, ORDER.size)) == ORDER.size:
        ticket, _, slot, _ = ORDER.unpack(order)
        began = monotonic()
        try:
            loss, kind = loss_of(job.problem, desk.points[slot]), Report.LOSS
        except Exception as error:
            _post(desk, EVALUATOR, ticket, error)
            loss, kind = 0.0, Report.ERROR
        os.write(desk.reports, REPORT.pack(ticket, loss, monotonic() - began, EVALUATOR, kind))


def _fingerprint(job: Job, desk: Desk) -> None:
    try:
        found, kind = Fingerprint.of(job.problem), Report.FINGERPRINT
        desk.letters.send(pickle.dumps((FINGERPRINTER, 0, *astuple(found))))
    except Exception as error:
        _post(desk, FINGERPRINTER, 0, error)
        kind = Report.ERROR
    os.write(desk.reports, REPORT.pack(0, 0.0, 0.0, FINGERPRINTER, kind))


@final
class _Worker:
    def __init__(self, worker: int, job: Job, desk: Desk) -> None:
        self._worker = worker
        self._desk = desk
        self._out = desk.gradients[worker]
        self._gradient_into, self._in_place = gradient_function(job.problem)
        self._samples = sampler(job.seed)
        self._pace = _Pace(worker, job, desk)
        self._memory = _Memory(job.problem, self._out) if hasattr(job.problem, "gradient_with_memory") else None

    def run(self) -> None:
        """Order after order."""
        orders, reports, points, out = self._desk.orders, self._desk.reports, self._desk.points, self._out
        views = points.views
        samples, worker, pace, slow = self._samples, self._worker, self._pace, self._pace.any
        compute = self._gradient_into if self._in_place and self._memory is None else None
        unpack, pack, size, gradient, hurry = (
            ORDER.unpack,
            REPORT.pack,
            ORDER.size,
            int(Report.GRADIENT),
            int(Order.HURRY),
        )
        read, write = os.read, os.write
        while len(order := read(orders, size)) == size:
            ticket, job, slot, instruction = unpack(order)
            if instruction == hurry:
                continue
            began = monotonic()
            kind = gradient
            try:
                point = views[slot] if slot < len(views) else points[slot]
                sample = samples.sample(worker, job)
                if compute is not None:
                    compute(point, sample, out)
                else:
                    kind = self._compute(ticket, point, sample, instruction)
            except Exception as error:
                _post(self._desk, worker, ticket, error)
                kind = Report.ERROR
            seconds = monotonic() - began
            if slow:
                seconds = pace.keep(ticket, job, began, seconds)
            write(reports, pack(ticket, began, seconds, worker, kind))

    def _compute(self, ticket: int, point: Vector, sample: Sample, instruction: int) -> int:
        if self._memory is not None:
            self._memory.gradient(point, sample, self._out, instruction)
            return Report.GRADIENT
        misfit = self._gradient_into(point, sample, self._out)
        if misfit is None:
            return Report.GRADIENT
        self._desk.letters.send(pickle.dumps((self._worker, ticket, str(misfit.dtype), misfit.shape)))
        return Report.MISFIT


@final
class _Memory:
    """What the worker remembers from gradient to gradient, kept only if the server took the gradient."""

    def __init__(self, problem: Any, like: Vector) -> None:
        self._gradient_with_memory = problem.gradient_with_memory
        self._now, self._before = np.zeros_like(like), np.zeros_like(like)

    def gradient(self, point: Vector, sample: Sample, out: Vector, instruction: int) -> None:
        """Compute with the memory that holds."""
        if instruction == Order.FORGET:
            self._now[:] = 0
        elif instruction == Order.UNDO:
            self._now[:] = self._before
        self._before[:] = self._now
        self._gradient_with_memory(point, sample, self._now, out)


@final
class _Pace:
    """Plays slow: a worker to order."""

    def __init__(self, worker: int, job: Job, desk: Desk) -> None:
        self._worker = worker
        self._began = desk.began
        self._factor = job.slowdown.get(worker, 1.0)
        self._timing: Timing | None = None if job.speeds is None else job.speeds.timing(job.seed)
        self._orders = desk.orders
        self.any = self._factor != 1.0 or self._timing is not None

    def keep(self, ticket: int, job: int, began: float, seconds: float) -> float:
        """Wait as long as a slower worker would have computed; how long it took in the end."""
        end = began + seconds * self._factor
        if self._timing is not None:
            start = began - self._began
            end = max(end, began + (self._timing(self._worker, job, start)[1] - start) * self._factor)
        self._wait_until(end, ticket)
        return monotonic() - began

    def _wait_until(self, end: float, ticket: int) -> None:
        """Sleep; a cancelled ticket ends it."""
        poller = select.poll()
        poller.register(self._orders, select.POLLIN)
        while (left := end - monotonic()) > 0:
            if not poller.poll(min(left, 3600.0) * 1000):
                continue
            order = os.read(self._orders, ORDER.size)
            if len(order) < ORDER.size:
                sys.exit(0)
            if ORDER.unpack(order)[0] == ticket:
                return


def _post(desk: Desk, worker: int, ticket: int, error: BaseException) -> None:
    """Send a traceback, and where the error is, by which two are known to be of the same kind."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    kind = f"{type(error).__name__} at {last.filename}:{last.lineno}" if last else type(error).__name__
    text = "".join(traceback.format_exception(error)).encode("utf-8", "replace")[-LONGEST_LETTER:]
    desk.letters.send(pickle.dumps((worker, ticket, kind[:1_000], text.decode("utf-8", "replace"))))
