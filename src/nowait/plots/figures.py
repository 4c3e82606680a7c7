"""Error curves, delay histograms, timelines. Every function returns a matplotlib ``Figure``: call its ``savefig``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nowait.core import checks
from nowait.core.types import Floats
from nowait.recording import Run, Sweep

Runs = Mapping[str, Run | Sequence[Run]]
"""Runs by name; several runs under one name are seeds, drawn as their median and range."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""The colour-blind-safe palette of Okabe and Ito."""
LINES = ("-", "--", "-.", ":")
LABELS = {"time": "time (s)", "gradients": "gradients", "step": "steps"}
POINTS_OF_BANDS = 200
OUTCOME_COLOURS = {
    "applied": COLOURS[0],
    "held": COLOURS[5],
    "dropped": COLOURS[1],
    "late": COLOURS[4],
    "rejected": "0.2",
}
MOST_LANES = 40


def errors(runs: Runs, axis: str = "time", minimum: float = 0.0) -> Figure:
    """Plot loss minus ``minimum`` against "time", "gradients" or "step", on a logarithmic scale."""
    figure, axes = _figure(1)
    _draw_errors(axes[0], _checked(runs), axis, minimum)
    return figure


def delays(runs: Runs) -> Figure:
    """Plot a histogram of the gradients' delays on logarithmic scales, with M and τ_max marked."""
    figure, axes = _figure(1)
    _draw_delays(axes[0], _checked(runs))
    return figure


def race(runs: Runs, minimum: float = 0.0) -> Figure:
    """Plot error against time, error against gradients, and delays, side by side."""
    figure, axes = _figure(3)
    checked = _checked(runs)
    _draw_errors(axes[0], checked, "time", minimum)
    _draw_errors(axes[1], checked, "gradients", minimum)
    _draw_delays(axes[2], checked)
    return figure


def work_share(runs: Runs) -> Figure:
    """Plot the share of the gradients that each worker computed, and the equal share 1/M."""
    figure, axes = _figure(1)
    for (name, group), style in zip(_checked(runs).items(), _styles(len(runs)), strict=True):
        share = group[0].stats.work_share
        axes[0].plot(np.arange(len(share)), share, marker="o", markersize=3, label=name, **style)
    workers = max(group[0].trace.num_workers for group in _checked(runs).values())
    axes[0].axhline(1 / max(1, workers), color="0.4", linestyle=":", label="equal share, 1/M")
    axes[0].set(xlabel="worker", ylabel="share of the gradients")
    axes[0].grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    return figure


def timeline(run: Run, jobs: int = 300) -> Figure:
    """Plot when each worker computed: a bar for each of the first ``jobs`` gradients, coloured by its outcome."""
    if not isinstance(run, Run) or not len(run.trace):
        raise TypeError(f"timeline draws one run with arrivals, got {run!r}")
    jobs = checks.at_least(1, jobs, "jobs", "it is the number of gradients to draw")
    figure = Figure(figsize=(10.4, 4.6), layout="constrained")
    axes = [figure.subplots()]
    trace = run.trace
    count = min(jobs, len(trace))
    lanes = {worker: lane for lane, worker in enumerate(sorted(set(trace.worker[:count].tolist()))[:MOST_LANES])}
    outcomes = np.array([str(outcome) for outcome in trace.outcome[:count]])
    for outcome, colour in OUTCOME_COLOURS.items():
        rows = [row for row in np.flatnonzero(outcomes == outcome) if int(trace.worker[row]) in lanes]
        if rows:
            starts = np.array([trace.started[row] for row in rows])
            widths = np.array([trace.time[row] for row in rows]) - starts
            heights = [lanes[int(trace.worker[row])] for row in rows]
            axes[0].barh(heights, widths, left=starts, height=0.8, color=colour, edgecolor="white", label=outcome)
    axes[0].set(xlabel=LABELS["time"], ylabel="worker", yticks=list(lanes.values()), yticklabels=list(lanes))
    axes[0].invert_yaxis()
    axes[0].legend(fontsize="small")
    return figure


def sweep(result: Sweep) -> Figure:
    """Plot final loss against stepsize (median and range over seeds), and the loss curves of the best stepsize."""
    if not isinstance(result, Sweep):
        raise TypeError(f"sweep draws the result of nw.sweep, got {result!r}")
    figure, axes = _figure(2)
    _draw_final_losses(axes[0], result)
    _draw_curves(axes[1], result)
    return figure


