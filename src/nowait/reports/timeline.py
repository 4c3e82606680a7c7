"""The timeline of workers over the whole run, and the heatmap of their delays.

Lanes with few jobs, such as those of stragglers, keep every job; in the others the time of the run is divided into
columns, and a column has the share of its time for each outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nowait.core import Resumed, WorkerJoined, WorkerLost
from nowait.core.types import Floats, Integers
from nowait.html.numbers import compact, shown
from nowait.recording import Trace
from nowait.recording.rows import EVENT_KINDS, OUTCOMES
from nowait.recording.worker_stats import stragglers_of
from nowait.reports.limits import Limits
from nowait.reports.work import choose_workers

Rows = NDArray[np.void]
KINDS = (*(outcome.value for outcome in OUTCOMES), "open")
"""What a bar can be: an outcome, or open: the time since a worker's last arrival until the end of the run."""
LEAST_OPEN = 0.02
"""Open bars shorter than this share of the run are left out: such workers have just delivered."""
EVENTS = {EVENT_KINDS.index(WorkerJoined): "join", EVENT_KINDS.index(WorkerLost): "death"}
EVENTS |= {EVENT_KINDS.index(Resumed): "resume"}
PINNED = 3
"""The most lanes that are marked as stragglers."""
DETAIL_SHARE = 0.5
"""The share of the single jobs that are the first jobs of the run."""


def timeline(trace: Trace, seconds: Floats, limits: Limits) -> dict[str, Any]:
    """Return lanes, stragglers and then slowest first, with single jobs and, where there are too many, columns."""
    workers = choose_workers(seconds, limits.lanes)
    stragglers = _stragglers(trace, workers)
    workers = np.concatenate([stragglers, workers[~np.isin(workers, stragglers)]])
    lane = np.full(len(seconds), -1)
    lane[workers] = np.arange(len(workers))
    rows = trace.arrivals[lane[trace.worker] >= 0]
    lane_of = lane[rows["worker"]]
    start, end = _span(trace, rows)
    exact, kept, detail = _kept_jobs(rows, lane_of, len(workers), limits)
    made = {
        "lanes": _lanes(workers, seconds, len(stragglers)),
        "start": start,
        "end": end,
        "exact": exact.tolist(),
        "detail": detail,
        "jobs": _jobs(*_with_open_jobs(rows[kept], lane_of[kept], _last_arrivals(trace, rows, workers), end)),
        "num_workers": len(seconds),
        "bins": None if exact.all() else _bins(rows, lane_of, len(workers), (start, end), limits.columns),
    }
    return made | {"delays": _delays(rows, lane_of, len(workers), (start, end), limits.columns)}


def _stragglers(trace: Trace, workers: Integers) -> Integers:
    """Return the workers among these that are marked as stragglers, the slowest first."""
    most = PINNED if len(workers) > PINNED else 1
    found = np.array([worker.worker for worker in stragglers_of(trace.by_worker(), most)], np.int64)
    return found[np.isin(found, workers)]


def _lanes(workers: Integers, seconds: Floats, pinned: int) -> list[dict[str, Any]]:
    lanes = [{"name": int(worker), "pinned": False, "note": ""} for worker in workers]
    for lane, taken in zip(lanes[:pinned], seconds[workers].tolist(), strict=False):
        lane |= {"pinned": True, "note": f"{shown(taken, 2)} s" if np.isfinite(taken) else "nothing"}
    return lanes


def _span(trace: Trace, rows: Rows) -> tuple[float, float]:
    start = float(rows["started"].min(initial=0.0))
    end = float(max(trace.seconds, rows["time"].max(initial=start)))
    return (start, end) if start < end < np.inf else (0.0, 1.0)


def _kept_jobs(
    rows: Rows, lane_of: Integers, num_lanes: int, limits: Limits
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], list[float] | None]:
    """Return which lanes keep all jobs, which jobs are kept, and in which range of time all jobs are kept."""
    if len(rows) <= limits.jobs:
        return np.ones(num_lanes, bool), np.ones(len(rows), bool), None
    first = int(limits.jobs * DETAIL_SHARE)
    counts = np.bincount(lane_of, minlength=num_lanes)
    exact = np.zeros(num_lanes, bool)
    room = limits.jobs - first
    for lane in np.argsort(counts, kind="stable"):
        if counts[lane] > room:
            break
        exact[lane] = True
        room -= int(counts[lane])
    until = float(rows["time"][first])
    kept = exact[lane_of] | (rows["started"] <= until)  # every worker has one job at a time
    return exact, kept, [float(rows["started"].min()), until]


def _last_arrivals(trace: Trace, rows: Rows, workers: Integers) -> Floats:
    """Return when each lane's last gradient arrived, or when its worker joined; NaN if the worker is lost."""
    size = int(max([*workers, *trace.events["worker"], -1])) + 1
    last, lost = np.full(size, float(trace.arrivals["started"].min(initial=0.0))), np.zeros(size, bool)
    np.maximum.at(last, rows["worker"], rows["time"])
    for _, kind, worker, time in trace.events.tolist():
        if EVENTS.get(kind) == "death":
            lost[worker] = True
        elif EVENTS.get(kind) == "join":  # also after a death: the worker was replaced
            lost[worker], last[worker] = False, max(last[worker], time)
    last[lost] = np.nan
    return last[workers]


