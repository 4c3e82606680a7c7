"""Figures of runs: error curves and delay histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from nowait.core.types import Floats
from nowait.plots.sheet import Drawn, Into, new_sheet
from nowait.plots.style import LABELS, styles
from nowait.recording import Run

Runs = Mapping[str, Run | Sequence[Run]]
"""Runs by name; several runs under one name are seeds, drawn as their median and range."""
POINTS_OF_BANDS = 200


def errors(
    runs: Runs, axis: str = "time", minimum: float = 0.0, *, width: float | None = None, ax: Into = None
) -> Drawn:
    """Plot loss minus ``minimum`` against "time", "gradients" or "step", on a logarithmic scale."""
    checked = checked_runs(runs)
    with new_sheet(1, width, ax) as sheet:
        _draw_errors(sheet.axes[0], checked, axis, minimum)
        sheet.legend()
    return sheet.drawn


def delays(runs: Runs, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot a histogram of the gradients' delays on logarithmic scales, with M and τ_max marked."""
    checked = checked_runs(runs)
    with new_sheet(1, width, ax) as sheet:
        _draw_delays(sheet.axes[0], checked, named=True)
        sheet.legend()
    return sheet.drawn


def race(runs: Runs, minimum: float = 0.0, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot error against time, error against gradients, and delays: three panels."""
    checked = checked_runs(runs)
    with new_sheet(3, width, ax) as sheet:
        _draw_errors(sheet.axes[0], checked, "time", minimum)
        _draw_errors(sheet.axes[1], checked, "gradients", minimum)
        _draw_delays(sheet.axes[2], checked, named=False)
        sheet.legend()
    return sheet.drawn


def checked_runs(runs: Runs) -> dict[str, list[Run]]:
    """Return the runs of every name; raise TypeError if they are not named runs."""
    if not isinstance(runs, Mapping) or not runs:
        raise TypeError(f'runs must be named: pass a dictionary {{"name": run, ...}}, got {runs!r}')
    groups = {name: list(group) if isinstance(group, Sequence) else [group] for name, group in runs.items()}
    for name, group in groups.items():
        if not group or not all(isinstance(run, Run) for run in group):
            raise TypeError(f"{name!r} must be a run, or a list of runs with several seeds, got {runs[name]!r}")
    return groups


def _draw_errors(axes: Axes, runs: dict[str, list[Run]], axis: str, minimum: float) -> None:
    if axis not in LABELS:
        raise ValueError(f"axis must be one of {', '.join(LABELS)}, got {axis!r}")
    for (name, group), style in zip(runs.items(), styles(len(runs)), strict=True):
        label = name if len(group) == 1 else f"{name}, median of {len(group)}"
        curves = [_curve(run, axis, minimum) for run in group]
        if len(curves) == 1:
            axes.plot(*curves[0], label=label, **style)
        elif all(len(curve[0]) for curve in curves):
            grid, low, middle, high = band(curves)
            axes.plot(grid, middle, label=label, **style)
            axes.fill_between(grid, low, high, color=style["color"], alpha=0.15, linewidth=0)
        else:
            axes.plot([], [], label=label, **style)
    axes.set(xlabel=LABELS[axis], ylabel="loss" if minimum == 0 else "loss − minimum", yscale="log")
    axes.grid(alpha=0.3)


def _curve(run: Run, axis: str, minimum: float) -> tuple[Floats, Floats]:
    """Return the x values and errors of a run that are finite and above 0, as a logarithmic axis needs."""
    error = run.history.loss - minimum
    shown = np.isfinite(error) & (error > 0)
    return getattr(run.history, axis)[shown], error[shown]


def band(curves: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return x values and the lowest, median and highest error over the runs, where all runs have errors."""
    begin, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(begin, end, POINTS_OF_BANDS)
    logs = np.array([np.interp(grid, x, np.log(y)) for x, y in curves])
    return grid, np.exp(logs.min(axis=0)), np.exp(np.median(logs, axis=0)), np.exp(logs.max(axis=0))


def _draw_delays(axes: Axes, runs: dict[str, list[Run]], *, named: bool) -> None:
    """Draw a histogram for every name, over all its seeds; if it is not ``named``, another panel has the names."""
    pooled = {name: np.concatenate([run.trace.delay for run in group]) for name, group in runs.items()}
    longest = max((int(delays.max(initial=1)) for delays in pooled.values()), default=1)
    edges = np.unique(np.geomspace(1, longest + 1, 40).round()) - 0.5
    for (name, delays), style in zip(pooled.items(), styles(len(runs)), strict=True):
        counts, _ = np.histogram(delays, edges)
        axes.stairs(counts, edges, label=name if named else None, **style)
    workers = max((group[0].trace.num_workers for group in runs.values()), default=1)
    axes.axvline(workers, color="0.4", linestyle=":", linewidth=1, label=f"M = {workers:,}")
    axes.axvline(longest, color="0.4", linestyle="--", linewidth=1, label=f"τ_max = {longest:,}")
    some = any(len(delays) for delays in pooled.values())  # a logarithmic scale needs at least one count
    axes.set(xlabel="delay (steps)", ylabel="gradients", xscale="log", yscale="log" if some else "linear")
    axes.grid(alpha=0.3)
