"""Error curves of one run, or the median and range of several runs, reduced to at most ``MOST_POINTS`` points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from nowait.core.types import Floats, Integers
from nowait.html.numbers import compact
from nowait.recording import Run

AXES = ("time", "gradients", "step")
MOST_POINTS = 1_000


def curves(runs: Sequence[Run], minimum: float, most: int = MOST_POINTS) -> dict[str, dict[str, list[float | None]]]:
    """Return for every axis the values ``x`` and the errors ``middle``, and ``low`` and ``high`` of several runs.

    Several runs are evaluated on the union of their x values. Between its evaluations a run is interpolated; after its
    end its last error is repeated. After the end of a run that diverged its error counts as infinite.
    """
    return {axis: _curve(runs, axis, minimum, most) for axis in AXES}


def thin(low: Floats, high: Floats, most: int = MOST_POINTS) -> Integers:
    """Return the indices to keep of a long curve: first, last, and the lowest and highest of every interval."""
    count = len(low)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(1, count - 1, (most - 2) // 2 + 1).astype(np.int64)
    lowest = [start + int(np.argmin(low[start:end])) for start, end in pairwise(edges)]
    highest = [start + int(np.argmax(high[start:end])) for start, end in pairwise(edges)]
    return np.unique([0, *lowest, *highest, count - 1])


def errors(run: Run, minimum: float) -> Floats:
    """Return losses minus the minimum; infinite where a loss is NaN."""
    error = np.asarray(run.history.loss, dtype=np.float64) - minimum
    return np.where(np.isnan(error), np.inf, error)


def _curve(runs: Sequence[Run], axis: str, minimum: float, most: int) -> dict[str, list[float | None]]:
    evaluated = [run for run in runs if len(run.history)]
    if not evaluated:
        return {"x": [], "middle": []}
    if len(evaluated) == 1:
        values = errors(evaluated[0], minimum)
        return _columns({"x": _x_values(evaluated[0], axis), "middle": values}, values, values, most)
    grid = np.unique(np.concatenate([_x_values(run, axis) for run in evaluated]))
    table = np.stack([_on_grid(run, axis, grid, minimum) for run in evaluated])
    low, high = table.min(axis=0), table.max(axis=0)
    with np.errstate(over="ignore"):
        middle = np.median(table, axis=0)
    return _columns({"x": grid, "middle": middle, "low": low, "high": high}, low, high, most)


def _columns(columns: dict[str, Any], low: Floats, high: Floats, most: int) -> dict[str, list[float | None]]:
    kept = thin(low, high, most)
    return {name: compact(column[kept].tolist()) for name, column in columns.items()}


def _x_values(run: Run, axis: str) -> Floats:
    return np.asarray(getattr(run.history, axis), dtype=np.float64)


def _on_grid(run: Run, axis: str, grid: Floats, minimum: float) -> Floats:
    x, values = _x_values(run, axis), errors(run, minimum)
    on_grid = _interpolated(grid, x, values)
    on_grid[np.isnan(on_grid)] = np.inf
    if run.stats.diverged:
        on_grid[grid > x[-1]] = np.inf
    return on_grid


def _interpolated(grid: Floats, x: Floats, values: Floats) -> Floats:
    """Interpolate on a logarithmic scale, on which errors are plotted; linearly if a value is not above 0."""
    if (values > 0).all():
        return np.exp(np.interp(grid, x, np.log(values)))
    return np.interp(grid, x, values)
