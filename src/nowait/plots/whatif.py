"""The figure of ``nw.whatif``."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nowait.plots.sheet import Drawn, Into, new_sheet
from nowait.plots.style import COLOURS

MOST_WORKERS = 40
LONGEST_LINE = 24
"""Longer names of alternatives are wrapped."""


def whatif(found: Any, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot the times of the workers, and how long the same gradients take with each alternative, with ranges.

    Two panels. A dot is the median time of a worker, its line the range from the 5 % to the 95 % quantile. Beyond 40
    workers only the slowest are shown.
    """
    if not hasattr(found, "alternatives"):
        raise TypeError(f"whatif draws the result of nw.whatif, got {found!r}")
    with new_sheet(2, width, ax) as sheet:
        _draw_workers(sheet.axes[0], found)
        _draw_alternatives(sheet.axes[1], found)
        sheet.title(f"{found.source}: {'no verdict' if found.doubt else found.verdict}")
    return sheet.drawn


def _draw_workers(axes: Axes, found: Any) -> None:
    shown = np.sort(np.argsort(found.quantiles[:, 1], kind="stable")[-MOST_WORKERS:])
    places = np.arange(len(shown))
    low, middle, high = found.quantiles[shown].T
    axes.vlines(places, low, high, color=COLOURS[0], linewidth=2)
    axes.plot(places, middle, "o", color=COLOURS[0], markersize=4)
    axes.set(xlabel="worker", ylabel="seconds per gradient", ylim=(0, None))
    names = [found.names[worker][:12] for worker in shown]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.grid(alpha=0.3, axis="y")


def _draw_alternatives(axes: Axes, found: Any) -> None:
    ways = found.alternatives
    places = np.arange(len(ways))
    taken = np.array([100 * (1 - one.saved) for one in ways])
    errors = np.array([[100 * (one.high - one.saved), 100 * (one.saved - one.low)] for one in ways]).clip(0).T
    colours = [COLOURS[1], *[COLOURS[5]] * (len(ways) - 2), COLOURS[2]]
    axes.barh(places, taken, xerr=errors, color=colours, error_kw={"capsize": 3})
    axes.set(xlabel="time (% of synchronous)", xlim=(0, None))
    axes.set_yticks(places, [textwrap.fill(one.name, LONGEST_LINE) for one in ways])
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
