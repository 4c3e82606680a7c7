"""How each worker has done lately, from the rows of a trace."""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers
from nowait.dashboard.cells import began
from nowait.recording.rows import IS_VALID, OUTCOME_CODES, OUTCOMES

KEPT_WEIGHT = 0.9
"""The weight of all earlier jobs in the mean, after one more job."""
HELD = next(OUTCOME_CODES[outcome] for outcome in OUTCOMES if outcome.value == "held")


@final
class Recent:
    """By worker number: valid gradients, seconds of the latest jobs, and the latest arrival."""

    def __init__(self) -> None:
        self.valid: Integers = np.zeros(0, np.int64)
        self.seconds: Floats = np.zeros(0)
        """Seconds from start to arrival, a mean in which recent jobs count most; NaN without an arrival."""
        self.delay: Integers = np.zeros(0, np.int64)
        """The delay of the latest arrival."""
        self._held_row: Integers = np.zeros(0, np.int64)
        """The number of the latest arrival if it is held and not used in a step yet; otherwise -1."""
        self._rows = 0

    @property
    def is_held(self) -> NDArray[np.bool_]:
        """Whether the latest gradient of each worker is held for a step that has not been made."""
        held: NDArray[np.bool_] = self._held_row >= 0
        return held

    def add(self, rows: NDArray[np.void]) -> None:
        """Add arrivals, in the order of their time."""
        if not len(rows):
            return
        self._grow(int(rows["worker"].max()) + 1)
        size, worker = len(self.valid), rows["worker"]
        self.valid += np.bincount(worker[IS_VALID[rows["outcome"]]], minlength=size)
        jobs = np.bincount(worker, minlength=size)
        total = np.bincount(worker, weights=rows["time"] - began(rows), minlength=size)
        mean = np.divide(total, jobs, out=np.zeros(size), where=jobs > 0)
        new = np.isnan(self.seconds) & (jobs > 0)
        weight = np.where(new, 0.0, KEPT_WEIGHT**jobs)
        self.seconds = weight * np.where(new, 0.0, self.seconds) + (1 - weight) * mean
        self.delay[worker] = rows["delay"]  # of several rows of a worker, the last one counts
        is_waiting = (rows["outcome"] == HELD) & (rows["step"] == 0)
        self._held_row[worker] = np.where(is_waiting, self._rows + np.arange(len(rows)), -1)
        self._rows += len(rows)

    def used_in_steps(self, rows: Integers) -> None:
        """Note the numbers of held gradients that were used in a step after their rows were written."""
        self._held_row[np.isin(self._held_row, rows)] = -1

    def _grow(self, size: int) -> None:
        more = size - len(self.valid)
        if more > 0:
            self.valid = np.concatenate([self.valid, np.zeros(more, np.int64)])
            self.seconds = np.concatenate([self.seconds, np.full(more, np.nan)])
            self.delay = np.concatenate([self.delay, np.zeros(more, np.int64)])
            self._held_row = np.concatenate([self._held_row, np.full(more, -1)])
