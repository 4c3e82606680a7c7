"""Where the time of each worker went, from the rows and events of a trace.

A worker's time is divided at four moments of each ticket: when the server sent it, when the worker started to compute,
when it was done, and when its report was handled. Rows have all of them but the first. An order is sent when the worker
has delivered the ticket before, unless the method lets it wait for a step: then when the last step was made that the
ticket's point contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import Resumed, WorkerJoined, WorkerLost
from nowait.core.types import Floats, Integers
from nowait.recording.rows import EVENT_KINDS

MOST_STEP_TIMES = 1 << 14
"""How many of the latest steps have their times in memory: those that tickets in flight may be computed at."""
ROWS_AT_ONCE = 4_096
"""Arrays of this length stay in the cache, and are not returned to the system after each operation."""
AWAY, UNKNOWN = -1.0, -1
"""The time since which a worker has been idle or busy, if it is not one of the run; the job it had before, if none."""
JOINED, LOST, RESUMED = (EVENT_KINDS.index(kind) for kind in (WorkerJoined, WorkerLost, Resumed))
TOTALS = ("starting", "waiting", "receiving", "computing", "sending", "unfinished")
"""The seconds that ``PhaseTotals`` adds up from rows. Loading of data is reported separately."""


@final
@dataclass(frozen=True)
class Phases:
    """The seconds of a worker by what it did; together they are the time for which it was a worker of the run."""

    starting: float = 0.0
    """Until a new process began its first ticket."""
    waiting: float = 0.0
    """For orders: the method had none for it."""
    receiving: float = 0.0
    """From the sending of an order until the worker began to compute."""
    loading: float = 0.0
    """Data, while nothing was computed. Only problems that report it, such as a ``TorchProblem``; else in computing."""
    computing: float = 0.0
    sending: float = 0.0
    """From the end of computing until the server handled the report."""
    unfinished: float = 0.0
    """On tickets that did not arrive: cancelled, lost with the worker, or in flight at the end."""

    @property
    def total(self) -> float:
        """The sum of all phases."""
        seconds: float = sum(getattr(self, phase) for phase in PHASES)
        return seconds

    @property
    def busy(self) -> float:
        """The seconds from orders to arrivals. Both are times of the server, so other clocks do not matter."""
        seconds: float = sum(getattr(self, phase) for phase in BUSY)
        return seconds


PHASES = tuple(field.name for field in fields(Phases))
BUSY = ("receiving", "loading", "computing", "sending")
"""The phases from an order to its arrival: they say how slow a worker is."""


@final
class PhaseTotals:
    """Adds up the phases of every worker. ``add`` the rows and events of a run in their order, block by block.

    ``complete``: no rows were left out, so that a gap between the jobs of a worker is a ticket that was cancelled.
    """

    def __init__(self, workers: Iterable[int] = (), *, complete: bool = True) -> None:
        self._complete = complete
        self.arrivals: Integers = np.zeros(0, np.int64)
        """Arrivals of each worker."""
        self._totals: Floats = np.zeros((len(TOTALS), 0))
        self._since: Floats = np.zeros(0)
        """When each worker delivered last or joined; ``AWAY`` if it is not a worker of the run."""
        self._job: Integers = np.zeros(0, np.int64)
        """The job of the latest arrival of each worker since it joined, or ``UNKNOWN``."""
        self._loading: dict[int, tuple[float, float]] = {}
        """Seconds of loading inside of computing, and before it."""
        self._rows = 0
        self._steps = _StepTimes()
        for worker in workers:
            self._join(int(worker), 0.0)

    def add(self, rows: NDArray[np.void], events: NDArray[np.void]) -> None:
        """Add rows, and the events before, between and after them."""
        changes = events[np.isin(events["kind"], (JOINED, LOST, RESUMED))]
        by_time = np.searchsorted(rows["time"], changes["time"])
        places = changes["after"] - self._rows if self._complete else by_time
        self._rows += len(rows)
        first = 0
        for place, (_, kind, worker, time) in zip(places.tolist(), changes.tolist(), strict=True):
            self._add_rows(rows[first:place])
            first = max(first, place)
            self._change(kind, worker, time)
        self._add_rows(rows[first:])

    def loaded(self, worker: int, inside: float, before: float) -> None:
        """Add seconds of loading data inside of computing a gradient, and before it began."""
        known = self._loading.get(worker, (0.0, 0.0))
        self._loading[worker] = (known[0] + inside, known[1] + before)

    @property
    def loading(self) -> dict[int, tuple[float, float]]:
        """The seconds of loading of each worker, inside of computing and before it."""
        return dict(self._loading)

    def set_loading(self, loading: Mapping[int, tuple[float, float]]) -> None:
        """Replace the seconds of loading of all workers."""
        self._loading = dict(loading)

    def of_workers(self, end: float) -> dict[int, Phases]:
        """Return the phases up to a time, of every worker that the run has had."""
        totals = self._totals.copy()
        totals[-1] += self.in_flight(end)
        known = np.flatnonzero((self._since != AWAY) | (self.arrivals > 0) | (totals.sum(axis=0) > 0))
        return {worker: self._phases(totals[:, worker].tolist(), worker) for worker in known.tolist()}

    @property
    def busy(self) -> Floats:
        """The seconds of each worker, by number, from order to arrival: receiving, loading, computing and sending."""
        seconds: Floats = self._totals[[TOTALS.index(name) for name in ("receiving", "computing", "sending")]].sum(
            axis=0
        )
        return seconds

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether each worker, by number, is one of the run now."""
        present: NDArray[np.bool_] = self._since != AWAY
        return present

    def in_flight(self, end: float) -> list[float]:
        """Return the seconds of each worker from its latest arrival to a time; 0 if it is not one of the run."""
        seconds: list[float] = np.where(self._since == AWAY, 0.0, np.maximum(0.0, end - self._since)).tolist()
        return seconds

    def _phases(self, totals: list[float], worker: int) -> Phases:
        """Return the phases of a worker; loading is taken from the phases that it was a part of."""
        starting, waiting, receiving, computing, sending, unfinished = totals
        inside, before = self._loading.get(worker, (0.0, 0.0))
        inside, before = min(inside, computing), min(before, receiving)
        return Phases(starting, waiting, receiving - before, inside + before, computing - inside, sending, unfinished)

    def copy(self) -> PhaseTotals:
        """Return an independent copy."""
        made = PhaseTotals(complete=self._complete)
        made.arrivals, made._totals = self.arrivals.copy(), self._totals.copy()
        made._since, made._job, made._rows = self._since.copy(), self._job.copy(), self._rows
        made._loading, made._steps = dict(self._loading), self._steps.copy()
        return made

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint. Times of steps are not kept: a resumed run gives out new tickets."""
        return {
            "complete": self._complete,
            "rows": self._rows,
            "arrivals": self.arrivals.tolist(),
            "since": self._since.tolist(),
            "job": self._job.tolist(),
            "totals": self._totals.tolist(),
            "loading": [[worker, *seconds] for worker, seconds in self._loading.items()],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> PhaseTotals:
        """Return totals with the state that ``state`` returned."""
        made = cls(complete=bool(state["complete"]))
        made._rows = int(state["rows"])
        made.arrivals = np.array(state["arrivals"], dtype=np.int64)
        made._since = np.array(state["since"], dtype=np.float64)
        made._job = np.array(state["job"], dtype=np.int64)
        made._totals = np.array(state["totals"], dtype=np.float64).reshape(len(TOTALS), -1)
        made._loading = {int(worker): (inside, before) for worker, inside, before in state["loading"]}
        return made

    # Rows

    def _add_rows(self, rows: NDArray[np.void]) -> None:
        for first in range(0, len(rows), ROWS_AT_ONCE):
            self._add_few(rows[first : first + ROWS_AT_ONCE])

    def _add_few(self, rows: NDArray[np.void]) -> None:
        self._steps.add(rows["step"], rows["time"])
        highest = int(rows["worker"].max())
        self._grow(highest + 1)
        small = np.uint16 if highest < 1 << 16 else np.int64  # sorted much faster
        order = np.argsort(rows["worker"].astype(small), kind="stable")
        worker, time, job = rows["worker"][order], rows["time"][order], rows["job"][order]
        is_first = np.concatenate([[True], worker[1:] != worker[:-1]])
        is_last = np.concatenate([is_first[1:], [True]])
        since = _before(time, is_first, self._since[worker[is_first]])
        job_before = _before(job, is_first, self._job[worker[is_first]])
        self._since[worker[is_last]], self._job[worker[is_last]] = time[is_last], job[is_last]
        since = np.where(since == AWAY, time, since)  # a report of a worker that has left

        sent = np.clip(self._steps.of(rows["version"][order]), since, time)
        began = np.fmin(np.fmax(rows["started"][order], sent), time)  # these ignore NaN, which a host might report
        done = np.fmin(began + np.fmax(0.0, rows["compute_seconds"][order]), time)
        is_new = job_before == UNKNOWN
        has_gap = ~is_new & (job - job_before > 1)
        is_unknown = has_gap & (not self._complete)
        seconds = {
            "starting": np.where(is_new, began - sent, 0.0),
            "waiting": np.where(has_gap, 0.0, sent - since),
            "receiving": np.where(is_new | is_unknown, 0.0, began - sent),
            "computing": done - began,
            "sending": time - done,
            "unfinished": np.where(has_gap & ~is_unknown, sent - since, 0.0),
        }
        starts = np.flatnonzero(is_first)
        for place, name in enumerate(TOTALS):
            self._totals[place, worker[starts]] += np.add.reduceat(seconds[name], starts)
        self.arrivals[worker[starts]] += np.diff(np.append(starts, len(rows)))

    # Other events

    def _change(self, kind: int, worker: int, time: float) -> None:
        if kind == RESUMED:
            for present in np.flatnonzero(self._since != AWAY).tolist():
                self._leave(present, time)
                self._join(present, time)
        elif kind == JOINED:
            self._join(worker, time)
        else:
            self._leave(worker, time)

    def _join(self, worker: int, time: float) -> None:
        self._grow(worker + 1)
        self._since[worker], self._job[worker] = time, UNKNOWN

    def _leave(self, worker: int, time: float) -> None:
        self._grow(worker + 1)
        if self._since[worker] != AWAY:
            self._totals[-1, worker] += max(0.0, time - self._since[worker])
        self._since[worker], self._job[worker] = AWAY, UNKNOWN

    def _grow(self, size: int) -> None:
        more = size - len(self.arrivals)
        if more > 0:
            self.arrivals = np.concatenate([self.arrivals, np.zeros(more, np.int64)])
            self._totals = np.concatenate([self._totals, np.zeros((len(TOTALS), more))], axis=1)
            self._since = np.concatenate([self._since, np.full(more, AWAY)])
            self._job = np.concatenate([self._job, np.full(more, UNKNOWN)])


def _before(values: NDArray[Any], is_first: NDArray[np.bool_], of_first: NDArray[Any]) -> NDArray[Any]:
    """Return the value before each one of the same worker; ``of_first`` are those before the first ones."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[is_first] = of_first
    return before


