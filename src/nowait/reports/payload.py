"""Converts runs to plain dictionaries with the data for the page's charts: thinned curves and binned counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nowait.core.types import Integers
from nowait.recording import Run, Sweep
from nowait.reports import work
from nowait.reports.curves import curves, errors
from nowait.reports.limits import Limits
from nowait.reports.states import state_words
from nowait.reports.sweeps import sweep_payload
from nowait.reports.timeline import KINDS, events, timeline

NamedRuns = Mapping[str, list[Run]]


def payload(runs: NamedRuns, sweeps: Mapping[str, Sweep], minimum: float) -> dict[str, Any]:
    """Return the data from which the script draws the charts."""
    longest = max((int(run.trace.delay.max(initial=1)) for entry in runs.values() for run in entry), default=1)
    edges, limits = work.delay_edges(longest), Limits.of(len(runs))
    return {
        "minimum": minimum,
        "edges": edges.tolist(),
        "outcomes": KINDS,
        "methods": [_method(name, entry, minimum, edges, limits) for name, entry in runs.items()],
        "sweeps": [sweep_payload(name, sweep, minimum) for name, sweep in sweeps.items()],
    }


def summary(runs: Sequence[Run], minimum: float) -> dict[str, Any]:
    """Return one row of the summary table: medians over runs, delays over all arrivals, the number that diverged."""
    stats = [run.stats for run in runs]
    loss = [_last_error(run, minimum) for run in runs]
    delay = np.concatenate([run.trace.delay for run in runs])
    with np.errstate(over="ignore"):
        error = float(np.median(loss))
    return {
        "runs": len(runs),
        "gradients": float(np.median([each.gradients for each in stats])),
        "steps": float(np.median([each.steps for each in stats])),
        "seconds": float(np.median([each.seconds for each in stats])),
        "loss": error + minimum,
        "error": error,
        "steps_per_second": float(np.median([each.steps_per_second for each in stats])),
        "delay_median": float(np.median(delay)) if len(delay) else None,
        "delay_mean": float(delay.mean()) if len(delay) else None,
        "delay_max": int(delay.max()) if len(delay) else None,
        "dropped": float(np.median([each.dropped for each in stats])),
        "diverged": sum(each.diverged for each in stats),
    }


def _method(name: str, runs: Sequence[Run], minimum: float, edges: Integers, limits: Limits) -> dict[str, Any]:
    seconds = work.mean_seconds(runs)
    return {
        "name": name,
        "runs": len(runs),
        "diverged": any(run.stats.diverged for run in runs),
        "note": state_words(runs),
        "num_workers": work.num_workers(runs),
        "curves": curves(runs, minimum, limits.points),
        "delays": work.delays(runs, edges, seconds, limits.workers),
        "shares": work.shares(runs, seconds, limits.workers),
        "timeline": timeline(runs[0].trace, work.mean_seconds(runs[:1]), limits),
        "events": events([run.trace for run in runs]),
    }


def _last_error(run: Run, minimum: float) -> float:
    return float(errors(run, minimum)[-1]) if len(run.history) else np.nan