def _with_open_jobs(rows: Rows, lane_of: Integers, since: Floats, end: float) -> tuple[Rows, Integers]:
    """Add a bar from its last arrival to the end of the run for each lane from which nothing came for long."""
    lanes = np.flatnonzero(end - since > LEAST_OPEN * end)
    added = np.zeros(len(lanes), rows.dtype)
    added["started"], added["time"], added["outcome"] = since[lanes], end, KINDS.index("open")
    return np.concatenate([rows, added]), np.concatenate([lane_of, lanes])


def _jobs(rows: Rows, lane_of: Integers) -> dict[str, list[Any]]:
    order = np.lexsort((rows["time"], lane_of))
    rows = rows[order]
    columns: dict[str, list[Any]] = {name: rows[name].tolist() for name in ("job", "version", "delay", "step")}
    columns |= {name: compact(rows[name].tolist()) for name in ("started", "time", "compute_seconds")}
    return columns | {"lane": lane_of[order].tolist(), "kind": rows["outcome"].tolist()}


def _bins(rows: Rows, lane_of: Integers, num_lanes: int, span: tuple[float, float], columns: int) -> dict[str, Any]:
    """Return for each outcome the percentage of each column's time that each lane spent on it."""
    width = (span[1] - span[0]) / columns
    parts = {}
    for code, outcome in enumerate(OUTCOMES):
        chosen = rows["outcome"] == code
        if chosen.any():
            busy = busy_seconds(rows[chosen], lane_of[chosen], num_lanes, span, columns)
            parts[outcome.value] = np.clip(np.rint(100 * busy / width), 0, 100).astype(np.int64).tolist()
    return {"columns": columns, "parts": parts}


def busy_seconds(rows: Rows, lane_of: Integers, num_lanes: int, span: tuple[float, float], columns: int) -> Floats:
    """Return the seconds of jobs in each column of time, [lane, column]."""
    width = (span[1] - span[0]) / columns
    places = [np.clip((rows[name] - span[0]) / width, 0, columns) for name in ("started", "time")]
    first, last = (np.minimum(place.astype(np.int64), columns - 1) for place in places)
    inside = first == last
    size = num_lanes * columns
    at_first, at_last = lane_of * columns + first, lane_of * columns + last
    busy = np.bincount(at_first, np.where(inside, places[1] - places[0], first + 1 - places[0]), size)
    busy += np.bincount(at_last[~inside], (places[1] - last)[~inside], size)
    wide = num_lanes * (columns + 1)
    opened = np.bincount((lane_of * (columns + 1) + first + 1)[~inside], minlength=wide)
    closed = np.bincount((lane_of * (columns + 1) + last)[~inside], minlength=wide)
    whole = np.cumsum((opened - closed).reshape(num_lanes, columns + 1), axis=1)[:, :columns]
    found: Floats = np.asarray((busy.reshape(num_lanes, columns) + whole) * width, dtype=np.float64)
    return found


def _delays(
    rows: Rows, lane_of: Integers, num_lanes: int, span: tuple[float, float], columns: int
) -> list[list[int | None]]:
    """Return the largest delay of each lane in each column, of jobs that arrive in it or are running at its middle."""
    width = (span[1] - span[0]) / columns
    table = np.zeros((num_lanes, columns), np.int64)
    column = np.clip(((rows["time"] - span[0]) / width).astype(np.int64), 0, columns - 1)
    np.maximum.at(table, (lane_of, column), rows["delay"])
    middles = span[0] + width * (np.arange(columns) + 0.5)
    for lane in range(num_lanes):
        mine = rows[lane_of == lane]
        place = np.searchsorted(mine["time"], middles)
        found = np.flatnonzero(place < len(mine))
        running = found[mine["started"][place[found]] <= middles[found]]
        table[lane, running] = np.maximum(table[lane, running], mine["delay"][place[running]])
    return [[value or None for value in row] for row in table.tolist()]


def events(traces: Sequence[Trace], most: int = 300) -> list[list[Any]]:
    """Return joins, deaths and resumes of the first trace as [time, kind, worker], at most ``most``.

    They are followed by at most as many decisions of the method, as [time, "decision", sentence].
    """
    found = traces[0].events[np.isin(traces[0].events["kind"], list(EVENTS))]
    found = found[_spread(len(found), most)]
    times = compact(found["time"].tolist())
    notes = [traces[0].notes[place] for place in _spread(len(traces[0].notes), most).tolist()]
    decisions = [
        [time, "decision", str(note)] for time, note in zip(compact(n.time for n in notes), notes, strict=True)
    ]
    return [
        [time, EVENTS[kind], worker]
        for time, kind, worker in zip(times, found["kind"].tolist(), found["worker"].tolist(), strict=True)
    ] + decisions


def _spread(number: int, most: int) -> Integers:
    """Return at most ``most`` places among ``number``, evenly spread, with the first and the last."""
    places: Integers = np.linspace(0, number - 1, min(most, number)).round().astype(np.int64)
    return places