def longest_delay(study: Any) -> Figure:
    """Plot errors and guarantees against the longest delay, from the result of ``nowait.studies.longest_delay()``."""
    figure, axes = _figure(2)
    for panel, curves, label in (
        (axes[0], study.errors, f"largest F(x) − F*, steps {study.steps // 2:,} to {study.steps:,}"),
        (axes[1], study.guarantees, f"guarantee for F(x̃) − F*, {study.steps:,} steps"),
    ):
        for (name, values), style in zip(curves.items(), _styles(len(curves)), strict=True):
            panel.plot(study.max_delay, values, marker="o", label=name, **style)
        panel.set(xlabel=f"longest delay τ_max (steps), M = {study.workers}", ylabel=label, xscale="log", yscale="log")
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    return figure


def tolerance(study: Any) -> Figure:
    """Plot final loss against mean delay, from the result of ``nw.tolerance``: a panel for every delay pattern.

    A line is the median over the seeds for one update, with the range as a band. Dashed lines have stepsizes that were
    tuned again. A cross marks runs of which most diverged. Losses far above the initial one are outside the panel.
    """
    if not hasattr(study, "tolerated"):
        raise TypeError(f"tolerance draws the result of nw.tolerance, got {study!r}")
    figure, panels = _figure(len(study.patterns))
    losses = [loss for row in study.rows for loss in row.losses if np.isfinite(loss)]
    for axes, pattern in zip(panels, study.patterns, strict=True):
        for number, update in enumerate(study.updates):
            for retuned in study.tunings:
                rows = [study.row(update, pattern, delay, retuned=retuned) for delay in study.delays]
                label = study.labels[update] + (", tuned again" if retuned else "")
                made = [row for row in rows if row is not None]
                _draw_losses(axes, made, label, COLOURS[number % len(COLOURS)], "--" if retuned else "-")
        axes.axhline(study.start_loss, color="0.4", linestyle=":", label="before the first step")
        axes.set(xlabel=f"mean delay (steps), {pattern}", ylabel="final loss")
        axes.set_xscale("log", base=2)
        axes.set_xticks(study.delays, [str(delay) for delay in study.delays])
        if min(losses, default=0.0) > 0 and study.start_loss > 0:
            axes.set_yscale("log")
            axes.set_ylim(0.7 * min(losses), 2 * study.start_loss)
        axes.grid(alpha=0.3)
    panels[-1].legend(fontsize="x-small")
    return figure


