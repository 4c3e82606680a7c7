"""Statistics of the workers: seconds per gradient, delays, shares of the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nowait.core.types import Floats, Integers
from nowait.html.numbers import compact
from nowait.recording import Run
from nowait.recording.rows import OUTCOMES

MOST_BINS = 40
VALID = [code for code, outcome in enumerate(OUTCOMES) if outcome.value in ("applied", "held", "dropped")]


def mean_seconds(runs: Sequence[Run]) -> Floats:
    """Return the seconds per gradient of all runs, by worker number; infinite for a worker without arrivals."""
    stats = [worker for run in runs for worker in run.trace.by_worker()]
    workers = np.array([worker.worker for worker in stats], np.int64)
    jobs = np.bincount(workers, weights=[worker.gradients for worker in stats])
    total = np.bincount(workers, weights=[worker.phases.busy for worker in stats])
    mean: Floats = np.divide(total, jobs, out=np.full(len(jobs), np.inf), where=jobs > 0)
    return mean


def choose_workers(seconds: Floats, most: int) -> Integers:
    """Return at most ``most`` worker numbers, slowest first: the slowest half, and evenly spaced others."""
    order = np.argsort(-seconds, kind="stable")
    if len(order) <= most:
        return order
    slowest = most // 2
    others = np.linspace(slowest, len(order) - 1, most - slowest).round().astype(np.int64)
    return np.concatenate([order[:slowest], order[others]])


def delay_edges(longest: int) -> Integers:
    """Return the bin edges of delays: bin i contains ``edges[i]`` ≤ delay < ``edges[i + 1]``."""
    return np.unique(np.geomspace(1, max(1, longest) + 1, MOST_BINS + 1).round().astype(np.int64))


def delays(runs: Sequence[Run], edges: Integers, seconds: Floats, most: int) -> dict[str, Any]:
    """Return the histogram of delays over all workers, and for each of the chosen workers."""
    worker = np.concatenate([run.trace.worker for run in runs])
    delay = np.concatenate([run.trace.delay for run in runs])
    chosen = choose_workers(seconds, most)
    bins = np.clip(np.searchsorted(edges, delay, side="right") - 1, 0, len(edges) - 2)
    row = np.full(len(seconds), -1)
    row[chosen] = np.arange(len(chosen))
    listed = row[worker] >= 0
    cells = row[worker][listed] * (len(edges) - 1) + bins[listed]
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


def shares(runs: Sequence[Run], seconds: Floats, most: int) -> dict[str, Any]:
    """Return each chosen worker's share of the valid gradients, with the number of workers M."""
    arrivals = np.concatenate([run.trace.arrivals[["worker", "outcome"]] for run in runs])
    valid = arrivals["worker"][np.isin(arrivals["outcome"], VALID)]
    work = np.bincount(valid, minlength=len(seconds))
    chosen = choose_workers(seconds, most)
    return {
        "workers": chosen.tolist(),
        "share": compact((work[chosen] / max(1, work.sum())).tolist()),
        "gradients": work[chosen].tolist(),
        "seconds": compact(seconds[chosen].tolist()),
        "num_workers": num_workers(runs),
    }


def num_workers(runs: Sequence[Run]) -> int:
    """Return M, the number of workers at the start."""
    return max(run.trace.num_workers for run in runs)
