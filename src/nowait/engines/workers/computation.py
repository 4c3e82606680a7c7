"""What a worker does with an order: computes a gradient, and describes what went wrong if it cannot."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Protocol, final

import numpy as np

from nowait.core import Sample, sampler
from nowait.core.audit import Audit, Chosen, checksum_of
from nowait.core.capabilities import Capabilities
from nowait.core.types import Vector
from nowait.fleet.wire.records import (
    AUDITED,
    CHECKSUM,
    ERROR,
    GRADIENT,
    LOADING,
    MISFIT,
    REPORT,
    TRAINING_LOSS,
    Instruction,
    check_number,
)

LONGEST_TEXT = 60_000
"""The maximum length in bytes. Longer tracebacks are cut, because details have to fit into a datagram."""
AUDITED_OR = {GRADIENT: AUDITED}
"""The kind of the report of an audit, if it is another one than that of the computation."""

SendDetails = Callable[[int, int, tuple[Any, ...]], None]
"""Called with worker, ticket and details, before the report that announces them."""


class WorkerMemory(Protocol):
    """Computes gradients with a vector that the worker keeps from one to the next."""

    def gradient(self, point: Vector, sample: Sample, out: Any, instruction: int) -> None:
        """Compute a gradient after bringing the memory into the state that the instruction asks for."""


@final
class Computation:
    """Computes the gradients of one worker into ``out``."""

    def __init__(
        self,
        worker: int,
        problem: Any,
        seed: int,
        out: Vector,
        send_details: SendDetails,
        memory: WorkerMemory | None = None,
    ) -> None:
        self._worker, self._out, self._send_details = worker, out, send_details
        capabilities = Capabilities.of(problem)
        self._gradient_into, in_place = capabilities.gradient_function()
        self._samples = sampler(seed)
        self._sampled = worker
        """The worker whose sample is computed: another one in an audit."""
        self.between = capabilities.between_gradients
        """What to call after a gradient was sent, or None."""
        with_memory = capabilities.gradient_with_memory
        if memory is None and with_memory is not None:
            memory = _Memory(with_memory, out)
        self._memory = memory
        self._fast = in_place and self._memory is None
        self._training_loss = capabilities.training_loss
        self._loading_seconds = capabilities.loading_seconds
        has_more = self._training_loss is not None or self._loading_seconds is not None
        self.more_reports = self._more_reports if has_more else None
        """``more_reports(ticket, kind)`` returns the reports to put before that of a gradient; None: there are none."""

    def compute(self, ticket: int, job: int, point: Vector, instruction: int) -> int:
        """Compute the gradient of a ticket; returns the kind of the report."""
        try:
            sample = self._samples.sample(self._sampled, job, ticket if ticket >= 0 else check_number(ticket))
            if self._fast:
                self._gradient_into(point, sample, self._out)
                return GRADIENT
            return self._compute(ticket, point, sample, instruction)
        except Exception as error:
            self._send_details(self._worker, ticket, details_of(error))
            return ERROR

    @contextlib.contextmanager
    def instead_of(self, worker: int) -> Iterator[None]:
        """Compute tickets of another worker in this block."""
        self._sampled = worker
        try:
            yield
        finally:
            self._sampled = self._worker

    def _more_reports(self, ticket: int, kind: int) -> bytes:
        """Return the reports of the loss that was computed with a gradient, and of loading its data; empty if none."""
        if kind != GRADIENT:
            return b""
        loss = None if self._training_loss is None else self._training_loss()
        reports = b"" if loss is None else REPORT.pack(ticket, loss, 0.0, self._worker, TRAINING_LOSS)
        if self._loading_seconds is not None:
            reports += REPORT.pack(ticket, *self._loading_seconds(), self._worker, LOADING)
        return reports

    def _compute(self, ticket: int, point: Vector, sample: Sample, instruction: int) -> int:
        if self._memory is not None:
            self._memory.gradient(point, sample, self._out, instruction)
            return GRADIENT
        misfit = self._gradient_into(point, sample, self._out)
        if misfit is None:
            return GRADIENT
        self._send_details(self._worker, ticket, (str(misfit.dtype), misfit.shape))
        return MISFIT


@final
class _Memory:
    """A vector that the worker keeps from gradient to gradient; changes count only if the gradient was accepted."""

    def __init__(self, gradient_with_memory: Callable[[Vector, Sample, Vector, Vector], None], like: Vector) -> None:
        self._gradient_with_memory = gradient_with_memory
        self._now, self._before = np.zeros_like(like), np.zeros_like(like)

    def gradient(self, point: Vector, sample: Sample, out: Vector, instruction: int) -> None:
        """Compute a gradient after bringing the memory into the state that the instruction asks for."""
        if instruction == Instruction.FORGET:
            self._now[:] = 0
        elif instruction == Instruction.UNDO:
            self._now[:] = self._before
        self._before[:] = self._now
        self._gradient_with_memory(point, sample, self._now, out)


@final
class Checksums:
    """Takes checksums of the gradients of a worker that are audited, so that later writes to its slot are noticed."""

    def __init__(self, worker: int, gradient: Vector, audit: Audit, seed: int) -> None:
        self._worker, self._gradient, self._chosen = worker, gradient, Chosen(seed, audit.share)

    def report(self, ticket: int, job: int, kind: int) -> bytes:
        """Return the report to put before that of a gradient; empty if there is none."""
        if kind != GRADIENT or not self._chosen(self._worker, job):
            return b""
        return REPORT.pack(ticket, float(checksum_of(self._gradient)), 0.0, self._worker, CHECKSUM)


def checksums(worker: int, gradient: Any, audit: Audit | None, seed: int) -> Checksums | None:
    """Return what takes checksums; None if there is no audit, or the gradient is not in host memory."""
    takes_them = audit is not None and audit.share > 0 and isinstance(gradient, np.ndarray)
    return Checksums(worker, gradient, audit, seed) if takes_them and audit is not None else None


def reports_before(
    taken: Checksums | None, more_reports: Callable[[int, int], bytes] | None
) -> Callable[[int, int, int], bytes] | None:
    """Return what makes all reports to put before that of a gradient, from ticket, job and kind; None if none."""
    if taken is None:
        return None if more_reports is None else lambda ticket, _, kind: more_reports(ticket, kind)
    if more_reports is None:
        return taken.report
    return lambda ticket, job, kind: taken.report(ticket, job, kind) + more_reports(ticket, kind)


def details_of(error: BaseException) -> tuple[str, str]:
    """Return the kind of an error (its type and line, by which equal errors are counted) and its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    kind = f"{type(error).__name__} at {last.filename}:{last.lineno}" if last else type(error).__name__
    text = "".join(traceback.format_exception(error)).encode("utf-8", "replace")[-LONGEST_TEXT:]
    return kind[:1_000], text.decode("utf-8", "replace")
