"""What a worker on another machine does with an order: its point is encoded, and so is the gradient that it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from nowait.core import Sample
from nowait.core.capabilities import Capabilities
from nowait.core.types import Vector
from nowait.engines.workers.computation import Computation, SendDetails, details_of
from nowait.fleet.wire.records import ERROR, GRADIENT, Instruction
from nowait.problems.encodings import Bytes, Codecs

EncodedGradient = Callable[[Vector, Sample, Vector, Vector, Any], None]


@final
class EncodedComputation:
    """Decodes points, and encodes gradients into the slot from which they are sent."""

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
        if instruction == Instruction.FORGET:
            self._before[:] = 0
        elif instruction != Instruction.UNDO:
            self._before, self._after = self._after, self._before
        self._encoded_gradient(point, sample, self._before, self._after, out)
