"""The mean of the losses that workers computed together with their gradients."""

from __future__ import annotations

import math
from typing import final


@final
class TrainingLosses:
    """Adds losses up between two evaluations. Losses that are not finite are left out."""

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0
        self._previous: float | None = None

    def add(self, loss: float) -> None:
        """Count the loss of a gradient."""
        if math.isfinite(loss):
            self._total += loss
            self._count += 1

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
