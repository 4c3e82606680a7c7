"""Converts runs to plain dictionaries with the data for the page's charts: thinned curves and binned counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nowait.recording import Run
from nowait.reports import work
from nowait.reports.curves import curves, errors

NamedRuns = Mapping[str, list[Run]]


def checked_runs(runs: Any) -> dict[str, list[Run]]:
    """Check the runs and return a list of runs for every name."""
    if not isinstance(runs, Mapping) or not runs:
        raise TypeError(f'runs must be named: pass a dictionary {{"name": run, ...}}, got {runs!r}')
    return {_checked_name(name): _checked_entry(name, entry) for name, entry in runs.items()}


def payload(runs: NamedRuns, minimum: float) -> dict[str, Any]:
    """Return the data from which the script draws the charts."""
    longest = max(int(run.trace.delay.max(initial=1)) for entry in runs.values() for run in entry)
    edges = work.delay_edges(longest)
    return {
        "minimum": minimum,
        "edges": edges.tolist(),
        "methods": [_method(name, entry, minimum, edges) for name, entry in runs.items()],
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


def _method(name: str, runs: Sequence[Run], minimum: float, edges: Any) -> dict[str, Any]:
    seconds = work.mean_seconds(runs)
    return {
        "name": name,
        "runs": len(runs),
        "diverged": any(run.stats.diverged for run in runs),
        "num_workers": work.num_workers(runs),
        "curves": curves(runs, minimum),
        "delays": work.delays(runs, edges, seconds),
        "shares": work.shares(runs, seconds),
        "timeline": work.timeline(runs[0].trace, seconds),
    }


def _last_error(run: Run, minimum: float) -> float:
    return float(errors(run, minimum)[-1]) if len(run.history) else np.nan


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a run must be a string, got {name!r}")
    return name


def _checked_entry(name: str, entry: Any) -> list[Run]:
    entries = [entry] if isinstance(entry, Run) else entry
    if not isinstance(entries, Sequence) or not entries or not all(isinstance(run, Run) for run in entries):
        raise TypeError(f"{name!r} must be a Run or a list of Runs, got {entry!r}")
    return list(entries)
