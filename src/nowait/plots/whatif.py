"""The figure of ``nw.whatif``."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nowait.plots.figures import COLOURS, MOST_LANES


def whatif(found: Any) -> Figure:
    """Plot the times of the workers, and how long the same gradients take with each alternative, with ranges.

    A dot is the median time of a worker, its line the range from the 5 % to the 95 % quantile. Beyond 40 workers only
    the slowest are shown.
    """
    if not hasattr(found, "alternatives"):
        raise TypeError(f"whatif draws the result of nw.whatif, got {found!r}")
    figure = Figure(figsize=(10.4, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_workers(left, found)
    _draw_alternatives(right, found)
    figure.suptitle(f"{found.source}: {found.verdict}", fontsize="medium", wrap=True)
    return figure


def _draw_workers(axes: Axes, found: Any) -> None:
    shown = np.sort(np.argsort(found.quantiles[:, 1], kind="stable")[-MOST_LANES:])
    places = np.arange(len(shown))
    low, middle, high = found.quantiles[shown].T
    axes.vlines(places, low, high, color=COLOURS[0], linewidth=2)
    axes.plot(places, middle, "o", color=COLOURS[0], markersize=4)
    axes.set(xlabel="worker", ylabel="seconds per gradient", ylim=(0, None))
    names = [found.names[worker][:12] for worker in shown]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 2 else 0, fontsize="small")
    axes.grid(alpha=0.3, axis="y")


def _draw_alternatives(axes: Axes, found: Any) -> None:
    ways = found.alternatives
    places = np.arange(len(ways))
    taken = np.array([100 * (1 - one.saved) for one in ways])
    errors = np.array([[100 * (one.high - one.saved), 100 * (one.saved - one.low)] for one in ways]).clip(0).T
    colours = [COLOURS[1], *[COLOURS[5]] * (len(ways) - 2), COLOURS[2]]
    axes.barh(places, taken, xerr=errors, color=colours, error_kw={"capsize": 3})
    axes.set(xlabel="time for the same gradients (% of synchronous)", xlim=(0, None))
    axes.set_yticks(places, [one.name for one in ways], fontsize="small")
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
