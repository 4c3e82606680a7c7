"""The figure of a method that chooses how many gradients a step waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from nowait.core.notes import Waiting
from nowait.plots.sheet import Drawn, Into, new_sheet
from nowait.plots.style import COLOURS, LABELS
from nowait.recording import Run


def waiting(run: Run, *, width: float | None = None, ax: Into = None) -> Drawn:
    """Plot how many gradients a step waited for, the noise scale by which that was chosen, and the loss, over time.

    Of runs of ``Auto``, or of another method that notes its choices in the same way; their times are logarithmic.
    """
    if not isinstance(run, Run):
        raise TypeError(f"waiting draws one run, got {run!r}")
    chosen = [(note.time, choice) for note in run.trace.notes if (choice := note.waiting) is not None]
    if not chosen:
        raise ValueError(
            "the method of this run noted no choice of how many gradients a step waits for, as nw.Auto does"
        )
    with new_sheet(3, width, ax) as sheet:
        _draw_choices(sheet.axes[0], chosen, run.stats.seconds)
        _draw_noise(sheet.axes[1], chosen)
        history = run.history
        sheet.axes[2].plot(history.time, history.loss, color=COLOURS[0], linewidth=1.4)
        sheet.axes[2].set(ylabel="loss", yscale="log")
        start = min((time for time, _ in chosen if time > 0), default=run.stats.seconds)
        for axes in sheet.axes:
            axes.set(xlabel=LABELS["time"], xscale="log", xlim=(0.7 * start, run.stats.seconds) if start > 0 else None)
            axes.grid(alpha=0.3)
        sheet.legend()
    return sheet.drawn


def _draw_choices(axes: Axes, chosen: Sequence[tuple[float, Waiting]], end: float) -> None:
    times = np.array([time for time, _ in chosen] + [end])
    counts, workers = ([getattr(choice, name) for _, choice in chosen] for name in ("waits_for", "workers"))
    axes.step(times, [*counts, counts[-1]], where="post", color=COLOURS[0], linewidth=1.4)
    axes.step(
        times, [*workers, workers[-1]], where="post", color="0.4", linestyle=":", linewidth=1, label="all workers, M"
    )
    axes.set(ylabel="gradients in a step", ylim=(-0.4, 1.06 * max(workers)))
    if 0 in counts:
        axes.axhspan(-0.4, 0.4, color=COLOURS[2], alpha=0.25, linewidth=0, label="0: a step with every gradient")


def _draw_noise(axes: Axes, chosen: Sequence[tuple[float, Waiting]]) -> None:
    known = [(time, choice.noise) for time, choice in chosen if choice.noise is not None and choice.noise > 0]
    axes.plot(*(zip(*known, strict=True) if known else ([], [])), "o", color=COLOURS[1], markersize=4)
    axes.set(ylabel="noise scale B at a choice", yscale="log" if known else "linear")
