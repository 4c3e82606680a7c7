"""What a worker on another machine does with an order: its point is encoded, and so is the gradient that it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np

from nowait.core.types import Vector
from nowait.engines.workers.computation import ERROR, GRADIENT, SendDetails, details_of
from nowait.problems.encodings import Bytes, Codecs

Compute = Callable[[int, int, Vector, int], int]
"""``compute(ticket, job, point, instruction)`` returns the kind of the report."""


@final
class EncodedComputation:
    """Decodes a point, computes the gradient into ``gradient``, and encodes it into the slot from which it is sent."""

    def __init__(
        self,
        worker: int,
        compute: Compute,
        send_details: SendDetails,
        codecs: Codecs,
        gradient: Vector,
        slot: Bytes,
    ) -> None:
        self._worker, self._compute, self._send_details = worker, compute, send_details
        self._codecs, self._gradient, self._slot = codecs, gradient, slot
        self._decoded = np.zeros(gradient.size if codecs.points is not None else 0, gradient.dtype)
        self._point = self._decoded.view()
        self._point.flags.writeable = False

    def __call__(self, ticket: int, job: int, point: Any, instruction: int) -> int:
        """Compute the gradient of a ticket; returns the kind of the report."""
        try:
            if self._codecs.points is not None:
                self._codecs.points.decode(point, self._decoded)
                point = self._point
            kind = self._compute(ticket, job, point, instruction)
            if kind == GRADIENT and self._codecs.gradients is not None:
                self._codecs.gradients.encode(self._gradient, self._slot)
        except ValueError as error:
            self._send_details(self._worker, ticket, details_of(error))
            return ERROR
        return kind
