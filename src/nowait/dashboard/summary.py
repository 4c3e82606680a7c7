"""What the page shows of one run, added up from rows, events and evaluations. No clock, no input or output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Integers
from nowait.dashboard.curve import Curve, Point
from nowait.dashboard.grid import Grid
from nowait.dashboard.marks import Decisions, Marks
from nowait.dashboard.recent import NO_PACE, Recent
from nowait.dashboard.workers import MOST_LANES, Straggler, WorkerRow, lanes_of, worker_rows
from nowait.recording.phases import PhaseTotals
from nowait.recording.rows import ARRIVAL_DTYPE, EVENT_DTYPE
from nowait.recording.worker_stats import Loading, Placement, stats_of_workers

NO_ROWS, NO_EVENTS = np.empty(0, ARRIVAL_DTYPE), np.empty(0, EVENT_DTYPE)


@final
class TraceSummary:
    """Adds up a trace in bounded memory: its size depends on the number of workers, not on that of arrivals."""

    def __init__(self, initial_workers: Sequence[int], kept: str = "full") -> None:
        self.kept = kept
        self.grid, self.marks, self.recent = Grid(), Marks(), Recent()
        self.decisions = Decisions()
        self._pace = NO_PACE
        self.phases = PhaseTotals(initial_workers, complete=kept == "full")
        self.arrivals = 0
        self.steps = 0
        self.time = 0.0
        """The latest time in the trace."""
        self.arrived = 0.0
        """The time of the latest arrival."""
        self._stepped = 0.0
        """The time of the latest step."""
        self.ended = False
        """True once the trace has its last frame."""
        self._waiting: NDArray[np.void] = NO_ROWS
        self._placements: dict[int, Placement] = {}

    def add_rows(self, rows: NDArray[np.void], covered: int) -> None:
        """Add rows that represent ``covered`` arrivals."""
        self._settle(NO_EVENTS)
        self._waiting = rows
        self.arrivals += covered
        self.grid.add(rows)
        self.recent.add(rows)
        self.arrived = max(self.arrived, float(rows["time"].max(initial=0.0)))
        self.time = max(self.time, self.arrived)
        self._made_steps(int(rows["step"].max(initial=0)))

    def add_events(self, events: NDArray[np.void]) -> None:
        """Add the events before, between and after the rows that were added last."""
        self._settle(events)
        self.marks.add(events)
        self.time = max(self.time, float(events["time"].max(initial=0.0)))

    def add_steps(self, steps: NDArray[np.void]) -> None:
        """Add the first steps of held gradients, whose rows were added before."""
        self._made_steps(int(steps["step"].max(initial=0)))
        self.grid.made_steps(np.array([self.time]), np.array([self.steps]))
        self.recent.used_in_steps(steps["row"])

    def add_workers(self, placements: Sequence[Placement], loading: Loading) -> None:
        """Add where processes were started, and set all seconds of loading so far."""
        self._placements |= {placement.worker: placement for placement in placements}
        self.phases.set_loading(loading)

    def end(self, seconds: float) -> None:
        """Note that the run ended."""
        self.ended = True
        self.time = max(self.time, seconds)

    def _made_steps(self, steps: int) -> None:
        if steps > self.steps:
            self.steps, self._stepped = steps, self.arrived

    def _settle(self, events: NDArray[np.void]) -> None:
        """Count the rows that were added last, with the events among them: a trace has these after the rows."""
        before = self.arrivals - len(self._waiting)
        is_late = events["after"] < before if self.kept == "full" else np.zeros(len(events), bool)
        self.phases.add(NO_ROWS, events[is_late])
        self.phases.add(self._waiting, events[~is_late])
        if len(self._waiting):
            time = float(self._waiting["time"].max())
            self._pace = self._pace.at(time, self.phases.busy, self.phases.arrivals.copy())
        self._waiting = NO_ROWS

    def workers(self, end: float) -> list[WorkerRow]:
        """Return all workers at a time, the slowest first."""
        phases = self.phases.copy()
        phases.add(self._waiting, NO_EVENTS)
        valid: Integers = self.recent.valid
        stats = stats_of_workers(phases, valid, self._placements.values(), end)
        pace = self._pace.at(self.arrived, phases.busy, phases.arrivals).seconds
        return worker_rows(stats, self.recent, pace, phases.present, max(0.0, end - self._stepped))


@final
class RunSummary:
    """One run: its evaluations and its trace."""

    def __init__(self) -> None:
        self.curve = Curve()
        self.trace: TraceSummary | None = None
        self._lanes: list[int] = []
        self._lanes_for = (0, 0)
        self.lane_changes = 0

    def add_point(self, point: Point) -> None:
        """Add an evaluation."""
        self.curve.add(point)
        if self.trace is not None:
            self.trace.grid.made_steps(np.array([point.time]), np.array([point.step]))

    @property
    def steps(self) -> int:
        """The steps made, as far as they are recorded."""
        latest = self.curve.latest
        return max(0 if latest is None else latest.step, 0 if self.trace is None else self.trace.steps)

    @property
    def time(self) -> float:
        """The latest time that is recorded."""
        latest = self.curve.latest
        return max(0.0 if latest is None else latest.time, 0.0 if self.trace is None else self.trace.time)

    @property
    def generation(self) -> tuple[int, int, int]:
        """Changes whenever columns, points or lanes that were sent before are no longer valid."""
        doublings = 0 if self.trace is None else self.trace.grid.doublings
        return self.curve.thinnings, doublings, self.lane_changes

    def lanes(self, rows: Sequence[WorkerRow], slow: Straggler | None) -> list[int]:
        """Return the workers to draw.

        They are chosen again only when workers join, columns widen, or the straggler is not among them.
        """
        doublings = self.generation[1] if len(rows) > MOST_LANES else 0
        is_missing = slow is not None and slow.worker not in self._lanes
        if is_missing or self._lanes_for != (len(rows), doublings):
            self._lanes_for = (len(rows), doublings)
            chosen = lanes_of(rows)
            self.lane_changes += chosen != self._lanes
            self._lanes = chosen
        return self._lanes