def reproduction(found: Any) -> Figure:
    """Plot the errors of every method, from the result of ``nw.reproduce``: two panels in a row.

    A line is the median over the seeds, with the range as a band. A method that diverged is named in the legend only.
    """
    columns = min(2, len(found.panels))
    rows = -(-len(found.panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(places, found.panels, strict=False):
        curves = [curve for curve in found.curves if curve.panel == panel]
        for curve, style in zip(curves, _styles(len(curves)), strict=True):
            _draw_reproduced(axes, curve, style)
        axes.set(title=panel, xlabel=LABELS[curves[0].axis], ylabel="F(x) − F*", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    for axes in places[len(found.panels) :]:
        axes.set_axis_off()
    return figure


def _draw_reproduced(axes: Axes, curve: Any, style: dict[str, Any]) -> None:
    if curve.diverged:
        axes.plot([], [], label=f"{curve.label}: diverged", **style)
        return
    grid, low, middle, high = _band(list(zip(curve.x, curve.errors, strict=True)))
    axes.plot(grid, middle, label=curve.label, **style)
    axes.fill_between(grid, low, high, color=style["color"], alpha=0.15)


def _draw_losses(axes: Axes, rows: Sequence[Any], label: str, colour: str, line: str) -> None:
    """Draw one line of a tolerance study, with its range; rows of which most diverged are crosses at the top."""
    for row in rows:
        if not np.isfinite(row.median):
            axes.plot([row.delay], [0.97], "x", color=colour, transform=axes.get_xaxis_transform())
    steady = [row for row in rows if np.isfinite(row.median)]
    if not steady:
        return
    delays, losses = [row.delay for row in steady], [[x for x in row.losses if np.isfinite(x)] for row in steady]
    axes.plot(delays, [row.median for row in steady], line, marker="o", markersize=3, color=colour, label=label)
    axes.fill_between(delays, [min(one) for one in losses], [max(one) for one in losses], color=colour, alpha=0.15)


def _draw_final_losses(axes: Axes, result: Sweep) -> None:
    order = np.argsort(result.stepsizes)
    sizes, final = result.stepsizes[order], result.decisive[order]
    steady = ~result.diverged[order].any(axis=1)
    axes.fill_between(sizes[steady], final[steady].min(axis=1), final[steady].max(axis=1), color=COLOURS[0], alpha=0.2)
    axes.plot(sizes[steady], np.median(final[steady], axis=1), "o-", color=COLOURS[0], label="median over seeds")
    for size in sizes[~steady]:
        axes.axvline(size, color=COLOURS[1], linestyle=":", label="diverged")
    axes.set(
        xlabel="stepsize",
        ylabel="final loss" if result.answers is None else "loss of the output",
        xscale="log",
        yscale="log" if steady.any() else "linear",
    )
    axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), fontsize="small")


def _draw_curves(axes: Axes, result: Sweep) -> None:
    if not result.diverged.any(axis=1).all():
        for seed in range(len(result.seeds)):
            label = f"stepsize {result.best:.3g}, one line per seed" if seed == 0 else None
            best = result.best_place
            axes.plot(result.time[best, seed], result.curves[best, seed], color=COLOURS[0], label=label)
        axes.legend(fontsize="small")
        axes.set_yscale("log")
    axes.set(xlabel=LABELS["time"], ylabel="loss")
    axes.grid(alpha=0.3)


def _checked(runs: Runs) -> dict[str, list[Run]]:
    if not isinstance(runs, Mapping) or not runs:
        raise TypeError(f'runs must be named: pass a dictionary {{"name": run, ...}}, got {runs!r}')
    groups = {name: list(group) if isinstance(group, Sequence) else [group] for name, group in runs.items()}
    for name, group in groups.items():
        if not group or not all(isinstance(run, Run) for run in group):
            raise TypeError(f"{name!r} must be a run, or a list of runs with several seeds, got {runs[name]!r}")
    return groups


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.2 * panels, 3.8), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def _draw_errors(axes: Axes, runs: dict[str, list[Run]], axis: str, minimum: float) -> None:
    if axis not in LABELS:
        raise ValueError(f"axis must be one of {', '.join(LABELS)}, got {axis!r}")
    for (name, group), style in zip(runs.items(), _styles(len(runs)), strict=True):
        curves = [_curve(run, axis, minimum) for run in group]
        if len(curves) == 1:
            axes.plot(*curves[0], label=name, **style)
        elif all(len(curve[0]) for curve in curves):
            grid, low, middle, high = _band(curves)
            axes.plot(grid, middle, label=f"{name}, median of {len(group)}", **style)
            axes.fill_between(grid, low, high, color=style["color"], alpha=0.15)
    axes.set(xlabel=LABELS[axis], ylabel="loss" if minimum == 0 else "loss − minimum", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _curve(run: Run, axis: str, minimum: float) -> tuple[Floats, Floats]:
    """Return the x values and errors of a run that are finite and above 0, as a logarithmic axis needs."""
    error = run.history.loss - minimum
    shown = np.isfinite(error) & (error > 0)
    return getattr(run.history, axis)[shown], error[shown]


def _band(curves: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return x values and the lowest, median and highest error over the runs, where all runs have errors."""
    begin, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(begin, end, POINTS_OF_BANDS)
    logs = np.array([np.interp(grid, x, np.log(y)) for x, y in curves])
    return grid, np.exp(logs.min(axis=0)), np.exp(np.median(logs, axis=0)), np.exp(logs.max(axis=0))


def _draw_delays(axes: Axes, runs: dict[str, list[Run]]) -> None:
    pooled = {name: np.concatenate([run.trace.delay for run in group]) for name, group in runs.items()}
    longest = max((int(delays.max(initial=1)) for delays in pooled.values()), default=1)
    edges = np.unique(np.geomspace(1, longest + 1, 40).round()) - 0.5
    for (name, delays), style in zip(pooled.items(), _styles(len(runs)), strict=True):
        counts, _ = np.histogram(delays, edges)
        axes.stairs(counts, edges, label=name, color=style["color"], linestyle=style["linestyle"], linewidth=1.5)
    workers = max((group[0].trace.num_workers for group in runs.values()), default=1)
    axes.axvline(workers, color="0.4", linestyle=":", label=f"M = {workers}")
    axes.axvline(longest, color="0.4", linestyle="--", label=f"τ_max = {longest:,}")
    some = any(len(delays) for delays in pooled.values())  # a logarithmic scale needs at least one count
    axes.set(xlabel="delay (steps)", ylabel="gradients", xscale="log", yscale="log" if some else "linear")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _styles(count: int) -> list[dict[str, Any]]:
    return [
        {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number % len(LINES)], "linewidth": 1.6}
        for number in range(count)
    ]
