"""One gradient: its sample, the memory between gradients, its code for other machines, and what went wrong."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Protocol, final

import numpy as np

from nowait.core import Sample, sampler
from nowait.core.audit import Audit, Chosen, checksum_of
from nowait.core.capabilities import Capabilities
from nowait.core.types import Vector
from nowait.fleet.wire.records import (
    AUDIT,
    CHECKSUM,
    ERROR,
    FORGET,
    GRADIENT,
    LOADING,
    MISFIT,
    REPORT,
    TRAINING_LOSS,
    UNDO,
    check_number,
)
from nowait.problems.encodings import Bytes, Codecs

LONGEST_TEXT = 60_000
"""The maximum length in bytes. Longer tracebacks are cut, because details have to fit into a datagram."""

SendDetails = Callable[[int, int, tuple[Any, ...]], None]
"""Called with worker, ticket and details, before the report that announces them."""
ReportsBefore = Callable[[int, int, int], bytes]
"""``function(ticket, job, kind)`` returns the reports to put before that of a gradient."""
EncodedGradient = Callable[[Vector, Sample, Vector, Vector, Any], None]


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
        self._worker, self._seed, self._out, self._send_details = worker, seed, out, send_details
        self._capabilities = capabilities = Capabilities.of(problem)
        self._gradient, self._gradient_into = capabilities.gradient, capabilities.gradient_into
        self._samples = sampler(seed)
        if memory is None and capabilities.gradient_with_memory is not None:
            memory = _Memory(capabilities.gradient_with_memory, out)
        self._memory = memory
        self.between = capabilities.between_gradients
        """What to call after a gradient was sent, or None."""

    def compute(self, ticket: int, job: int, point: Vector, instruction: int) -> int:
        """Compute the gradient of a ticket, in an audit that of another worker; returns the kind of the report."""
        out = self._out
        try:
            if instruction < AUDIT:
                sample = self._samples.sample(self._worker, job, ticket)
            else:
                sample = self._samples.sample(instruction - AUDIT, job, check_number(ticket))
            if self._memory is not None:
                self._memory.gradient(point, sample, out, instruction)
            elif self._gradient_into is not None:
                self._gradient_into(point, sample, out)
            else:
                gradient = np.asarray(self._gradient(point, sample))
                if gradient.shape != out.shape or gradient.dtype.kind == "c":
                    self._send_details(self._worker, ticket, (str(gradient.dtype), gradient.shape))
                    return MISFIT
                out[:] = gradient
        except Exception as error:
            self._send_details(self._worker, ticket, details_of(error))
            return ERROR
        return GRADIENT

    def reports_before(self, audit: Audit | None) -> ReportsBefore | None:
        """Return what makes the reports before that of a gradient: its checksum, its loss and how long its data took.

        Gradients that are audited have checksums, so that later writes to their slot are noticed. Returns None if there
        are no such reports.
        """
        worker, out, pack = self._worker, self._out, REPORT.pack
        training_loss, loading_seconds = self._capabilities.training_loss, self._capabilities.loading_seconds
        chosen = None
        if audit is not None and audit.share > 0 and isinstance(out, np.ndarray):
            chosen = Chosen(self._seed, audit.share)
        if chosen is None and training_loss is None and loading_seconds is None:
            return None

        def reports(ticket: int, job: int, kind: int) -> bytes:
            records = b""
            if kind != GRADIENT:
                return records
            if chosen is not None and chosen(worker, job):
                records += pack(ticket, float(checksum_of(out)), 0.0, worker, CHECKSUM)
            if training_loss is not None and (loss := training_loss()) is not None:
                records += pack(ticket, loss, 0.0, worker, TRAINING_LOSS)
            if loading_seconds is not None:
                records += pack(ticket, *loading_seconds(), worker, LOADING)
            return records

        return reports


@final
class _Memory:
    """A vector that the worker keeps from gradient to gradient; changes count only if the gradient was accepted."""

    def __init__(self, gradient_with_memory: Callable[[Vector, Sample, Vector, Vector], None], like: Vector) -> None:
        self._gradient_with_memory = gradient_with_memory
        self._now, self._before = np.zeros_like(like), np.zeros_like(like)

    def gradient(self, point: Vector, sample: Sample, out: Vector, instruction: int) -> None:
        """Compute a gradient after bringing the memory into the state that the instruction asks for."""
        if instruction == FORGET:
            self._now[:] = 0
        elif instruction == UNDO:
            self._now[:] = self._before
        self._before[:] = self._now
        self._gradient_with_memory(point, sample, self._now, out)


@final
class EncodedComputation:
    """Decodes points, and encodes gradients into the slot from which they are sent to another machine."""

    def __init__(
        self,
        worker: int,
        problem: Any,
        seed: int,
        slot: Any,
        send_details: SendDetails,
        *,
        like: Vector,
        codecs: Codecs,
    ) -> None:
        self._worker, self._send_details = worker, send_details
        self._decode = None if codecs.points is None else codecs.points.decode
        self._decoded = np.zeros_like(like)
        self._point = self._decoded.view()
        self._point.flags.writeable = False
        direct = None if codecs.gradients is None else Capabilities.of(problem).encoded_gradient
        memory = None if direct is None else _TwoMemories(direct, like)
        self._encode = None if codecs.gradients is None or direct is not None else codecs.gradients.encode
        self._gradient, self._slot = slot if self._encode is None else like, slot
        self.plain = Computation(worker, problem, seed, self._gradient, send_details, memory)
        """Computes from vectors."""

    def compute(self, ticket: int, job: int, point: Any, instruction: int) -> int:
        """Compute the gradient of a ticket; returns the kind of the report."""
        try:
            if self._decode is not None:
                self._decode(point, self._decoded)
                point = self._point
            kind = self.plain.compute(ticket, job, point, instruction)
            if kind == GRADIENT and self._encode is not None:
                self._encode(self._gradient, self._slot)
        except ValueError as error:
            self._send_details(self._worker, ticket, details_of(error))
            return ERROR
        return kind


@final
class _TwoMemories:
    """A worker's memory before and after its latest gradient; which vector is which changes, so nothing is copied."""

    def __init__(self, encoded_gradient: EncodedGradient, like: Vector) -> None:
        self._encoded_gradient = encoded_gradient
        self._before, self._after = np.zeros_like(like), np.zeros_like(like)

    def gradient(self, point: Vector, sample: Sample, out: Bytes, instruction: int) -> None:
        """Compute a gradient after bringing the memory into the state that the instruction asks for."""
        if instruction == FORGET:
            self._before[:] = 0
        elif instruction != UNDO:
            self._before, self._after = self._after, self._before
        self._encoded_gradient(point, sample, self._before, self._after, out)


def details_of(error: BaseException) -> tuple[str, str]:
    """Return the kind of an error (its type and line, by which equal errors are counted) and its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    kind = f"{type(error).__name__} at {last.filename}:{last.lineno}" if last else type(error).__name__
    text = "".join(traceback.format_exception(error)).encode("utf-8", "replace")[-LONGEST_TEXT:]
    return kind[:1_000], text.decode("utf-8", "replace")
