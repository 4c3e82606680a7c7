"""Error curves: of one run, or the middle and the range of several, with no more points than a screen can show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nowait.core.types import Floats, Integers
from nowait.recording import Run
from nowait.reports.numbers import compact

AXES = ("time", "gradients", "step")
MOST_POINTS = 1_000


def curves(runs: Sequence[Run], minimum: float) -> dict[str, dict[str, list[float | None]]]:
    """For every axis the places ``x`` and the errors there: ``middle``, and ``low`` and ``high`` of several runs.

    Several runs meet at the places of all of them. Between its evaluations a run is interpolated, after its end it
    keeps its last error; one that diverged has none from there on, and counts as infinite.
    """
    return {axis: _curve(runs, axis, minimum) for axis in AXES}


def thin(low: Floats, high: Floats, most: int = MOST_POINTS) -> Integers:
    """The places to keep of a long curve: first, last, and of every stretch its lowest and its highest."""
    count = len(low)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(1, count - 1, (most - 2) // 2 + 1).astype(np.int64)
    lowest = [start + int(np.argmin(low[start:end])) for start, end in pairwise(edges)]
    highest = [start + int(np.argmax(high[start:end])) for start, end in pairwise(edges)]
    return np.unique([0, *lowest, *highest, count - 1])


def errors(run: Run, minimum: float) -> Floats:
    """Losses minus the minimum; infinite where a loss is not a number."""
    error = np.asarray(run.history.loss, dtype=np.float64) - minimum
    return np.where(np.isnan(error), np.inf, error)


def _curve(runs: Sequence[Run], axis: str, minimum: float) -> dict[str, list[float | None]]:
    evaluated = [run for run in runs if len(run.history)]
    if not evaluated:
        return {"x": [], "middle": []}
    if len(evaluated) == 1:
        values = errors(evaluated[0], minimum)
        return _columns({"x": _places(evaluated[0], axis), "middle": values}, values, values)
    grid = np.unique(np.concatenate([_places(run, axis) for run in evaluated]))
    table = np.stack([_on_grid(run, axis, grid, minimum) for run in evaluated])
    low, high = table.min(axis=0), table.max(axis=0)
    with np.errstate(over="ignore"):
        middle = np.median(table, axis=0)
    return _columns({"x": grid, "middle": middle, "low": low, "high": high}, low, high)


def _columns(columns: dict[str, Any], low: Floats, high: Floats) -> dict[str, list[float | None]]:
    kept = thin(low, high)
    return {name: compact(column[kept].tolist()) for name, column in columns.items()}


def _places(run: Run, axis: str) -> Floats:
    return np.asarray(getattr(run.history, axis), dtype=np.float64)


def _on_grid(run: Run, axis: str, grid: Floats, minimum: float) -> Floats:
    places, values = _places(run, axis), errors(run, minimum)
    on_grid = _interpolated(grid, places, values)
    on_grid[np.isnan(on_grid)] = np.inf
    if run.stats.diverged:
        on_grid[grid > places[-1]] = np.inf
    return on_grid


def _interpolated(grid: Floats, places: Floats, values: Floats) -> Floats:
    """Straight lines on a logarithmic scale, which is how errors are looked at; on a linear one if it must be."""
    if (values > 0).all():
        return np.exp(np.interp(grid, places, np.log(values)))
    return np.interp(grid, places, values)
