"""What the workers did: delays, shares of the work, and the first jobs on a timeline. All of it is counted here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers
from nowait.recording import Run, Trace
from nowait.recording.rows import OUTCOMES
from nowait.reports.numbers import compact

MOST_LANES = 40
MOST_WORKERS = 100
MOST_JOBS = 400
MOST_BINS = 40
VALID = [place for place, outcome in enumerate(OUTCOMES) if outcome.value in ("applied", "held", "dropped")]


def mean_seconds(runs: Sequence[Run]) -> Floats:
    """From start to arrival, on average, by worker number; infinite for a worker without an arrival."""
    worker = np.concatenate([run.trace.worker for run in runs])
    taken = np.concatenate([run.trace.time - run.trace.started for run in runs])
    known = max((int(run.trace.initial_workers.max(initial=-1)) + 1 for run in runs), default=0)
    jobs = np.bincount(worker, minlength=known)
    total = np.bincount(worker, weights=taken, minlength=known)
    mean: Floats = np.divide(total, jobs, out=np.full(len(jobs), np.inf), where=jobs > 0)
    return mean


def choose_workers(seconds: Floats, most: int) -> Integers:
    """Worker numbers, fastest first; of too many the fastest third, the slowest third and some between."""
    order = np.argsort(seconds, kind="stable")
    if len(order) <= most:
        return order
    third = most // 3
    between = np.linspace(third, len(order) - third - 1, most - 2 * third).round().astype(np.int64)
    return np.concatenate([order[:third], order[between], order[len(order) - third :]])


def delay_edges(longest: int) -> Integers:
    """Bins of delays: bin i is from ``edges[i]`` up to and without ``edges[i + 1]``."""
    return np.unique(np.geomspace(1, max(1, longest) + 1, MOST_BINS + 1).round().astype(np.int64))


def delays(runs: Sequence[Run], edges: Integers, seconds: Floats) -> dict[str, Any]:
    """How many arrivals had which delay: of all workers, and of each of the chosen ones."""
    worker = np.concatenate([run.trace.worker for run in runs])
    delay = np.concatenate([run.trace.delay for run in runs])
    chosen = choose_workers(seconds, MOST_WORKERS)
    bins = np.clip(np.searchsorted(edges, delay, side="right") - 1, 0, len(edges) - 2)
    place = np.full(len(seconds), -1)
    place[chosen] = np.arange(len(chosen))
    listed = place[worker] >= 0
    cells = place[worker][listed] * (len(edges) - 1) + bins[listed]
    by_worker = np.bincount(cells, minlength=len(chosen) * (len(edges) - 1)).reshape(len(chosen), -1)
    longest = np.zeros(len(seconds), dtype=np.int64)
    np.maximum.at(longest, worker, delay)
    return {
        "counts": np.bincount(bins, minlength=len(edges) - 1).tolist(),
        "longest": int(delay.max(initial=0)),
        "workers": chosen.tolist(),
        "by_worker": by_worker.tolist(),
        "longest_by_worker": longest[chosen].tolist(),
    }


def shares(runs: Sequence[Run], seconds: Floats) -> dict[str, Any]:
    """Each chosen worker's part of the valid gradients, and the fair part 1/M."""
    arrivals = np.concatenate([run.trace.arrivals[["worker", "outcome"]] for run in runs])
    valid = arrivals["worker"][np.isin(arrivals["outcome"], VALID)]
    work = np.bincount(valid, minlength=len(seconds))
    chosen = choose_workers(seconds, MOST_WORKERS)
    return {
        "workers": chosen.tolist(),
        "share": compact((work[chosen] / max(1, work.sum())).tolist()),
        "gradients": work[chosen].tolist(),
        "seconds": compact(seconds[chosen].tolist()),
        "num_workers": num_workers(runs),
    }


def num_workers(runs: Sequence[Run]) -> int:
    """M: the number of workers at the start."""
    return max(run.trace.num_workers for run in runs)


def timeline(trace: Trace, seconds: Floats) -> dict[str, Any]:
    """The first jobs of the chosen workers: those that have arrived when a page is full, and those running then."""
    lanes = choose_workers(seconds, MOST_LANES)
    lane = np.full(len(seconds), -1)
    lane[lanes] = np.arange(len(lanes))
    rows = _first_jobs(trace.arrivals[lane[trace.worker] >= 0])
    end = float(rows["time"][:MOST_JOBS].max(initial=-np.inf))
    start = float(rows["started"].min(initial=end))
    columns: dict[str, list[Any]] = {name: rows[name].tolist() for name in ("job", "version", "delay", "step")}
    columns |= {name: compact(rows[name].tolist()) for name in ("started", "time", "compute_seconds")}
    columns |= {"lane": lane[rows["worker"]].tolist(), "outcome": [OUTCOMES[code].value for code in rows["outcome"]]}
    return {"lanes": lanes.tolist(), **_span(start, end), "num_workers": len(seconds), "jobs": columns}


def _first_jobs(rows: NDArray[np.void]) -> NDArray[np.void]:
    """As many arrivals as a page can show, and of every worker the job it was at when the last of them came."""
    shown, later = rows[:MOST_JOBS], rows[MOST_JOBS:]
    running = later[later["started"] < shown["time"].max(initial=-np.inf)]
    _, first = np.unique(running["worker"], return_index=True)
    return np.concatenate([shown, running[np.sort(first)]])


def _span(start: float, end: float) -> dict[str, float]:
    return {"start": start, "end": end} if start < end < np.inf else {"start": 0.0, "end": 1.0}
