"""How each worker has done lately, from the rows of a trace."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers
from nowait.recording.rows import IS_VALID, OUTCOME_CODES, OUTCOMES

WINDOW_JOBS, WINDOW_SECONDS = 10, 10.0
"""Seconds per gradient are a mean over about as many jobs, or as many seconds, whichever is longer."""
HELD = next(OUTCOME_CODES[outcome] for outcome in OUTCOMES if outcome.value == "held")


@final
class Recent:
    """By worker number: valid gradients, and the latest arrival."""

    def __init__(self) -> None:
        self.valid: Integers = np.zeros(0, np.int64)
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
            self.delay = np.concatenate([self.delay, np.zeros(more, np.int64)])
            self._held_row = np.concatenate([self._held_row, np.full(more, -1)])


class Pace(NamedTuple):
    """By worker number: the seconds of recent jobs, from order to arrival, and how many these are."""

    time: float
    total_busy: Floats
    """The seconds of all jobs up to this time."""
    total_jobs: Integers
    busy: Floats
    """The seconds of all jobs, where old jobs count less."""
    jobs: Floats
    """The number of jobs, where old jobs count less."""

    @property
    def seconds(self) -> Floats:
        """Seconds per gradient of recent jobs; NaN without one."""
        mean: Floats = np.full(len(self.jobs), np.nan)
        return np.divide(self.busy, self.jobs, out=mean, where=self.jobs > 0)

    def at(self, time: float, total_busy: Floats, total_jobs: Integers) -> Pace:
        """Return the pace at a later time, from the totals up to it."""
        more = len(total_jobs) - len(self.jobs)
        old_busy, old_jobs, busy, jobs = (np.pad(array, (0, more)) for array in self[1:])
        new_jobs = total_jobs - old_jobs
        by_jobs = (1 - 1 / WINDOW_JOBS) ** new_jobs * np.minimum(1.0, WINDOW_JOBS / np.maximum(jobs, 1.0))
        weight = np.maximum(by_jobs, np.exp(-max(0.0, time - self.time) / WINDOW_SECONDS))
        busy, jobs = weight * busy + (total_busy - old_busy), weight * jobs + new_jobs
        return Pace(time, total_busy, total_jobs, busy, jobs)


NO_PACE = Pace(0.0, np.zeros(0), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
