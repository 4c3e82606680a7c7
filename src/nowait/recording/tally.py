"""Totals over the arrivals of a run, updated during the run, so that no trace is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Integers
from nowait.numerics.compiled import kernels
from nowait.recording.phases import PhaseTotals
from nowait.recording.rows import EVENT_DTYPE, IS_VALID

FIRST_ARRIVALS = 1_024
"""A sampled trace keeps the first 1,024 arrivals of each worker."""
ONE_IN = 64
"""After those, it keeps one arrival in 64 of each worker."""

NO_EVENTS = np.empty(0, EVENT_DTYPE)
FEW_ROWS = 4_096
"""Up to this many rows are counted in Python: compiling the kernel would take longer."""


@final
class Tally:
    """Counts by worker number, and how often a worker was given params that it had already."""

    def __init__(self) -> None:
        self.arrivals = 0
        self.repeats = 0
        """How often two consecutive arrivals of a worker had the same version."""
        self.by_worker: Integers = np.zeros(0, np.int64)
        """Arrivals of each worker."""
        self.valid: Integers = np.zeros(0, np.int64)
        """Valid gradients of each worker."""
        self._latest: Integers = np.zeros(0, np.int64)
        self.phases: PhaseTotals | None = None
        """Where the time of each worker went; None if nobody asks."""

    @classmethod
    def of(cls, rows: NDArray[np.void]) -> Tally:
        """Return the totals of these rows."""
        tally = cls()
        tally.add(rows)
        return tally

    def add(self, rows: NDArray[np.void], events: NDArray[np.void] = NO_EVENTS) -> None:
        """Add these rows, and other events, which come after those counted before."""
        if self.phases is not None:
            self.phases.add(rows, events)
        if not len(rows):
            return
        worker = np.ascontiguousarray(rows["worker"])
        self._grow(int(worker.max()) + 1)
        size = len(self.valid)
        self.arrivals += len(rows)
        self.repeats += self._repeats(worker, np.ascontiguousarray(rows["version"]))
        self.by_worker += np.bincount(worker, minlength=size)
        self.valid += np.bincount(worker[IS_VALID[rows["outcome"]]], minlength=size)

    def _repeats(self, worker: Integers, version: Integers) -> int:
        """Count the arrivals whose version is that of the worker's previous arrival."""
        if len(worker) > FEW_ROWS:
            return int(kernels().count_repeats(worker, version, self._latest))
        repeats = 0
        for number, its_version in zip(worker.tolist(), version.tolist(), strict=True):
            repeats += int(self._latest[number]) == its_version
            self._latest[number] = its_version
        return repeats

    def sample(self, worker: Integers) -> NDArray[np.bool_]:
        """Returns a mask of the next arrivals, given by worker, that a sampled trace keeps."""
        order = np.argsort(worker, kind="stable")
        ordered = worker[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
        rank = np.empty(len(worker), np.int64)
        rank[order] = np.arange(len(worker)) - np.repeat(starts, np.diff(np.r_[starts, len(worker)]))
        before = np.zeros(max(int(worker.max(initial=-1)) + 1, len(self.by_worker)), np.int64)
        before[: len(self.by_worker)] = self.by_worker
        number = before[worker] + rank
        kept: NDArray[np.bool_] = (number < FIRST_ARRIVALS) | (number % ONE_IN == 0)
        return kept

    def copy(self) -> Tally:
        """Return an independent copy."""
        made = Tally()
        made.arrivals, made.repeats = self.arrivals, self.repeats
        made.by_worker, made.valid, made._latest = self.by_worker.copy(), self.valid.copy(), self._latest.copy()
        made.phases = None if self.phases is None else self.phases.copy()
        return made

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        state = {
            "arrivals": self.arrivals,
            "repeats": self.repeats,
            "by_worker": self.by_worker.tolist(),
            "valid": self.valid.tolist(),
            "latest": self._latest.tolist(),
        }
        return state if self.phases is None else state | {"phases": self.phases.state()}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Tally:
        """Return a tally with the state that ``state`` returned."""
        tally = cls()
        tally.arrivals, tally.repeats = int(state["arrivals"]), int(state["repeats"])
        tally.by_worker = np.array(state["by_worker"], dtype=np.int64)
        tally.valid = np.array(state["valid"], dtype=np.int64)
        tally._latest = np.array(state["latest"], dtype=np.int64)
        tally.phases = PhaseTotals.restored(state["phases"]) if "phases" in state else None
        return tally

    def _grow(self, size: int) -> None:
        more = size - len(self.valid)
        if more > 0:
            self.by_worker = np.concatenate([self.by_worker, np.zeros(more, np.int64)])
            self.valid = np.concatenate([self.valid, np.zeros(more, np.int64)])
            self._latest = np.concatenate([self._latest, np.full(more, -1, np.int64)])


def places_kept(rows: NDArray[np.void], kept: str, before: Tally) -> Integers:
    """Return the indices of the rows that a "full", "sampled" or "none" trace keeps, after those counted ``before``."""
    if kept == "full":
        return np.arange(len(rows))
    return np.flatnonzero(before.sample(rows["worker"])) if kept == "sampled" else np.empty(0, np.int64)
