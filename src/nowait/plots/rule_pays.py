"""The figure of ``nowait.studies.rule_pays()``: where the delay-adaptive stepsize is better than a constant one."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from nowait.plots.sheet import Drawn, Into, new_sheet
from nowait.plots.style import COLOURS, LINES

FACTOR = 4.0
"""Ratios from 1/4 to 4 have different colours in the map."""
PALE = 1.8
"""Numbers on cells of a ratio above this or below its inverse are white."""


def rule_pays(study: Any, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot where the rule γ·min(1, M/τ) pays, from the result of ``nowait.studies.rule_pays()``. Two panels.

    The first has errors with the stepsizes that theory prescribes, against how many times slower one straggler is. The
    second is a map for tuned stepsizes: the time to the target with the constant stepsize divided by that with the
    rule, the geometric mean over the clusters that were drawn.
    """
    if not hasattr(study, "prescribed"):
        raise TypeError(f"rule_pays draws the result of nowait.studies.rule_pays, got {study!r}")
    with new_sheet(2, width, ax) as sheet:
        _draw_prescribed(sheet.axes[0], study)
        _draw_map(sheet.axes[1], study)
        sheet.legend()
    return sheet.drawn


def _draw_prescribed(axes: Axes, study: Any) -> None:
    names = list(dict.fromkeys(one.problem for one in study.prescribed))
    for name, line in zip(names, LINES, strict=False):
        rows = [one for one in study.prescribed if one.problem == name]
        factors = [one.factor for one in rows]
        for errors, rule, colour in (
            ([one.adaptive for one in rows], "γ·min(1, M/τ)", COLOURS[0]),
            ([one.constant for one in rows], "constant", COLOURS[1]),
        ):
            axes.plot(factors, errors, marker="o", markersize=3, linestyle=line, color=colour, label=f"{rule}, {name}")
    axes.set(title="stepsizes of the theory", xscale="log", yscale="log")
    axes.set(xlabel="how many times slower one straggler is", ylabel="error after the run / at the start")
    axes.grid(alpha=0.3)


def _draw_map(axes: Axes, study: Any) -> None:
    ratios = np.array([one.middle for one in study.times]).reshape(len(study.noises), len(study.clusters))
    axes.pcolormesh(ratios, norm=LogNorm(1 / FACTOR, FACTOR), cmap="PuOr", edgecolors="white", linewidth=0.5)
    for row, column in np.ndindex(ratios.shape):
        ratio = ratios[row, column]
        colour = "white" if not 1 / PALE < ratio < PALE else "black"
        axes.text(column + 0.5, row + 0.5, f"{ratio:.2g}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_xticks(np.arange(len(study.clusters)) + 0.5, study.clusters, rotation=90)
    axes.set_yticks(np.arange(len(study.noises)) + 0.5, [f"{noise:g}" for noise in study.noises])
    axes.set(title="tuned: time, constant / rule", ylabel="noise σ²/(M·L·ε)")
