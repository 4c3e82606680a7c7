"""Figures of studies: sweeps, the longest delay, tolerance of delays and reproductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nowait.plots.runs import band
from nowait.plots.sheet import Drawn, Into, new_sheet
from nowait.plots.style import COLOURS, LABELS, styles
from nowait.recording import Sweep


def sweep(result: Sweep, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot final loss against stepsize (median and range over seeds), and the loss curves of the best stepsize.

    Two panels. Stepsizes of which a run diverged are dotted lines.
    """
    if not isinstance(result, Sweep):
        raise TypeError(f"sweep draws the result of nw.sweep, got {result!r}")
    with new_sheet(2, width, ax) as sheet:
        _draw_final_losses(sheet.axes[0], result)
        _draw_curves(sheet.axes[1], result)
        sheet.legend()
    return sheet.drawn


def _draw_final_losses(axes: Axes, result: Sweep) -> None:
    order = np.argsort(result.stepsizes)
    sizes, final = result.stepsizes[order], result.decisive[order]
    steady = ~result.diverged[order].any(axis=1)
    lowest, highest = final[steady].min(axis=1), final[steady].max(axis=1)
    axes.fill_between(sizes[steady], lowest, highest, color=COLOURS[0], alpha=0.2, linewidth=0)
    label = "median over seeds"
    axes.plot(sizes[steady], np.median(final[steady], axis=1), "o-", color=COLOURS[0], markersize=4, label=label)
    for size in sizes[~steady]:
        axes.axvline(size, color=COLOURS[1], linestyle=":", label="diverged")
    axes.set(
        xlabel="stepsize",
        ylabel="final loss" if result.answers is None else "loss of the output",
        xscale="log",
        yscale="log" if steady.any() else "linear",
    )
    axes.grid(alpha=0.3)


def _draw_curves(axes: Axes, result: Sweep) -> None:
    if not result.diverged.any(axis=1).all():
        for seed in range(len(result.seeds)):
            label = f"stepsize {result.best:.3g}, one line per seed" if seed == 0 else None
            best = result.best_place
            axes.plot(result.time[best, seed], result.curves[best, seed], color=COLOURS[2], linewidth=1, label=label)
        axes.set_yscale("log")
    axes.set(xlabel=LABELS["time"], ylabel="loss")
    axes.grid(alpha=0.3)


def longest_delay(study: Any, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot errors and guarantees against the longest delay, from the result of ``nowait.studies.longest_delay()``.

    Two panels.
    """
    names = list(dict.fromkeys([*study.errors, *study.guarantees]))
    style = dict(zip(names, styles(len(names)), strict=True))
    with new_sheet(2, width, ax) as sheet:
        for axes, curves, label in (
            (sheet.axes[0], study.errors, f"largest F(x) − F*,\nsteps {study.steps // 2:,} to {study.steps:,}"),
            (sheet.axes[1], study.guarantees, f"guarantee for F(x̃) − F*,\n{study.steps:,} steps"),
        ):
            for name, values in curves.items():
                axes.plot(study.max_delay, values, marker="o", markersize=4, label=name, **style[name])
            axes.set(xlabel=f"longest delay τ_max (steps), M = {study.workers}", ylabel=label)
            axes.set(xscale="log", yscale="log")
            axes.grid(alpha=0.3)
        sheet.legend()
    return sheet.drawn


def tolerance(study: Any, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot final loss against mean delay, from the result of ``nw.tolerance``: a panel for every delay pattern.

    A line is the median over the seeds for one update, with the range as a band. Dashed lines have stepsizes that were
    tuned again. A cross marks runs of which most diverged. Losses far above the initial one are outside the panel.
    """
    if not hasattr(study, "tolerated"):
        raise TypeError(f"tolerance draws the result of nw.tolerance, got {study!r}")
    with new_sheet(len(study.patterns), width, ax) as sheet:
        for axes, pattern in zip(sheet.axes, study.patterns, strict=True):
            for number, update in enumerate(study.updates):
                for retuned in study.tunings:
                    rows = [study.row(update, pattern, delay, retuned=retuned) for delay in study.delays]
                    label = study.labels[update] + (", tuned again" if retuned else "")
                    made = [row for row in rows if row is not None]
                    _draw_losses(axes, made, label, COLOURS[number % len(COLOURS)], "--" if retuned else "-")
            _label_tolerance(axes, study, pattern)
        sheet.legend()
    return sheet.drawn


def _label_tolerance(axes: Axes, study: Any, pattern: str) -> None:
    losses = [loss for row in study.rows for loss in row.losses if np.isfinite(loss)]
    axes.axhline(study.start_loss, color="0.4", linestyle=":", linewidth=1, label="before the first step")
    axes.set(title=pattern, xlabel="mean delay (steps)", ylabel="final loss")
    axes.set_xscale("log", base=2)
    axes.set_xticks(study.delays, [str(delay) for delay in study.delays])
    if min(losses, default=0.0) > 0 and study.start_loss > 0:
        axes.set_yscale("log")
        axes.set_ylim(0.7 * min(losses), 2 * study.start_loss)
    axes.grid(alpha=0.3)


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
    lowest, highest = [min(one) for one in losses], [max(one) for one in losses]
    axes.fill_between(delays, lowest, highest, color=colour, alpha=0.15, linewidth=0)


def reproduction(found: Any, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot the errors of every method, from the result of ``nw.reproduce``: two panels in a row.

    A line is the median over the seeds, with the range as a band. A method that diverged is named in its panel. The
    stepsizes are in the result's table.
    """
    names = list(dict.fromkeys(curve.entry for curve in found.curves))
    style = dict(zip(names, styles(len(names)), strict=True))
    with new_sheet(len(found.panels), width, ax, most_columns=2) as sheet:
        for axes, panel in zip(sheet.axes, found.panels, strict=True):
            curves = [curve for curve in found.curves if curve.panel == panel]
            for curve in curves:
                _draw_reproduced(axes, curve, style[curve.entry])
            axes.set(title=panel, xlabel=LABELS[curves[0].axis], ylabel="F(x) − F*", yscale="log")
            axes.grid(alpha=0.3)
            _name_diverged(axes, [curve.entry for curve in curves if curve.diverged])
        sheet.legend()
    return sheet.drawn


def _draw_reproduced(axes: Axes, curve: Any, style: dict[str, Any]) -> None:
    if curve.diverged:
        axes.plot([], [], label=curve.entry, **style)
        return
    grid, low, middle, high = band(list(zip(curve.x, curve.errors, strict=True)))
    axes.plot(grid, middle, label=curve.entry, **style)
    axes.fill_between(grid, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _name_diverged(axes: Axes, names: list[str]) -> None:
    if names:
        words = "diverged:\n" + "\n".join(names)
        axes.text(0.98, 0.97, words, ha="right", va="top", transform=axes.transAxes, fontsize=8)
