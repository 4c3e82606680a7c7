"""Error curves and delay histograms. Every function returns a matplotlib ``Figure``; save it where you like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nowait.recording import Run, Sweep

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""The palette of Okabe and Ito, which colour-blind readers can tell apart."""
LINES = ("-", "--", "-.", ":")
LABELS = {"time": "time (s)", "gradients": "gradients", "step": "steps"}


def errors(runs: Mapping[str, Run], axis: str = "time", minimum: float = 0.0) -> Figure:
    """Loss minus ``minimum`` against an axis, "time", "gradients" or "step", on a logarithmic scale."""
    figure, axes = _figure(1)
    _draw_errors(axes[0], _checked(runs), axis, minimum)
    return figure


def delays(runs: Mapping[str, Run]) -> Figure:
    """How many gradients had which delay, on logarithmic scales, with M marked."""
    figure, axes = _figure(1)
    _draw_delays(axes[0], _checked(runs))
    return figure


def race(runs: Mapping[str, Run], minimum: float = 0.0) -> Figure:
    """Error against time, error against gradients, and delays, side by side."""
    figure, axes = _figure(3)
    _draw_errors(axes[0], _checked(runs), "time", minimum)
    _draw_errors(axes[1], runs, "gradients", minimum)
    _draw_delays(axes[2], runs)
    return figure


def sweep(result: Sweep) -> Figure:
    """Final loss against stepsize (median and range over the seeds), and the curves of the best stepsize."""
    if not isinstance(result, Sweep):
        raise TypeError(f"sweep draws what nw.sweep returned, got {result!r}")
    figure, axes = _figure(2)
    _draw_final_losses(axes[0], result)
    _draw_curves(axes[1], result)
    return figure


def longest_delay(study: Any) -> Figure:
    """Errors, and guarantees, against the longest delay, of ``nowait.studies.longest_delay()``."""
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


def _draw_final_losses(axes: Axes, result: Sweep) -> None:
    order = np.argsort(result.stepsizes)
    sizes, final = result.stepsizes[order], result.final[order]
    steady = ~result.diverged[order].any(axis=1)
    axes.fill_between(sizes[steady], final[steady].min(axis=1), final[steady].max(axis=1), color=COLOURS[0], alpha=0.2)
    axes.plot(sizes[steady], np.median(final[steady], axis=1), "o-", color=COLOURS[0], label="median over seeds")
    for size in sizes[~steady]:
        axes.axvline(size, color=COLOURS[1], linestyle=":", label="diverged")
    axes.set(xlabel="stepsize", ylabel="final loss", xscale="log", yscale="log")
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
    axes.set(xlabel=LABELS["time"], ylabel="loss", yscale="log")
    axes.grid(alpha=0.3)


def _checked(runs: Mapping[str, Run]) -> Mapping[str, Run]:
    if not isinstance(runs, Mapping) or not runs:
        raise TypeError(f'runs must be named, {{"name": run, ...}}, got {runs!r}')
    return runs


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.2 * panels, 3.8), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def _draw_errors(axes: Axes, runs: Mapping[str, Run], axis: str, minimum: float) -> None:
    if axis not in LABELS:
        raise ValueError(f"axis must be one of {', '.join(LABELS)}, got {axis!r}")
    for (name, run), style in zip(runs.items(), _styles(len(runs)), strict=True):
        error = run.history.loss - minimum
        shown = np.isfinite(error) & (error > 0)
        axes.plot(getattr(run.history, axis)[shown], error[shown], label=name, **style)
    axes.set(xlabel=LABELS[axis], ylabel="loss" if minimum == 0 else "loss − minimum", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_delays(axes: Axes, runs: Mapping[str, Run]) -> None:
    longest = max((int(run.trace.delay.max(initial=1)) for run in runs.values()), default=1)
    edges = np.unique(np.geomspace(1, longest + 1, 40).round()) - 0.5
    for (name, run), style in zip(runs.items(), _styles(len(runs)), strict=True):
        counts, _ = np.histogram(run.trace.delay, edges)
        axes.stairs(counts, edges, label=name, color=style["color"], linestyle=style["linestyle"], linewidth=1.5)
    workers = max((run.trace.num_workers for run in runs.values()), default=1)
    axes.axvline(workers, color="0.4", linestyle=":", label=f"M = {workers}")
    axes.set(xlabel="delay (steps)", ylabel="gradients", xscale="log", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _styles(count: int) -> list[dict[str, Any]]:
    return [
        {"color": COLOURS[place % len(COLOURS)], "linestyle": LINES[place % len(LINES)], "linewidth": 1.6}
        for place in range(count)
    ]
