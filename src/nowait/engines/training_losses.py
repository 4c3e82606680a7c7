"""The mean of the losses that workers computed together with their gradients."""

from __future__ import annotations

import logging
from typing import final

logger = logging.getLogger("nowait")

LARGEST = 1e30
"""Losses beyond this are as useless as NaN: one of them would be all of the mean, and sums of several overflow."""


@final
class TrainingLosses:
    """Adds losses up between two evaluations. Losses that are not finite, or huge, are left out, with a warning."""

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0
        self._previous: float | None = None
        self.left_out = 0
        """How many losses were not finite, or huge."""

    def add(self, loss: float, worker: int) -> None:
        """Count the loss of a worker's gradient."""
        if abs(loss) <= LARGEST:
            self._total += loss
            self._count += 1
            return
        self.left_out += 1
        if self.left_out & (self.left_out - 1) == 0:  # a power of two
            logger.warning(
                "worker %d reported a training loss of %g: it is left out of training_loss (%d so far in this run)",
                worker,
                loss,
                self.left_out,
            )

    @property
    def latest(self) -> float | None:
        """The mean since the latest evaluation, or before it if no loss has come since; None before the first."""
        return self._total / self._count if self._count else self._previous

    def take(self) -> float | None:
        """Return the mean since the last call, and start again; None if there were no losses."""
        if not self._count:
            return None
        self._previous, self._total, self._count = self.latest, 0.0, 0
        return self._previous
