"""What the page gets, as JSON: of every run a line, and of the runs that are shown only what is new."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats
from nowait.dashboard.cells import IS_USED, Cells, began
from nowait.dashboard.curve import Point
from nowait.dashboard.facts import facts_of, goal_of, minimum_of
from nowait.dashboard.follow_run import FollowedRun
from nowait.dashboard.grid import Grid
from nowait.dashboard.runs import Listed
from nowait.dashboard.timeline import (
    MOST_JOBS,
    Stretch,
    jobs_between,
    lane_numbers,
    stretch_of_grid,
    stretch_of_jobs,
)
from nowait.dashboard.workers import Straggler, WorkerRow
from nowait.html.numbers import compact
from nowait.recording.phases import PHASES
from nowait.recording.unfinished import FolderState

MOST_WORKERS = 60
"""Workers in the table: of more, the slowest."""
MOST_METRICS = 40
LEAST_BUSY = 1e-4
"""A cell is shown if its worker was busy for this share of the busiest cell."""


class Cursor(NamedTuple):
    """What a page has of a run already."""

    epoch: str = ""
    points: int = 0
    version: int = -1


def line_of(name: str, listed: Listed, wall: float) -> dict[str, Any]:
    """Return what is known of a run without reading its trace."""
    age = max(0.0, wall - listed.written) if listed.written else None
    return {
        "id": name,
        "name": listed.name,
        "folder": str(listed.folder),
        "state": listed.state.value,
        "age": None if age is None else round(age, 1),
    }


def details_of(run: FollowedRun, cursor: Cursor) -> dict[str, Any]:
    """Return everything of a run that is new since the cursor; all of it if the epoch is another one."""
    rows, slow = run.workers()
    lanes = run.summary.lanes(rows, slow)  # may change the epoch
    if cursor.epoch != run.epoch:
        cursor = Cursor(run.epoch)
    return {
        "epoch": run.epoch,
        **_overview(run, rows, slow),
        "points": points_of(run.summary.curve.points, cursor.points),
        "latest": points_of([run.summary.curve.latest] if run.summary.curve.latest else [], 0),
        "grid": None if run.summary.trace is None else grid_of(run.summary.trace.grid, lanes, cursor.version),
        "workers": workers_of(rows),
        "lanes": lanes,
        "marks": [] if run.summary.trace is None else [list(mark) for mark in run.summary.trace.marks.all],
        "decisions": [] if run.summary.trace is None else run.summary.trace.decisions.all,
        "checkpoints": run.checkpoints,
    }


def _overview(run: FollowedRun, rows: Sequence[WorkerRow], slow: Straggler | None) -> dict[str, Any]:
    summary = run.summary
    latest = summary.curve.latest
    return {
        "state": run.state.value,
        "words": state_words(run.state, summary.steps),
        "facts": facts_of(run.config),
        "minimum": minimum_of(run.config),
        "goal": goal_of(run.config),
        "steps": summary.steps,
        "arrivals": 0 if summary.trace is None else summary.trace.arrivals,
        "time": _number(summary.time),
        "present": _number(run.present),
        "loss": None if latest is None else _number(latest.loss),
        "kept": "full" if summary.trace is None else summary.trace.kept,
        "live_workers": sum(row.state != "left" for row in rows),
        "straggler": None if slow is None else _straggler(slow),
        "diverged": bool(run.stats.get("diverged", False)),
        "problems": run.problems,
        "read": round(run.share_read, 3) if run.has_more else 1,
    }


def _straggler(slow: Straggler) -> dict[str, Any]:
    numbers = {"times": slow.times, "pace": slow.pace, "others": slow.others}
    return {"worker": slow.worker} | {name: _number(value) for name, value in numbers.items()}


def state_words(state: FolderState, steps: int) -> str:
    """Return the state of a run in words."""
    if state is FolderState.RUNNING:
        return "running" if steps else "running, no step yet"
    if state in (FolderState.KILLED, FolderState.INTERRUPTED):
        return f"{state.value} at step {steps:,}"
    return state.value


def points_of(points: Sequence[Point], first: int) -> dict[str, Any]:
    """Return evaluations by column, from number ``first`` on."""
    new = points[first:]
    names = list(dict.fromkeys(name for point in new for name in point.metrics))[:MOST_METRICS]
    return {
        "first": min(first, len(points)),
        "step": [point.step for point in new],
        "gradients": [point.gradients for point in new],
        "time": compact(point.time for point in new),
        "loss": exact(point.loss for point in new),
        "metrics": {name: exact(point.metrics.get(name, math.nan) for point in new) for name in names},
    }


def exact(values: Iterable[float]) -> list[float | None]:
    """Return numbers with all digits, because F* is subtracted from them; None for those that are not finite."""
    return [value if math.isfinite(value) else None for value in values]


def grid_of(grid: Grid, lanes: Sequence[int], since: int) -> dict[str, Any]:
    """Return the columns of a grid that have changed since a version."""
    first = grid.first_changed(since)
    cells, whole = grid.cells, slice(first, grid.num_columns)
    arrivals = cells.arrivals[:, whole].sum(axis=0)
    delays = cells.delay_sum[:, whole].sum(axis=0) / np.maximum(1, arrivals)
    return {
        "version": grid.version,
        "first": first,
        "columns": grid.num_columns,
        "width": grid.width,
        "steps": grid.steps[whole].tolist(),
        "arrivals": arrivals.tolist(),
        "delay": compact(np.where(arrivals > 0, delays, np.nan).tolist()),
        "longest": cells.delay_max[:, whole].max(axis=0, initial=0).tolist(),
        **_tables(stretch_of_grid(grid, lanes, first * grid.width)),
    }


def _tables(stretch: Stretch) -> dict[str, Any]:
    """Return, for each lane, percents of the time of each column, and mean delays."""
    cells, width = stretch.cells, stretch.width
    return {
        "used": _percents(cells.busy - cells.unused, width),
        "unused": _percents(cells.unused, width),
        "delays": [compact(row) for row in _mean_delays(cells).tolist()],
    }


def _percents(seconds: Floats, width: float) -> list[list[int]]:
    percents: list[list[int]] = np.ceil(np.clip(100 * seconds / width - 1e-3, 0, 100)).astype(np.int64).tolist()
    return percents


def _mean_delays(cells: Cells) -> Floats:
    """Return the mean delay while a worker was busy: of the gradients that it was computing, by their duration."""
    mean: Floats = np.full(cells.busy.shape, np.nan)
    np.divide(cells.delay_sum, cells.arrivals, out=mean, where=cells.arrivals > 0)  # if jobs take no time
    np.divide(cells.stale, cells.busy, out=mean, where=cells.busy > LEAST_BUSY * cells.busy.max(initial=0.0))
    return mean


def workers_of(rows: Sequence[WorkerRow]) -> dict[str, Any]:
    """Return the table of workers, the slowest first."""
    return {
        "total": len(rows),
        "phases": PHASES,
        "rows": [_worker(row) for row in rows[:MOST_WORKERS]],
    }


def _worker(row: WorkerRow) -> dict[str, Any]:
    stats = row.stats
    return {
        "worker": stats.worker,
        "state": row.state,
        "pace": _number(row.pace),
        "recent": _number(row.recent),
        "mean": _number(stats.seconds_per_gradient) if stats.gradients else None,
        "since": _number(stats.in_flight),
        "job": _number(row.job_seconds),
        "share": round(stats.share, 5),
        "gradients": stats.gradients,
        "delay": row.delay,
        "node": stats.node,
        "device": stats.device,
        "phases": [round(stats.share_of(phase), 3) for phase in PHASES],
    }


def range_of(run: FollowedRun, start: float, end: float) -> dict[str, Any]:
    """Return the jobs between two times if they are few, and always cells."""
    lanes = run.summary.lanes(*run.workers())
    rows = run.trace.rows_between(start, end)
    base = {"from": start, "to": end, "lanes": lanes, "jobs": None}
    if rows is None:
        stretch = _coarse(run, lanes, start, end)
        return base if stretch is None else base | _range_tables(stretch)
    jobs = jobs_between(rows, lanes, start, end)
    shown = jobs_of(jobs, lanes) if len(jobs) <= MOST_JOBS else None
    return base | _range_tables(stretch_of_jobs(jobs, lanes, start, end)) | {"jobs": shown}


def _coarse(run: FollowedRun, lanes: Sequence[int], start: float, end: float) -> Stretch | None:
    trace = run.summary.trace
    return None if trace is None else stretch_of_grid(trace.grid, lanes, start, end)


def _range_tables(stretch: Stretch) -> dict[str, Any]:
    return {"start": stretch.start, "width": stretch.width, **_tables(stretch)}


def jobs_of(jobs: NDArray[np.void], lanes: Sequence[int]) -> dict[str, Any]:
    """Return jobs by column; ``lane`` is a place in ``lanes``."""
    return {
        "lane": lane_numbers(jobs["worker"], lanes).tolist(),
        "started": exact(began(jobs).tolist()),
        "time": exact(jobs["time"].tolist()),
        "computing": compact(jobs["compute_seconds"].tolist()),
        "used": IS_USED[jobs["outcome"]].tolist(),
        "delay": jobs["delay"].tolist(),
        "step": jobs["step"].tolist(),
    }


def _number(value: float) -> float | None:
    return compact([value])[0]
