"""Figures of the benchmark: performance profiles, and the phase diagram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from nowait.core.types import Floats
from nowait.plots.sheet import Drawn, Into, new_sheet
from nowait.plots.style import COLOURS, styles

SHOWN = 8
"""How many methods of the performance profiles are named."""
ALWAYS = ("AsynchronousSGD, adaptive", "MinibatchSGD")
"""Methods whose profiles are always named."""
LARGEST_RATIO = 10.0
CLEAR_LEAD = 1.05
"""A method is ahead by less than this: the cell is marked."""
NOBODY = "0.92"


def profiles(bench: Any, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot performance profiles, from the result of ``nw.bench``: in which share of columns is a method within a ratio.

    The best methods by score are named, and asynchronous and minibatch SGD; the others are grey.
    """
    scores = _scores_of(bench)
    order = [standing.method for standing in scores.standings()]
    named = order[:SHOWN] + [method for method in ALWAYS if method in order[SHOWN:]]
    ratios = np.geomspace(1.0, LARGEST_RATIO, 200)
    with new_sheet(1, width, ax) as sheet:
        axes = sheet.axes[0]
        for method in order:
            if method not in named:
                axes.step(ratios, scores.profile(method, ratios), color="0.85", linewidth=0.8, where="post")
        for method, style in zip(named, styles(len(named)), strict=True):
            axes.step(ratios, scores.profile(method, ratios), label=method, where="post", **style)
        axes.set(xscale="log", xlabel="r: time / time of the best method", ylabel="share of columns")
        axes.set_ylim(0, 1)
        axes.set_xticks([1, 2, 4, 10], ["1", "2", "4", "10"])
        axes.grid(alpha=0.3)
        sheet.legend()
    return sheet.drawn


def phases(bench: Any, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot the phase diagram, from the result of ``nw.bench``: who is first, by spread of speeds and noise.

    A panel for each number of workers. The spread is the longest time per gradient over the harmonic mean (HM) of the
    times; the noise is the variance of a gradient over the squared norm of the first one. Circles are recorded
    jobs, each with the method that is first on the job itself. Where the lead is below 5 %, the cell is marked with ≈.
    """
    entries = list(getattr(bench, "phases", ()))
    if not entries:
        raise ValueError("there is no point of the phase diagram to draw")
    methods = list(entries[0].seconds)
    numbers = sorted({entry.point.workers for entry in entries})
    with new_sheet(len(numbers), width, ax) as sheet:
        for axes, workers in zip(sheet.axes, numbers, strict=True):
            own = [entry for entry in entries if entry.point.workers == workers]
            _draw_grid(axes, [entry for entry in own if entry.point.job is None], methods)
            _draw_jobs(axes, [entry for entry in own if entry.point.job is not None], methods)
            axes.set(title=f"{workers} workers", xlabel="spread, s_max / HM")
            axes.set(ylabel="relative gradient noise", xscale="log", yscale="log")
            axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"], minor=False)
            axes.minorticks_off()
        lowest, highest = zip(*(axes.get_ylim() for axes in sheet.axes), strict=True)
        for axes in sheet.axes:
            axes.set_ylim(min(lowest), max(highest))
        sheet.legend([Patch(color=COLOURS[place], label=method) for place, method in enumerate(methods)])
    return sheet.drawn


def _draw_grid(axes: Axes, entries: Sequence[Any], methods: list[str]) -> None:
    spreads = sorted({entry.heterogeneity for entry in entries})
    noises = sorted({entry.point.noise for entry in entries})
    winners = np.full((len(noises), len(spreads)), len(methods))
    for entry in entries:
        row, column = noises.index(entry.point.noise), spreads.index(entry.heterogeneity)
        if entry.winner is None:
            continue
        winners[row, column] = methods.index(entry.winner)
        if entry.lead() < CLEAR_LEAD:
            axes.text(entry.heterogeneity, entry.point.noise, "≈", ha="center", va="center", color="white")
    colours = ListedColormap([*COLOURS[: len(methods)], NOBODY])
    axes.pcolormesh(
        _edges(spreads), _edges(noises), winners, cmap=colours, vmin=-0.5, vmax=len(methods) + 0.5, alpha=0.75
    )


def _draw_jobs(axes: Axes, entries: Sequence[Any], methods: list[str]) -> None:
    """Draw recorded jobs as circles; jobs with about the same spread are one above the other."""
    for entry in entries:
        place = entry.point.noise * 1.7 ** (entry.point.job - 2.5)
        colour = NOBODY if entry.winner is None else COLOURS[methods.index(entry.winner)]
        axes.scatter([entry.heterogeneity], [place], s=90, color=colour, edgecolors="black", linewidths=0.8, zorder=3)
        axes.annotate(
            str(entry.point.job), (entry.heterogeneity, place), fontsize=8, ha="center", va="center", zorder=4
        )


def _edges(values: Sequence[float]) -> Floats:
    """Return the edges of cells around these values, in the middle of their logarithms."""
    logs = np.log(np.asarray(values, dtype=np.float64))
    middles = (logs[1:] + logs[:-1]) / 2
    first, last = (middles[0], middles[-1]) if len(middles) else (logs[0] + 0.5, logs[0] - 0.5)
    edges: Floats = np.exp(np.concatenate([[2 * logs[0] - first], middles, [2 * logs[-1] - last]]))
    return edges


def _scores_of(bench: Any) -> Any:
    if not hasattr(bench, "scores"):
        raise TypeError(f"profiles draws the result of nw.bench, got {bench!r}")
    return bench.scores
