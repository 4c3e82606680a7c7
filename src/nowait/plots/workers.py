"""Figures of workers: how the work was shared, and when each worker computed."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from nowait.core import checks
from nowait.core.types import Floats, Integers
from nowait.plots.runs import Runs, checked_runs
from nowait.plots.sheet import Drawn, Into, new_sheet
from nowait.plots.style import COLOURS, LABELS, styles
from nowait.recording import Run, Trace

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST_BARS = 60
"""Beyond this many bars, shares are drawn as sorted points."""
MOST_LANES = 24
"""A timeline of more workers shows the slowest ones and some of the others."""
INCHES_PER_LANE = 0.14
OUTCOME_COLOURS = {
    "applied": COLOURS[0],
    "held": COLOURS[5],
    "dropped": COLOURS[1],
    "late": COLOURS[4],
    "rejected": "0.2",
}
NOTHING_YET = "no gradient yet"


def work_share(runs: Runs, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot the share of the gradients that each worker computed, and the equal share 1/M.

    A bar for every worker; with many workers, points that are sorted from the largest share to the smallest.
    """
    shares = {name: group[0].stats.work_share for name, group in checked_runs(runs).items()}
    workers = max(len(share) for share in shares.values())
    with new_sheet(1, width, ax) as sheet:
        axes = sheet.axes[0]
        if workers * len(shares) <= MOST_BARS:
            _draw_bars(axes, shares, workers)
        else:
            _draw_sorted_points(axes, shares)
        axes.axhline(1 / max(1, workers), color="0.4", linestyle=":", linewidth=1, label="equal share, 1/M")
        axes.set(ylabel="share of the gradients", ylim=(0, None))
        axes.grid(alpha=0.3, axis="y")
        sheet.legend()
    return sheet.drawn


def _draw_bars(axes: Axes, shares: dict[str, Floats], workers: int) -> None:
    thickness = 0.8 / len(shares)
    for number, (name, share) in enumerate(shares.items()):
        places = np.arange(len(share)) + (number - (len(shares) - 1) / 2) * thickness
        axes.bar(places, share, thickness, label=name, color=COLOURS[number % len(COLOURS)])
    every = -(-workers // 16)
    axes.set(xlabel="worker", xticks=np.arange(0, workers, every))


def _draw_sorted_points(axes: Axes, shares: dict[str, Floats]) -> None:
    for number, ((name, share), style) in enumerate(zip(shares.items(), styles(len(shares)), strict=True)):
        size = 3.0 if len(share) <= 100 else 1.8
        marker = MARKERS[number % len(MARKERS)]
        places = np.arange(1, len(share) + 1)
        axes.plot(places, np.sort(share)[::-1], marker, markersize=size, color=style["color"], label=name)
    axes.set(xlabel="workers, sorted by share")


def timeline(run: Run, jobs: int = 300, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot when each worker computed: a bar for every gradient, coloured by its outcome, the slowest worker on top.

    It ends when the first ``jobs`` gradients have arrived; bars of gradients that arrive later are cut there. Of many
    workers, the slowest half of the lanes is always shown.
    """
    if not isinstance(run, Run) or not len(run.trace):
        raise TypeError(f"timeline draws one run with arrivals, got {run!r}")
    jobs = checks.at_least(1, jobs, "jobs", "it is the number of gradients to draw")
    end = float(run.trace.time[min(jobs, len(run.trace)) - 1])
    with new_sheet(1, width, ax) as sheet:
        lanes = _lanes(run.trace, end)
        sheet.height(max(2.2, 0.9 + INCHES_PER_LANE * len(lanes)))
        _draw_timeline(sheet.axes[0], run.trace, lanes, end)
        sheet.legend()
    return sheet.drawn


def _lanes(trace: Trace, end: float) -> list[int]:
    """Return the workers to show, the slowest first: by the mean seconds of the jobs that began before ``end``."""
    began = trace.started < end
    workers, place = np.unique(trace.worker[began], return_inverse=True)
    seconds = np.bincount(place, weights=(trace.time - trace.started)[began]) / np.bincount(place)
    slowness = dict(zip(workers.tolist(), seconds.tolist(), strict=True))
    slowness |= dict.fromkeys(_without_arrivals(trace), np.inf)
    order = sorted(slowness, key=lambda worker: (-slowness[worker], worker))
    if len(order) <= MOST_LANES:
        return order
    slowest, others = order[: MOST_LANES // 2], order[MOST_LANES // 2 :]
    chosen = np.linspace(0, len(others) - 1, MOST_LANES - len(slowest)).round().astype(int)
    return slowest + [others[at] for at in chosen.tolist()]


def _without_arrivals(trace: Trace) -> list[int]:
    """Return the workers that were there from the start, and from which nothing arrived."""
    return sorted(set(trace.initial_workers.tolist()) - set(np.unique(trace.worker).tolist()))


def _draw_timeline(axes: Axes, trace: Trace, lanes: list[int], end: float) -> None:
    lane_of = np.full(1 + max(int(trace.worker.max()), *lanes), -1)
    lane_of[lanes] = np.arange(len(lanes))
    shown = np.flatnonzero((trace.started < end) & (lane_of[trace.worker] >= 0))
    outcomes: NDArray[np.str_] = trace.outcome[shown]
    for outcome, colour in OUTCOME_COLOURS.items():
        rows: Integers = shown[outcomes == outcome]
        if len(rows):
            starts = trace.started[rows]
            lengths = np.minimum(trace.time[rows], end) - starts
            axes.barh(
                lane_of[trace.worker[rows]], lengths, 0.8, starts, color=colour, ec="white", lw=0.3, label=outcome
            )
    silent = [lane for lane, worker in enumerate(lanes) if worker in _without_arrivals(trace)]
    if silent:
        axes.barh(silent, end, 0.8, 0.0, color="0.85", hatch="////", ec="0.5", lw=0.3, label=NOTHING_YET)
    axes.set(xlabel=LABELS["time"], ylabel="worker, slowest first", xlim=(None, end))
    axes.set_yticks(range(len(lanes)), [str(worker) for worker in lanes])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