@final
class _StepTimes:
    """When the latest steps were made."""

    def __init__(self) -> None:
        self._first = 0
        """The step of the first entry."""
        self._times: Floats = np.full(2 * MOST_STEP_TIMES, -np.inf)

    def add(self, steps: Integers, times: Floats) -> None:
        """Add the first steps of gradients, 0 if they have none; a step is made when its last gradient arrives."""
        used = steps > 0
        steps, times = steps[used], times[used]
        if not len(steps):
            return
        self._make_room(int(steps.max()) + 1)
        recent = steps >= self._first
        self._times[steps[recent] - self._first] = times[recent]  # of several gradients of a step, the last one counts

    def _make_room(self, end: int) -> None:
        """Forget old steps if there is no room for those before ``end``."""
        if end - self._first > len(self._times):
            first = end - MOST_STEP_TIMES
            kept = self._times[min(first - self._first, len(self._times)) :].copy()
            self._times[:] = -np.inf
            self._times[: len(kept)] = kept
            self._first = first

    def of(self, versions: Integers) -> Floats:
        """Return when the steps were made after which params had these versions; minus infinity if not known."""
        places = versions - self._first
        inside = (places >= 0) & (places < len(self._times))
        return np.where(inside, self._times[np.where(inside, places, 0)], -np.inf)

    def copy(self) -> _StepTimes:
        """Return an independent copy."""
        made = _StepTimes()
        made._first, made._times = self._first, self._times.copy()
        return made
