"""What a notebook shows of runs, histories, traces and sweeps: small tables with sparklines, as HTML."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nowait.html import card, sentences, shown, sparkline, table
from nowait.recording.rows import OUTCOMES
from nowait.recording.trace import ROWS_READ_AT_ONCE

if TYPE_CHECKING:
    from nowait.html.elements import Markup
    from nowait.recording.history import History
    from nowait.recording.run import Run
    from nowait.recording.sweep import Sweep
    from nowait.recording.trace import Trace

SLOWEST = 5
"""The slowest workers that the table of a trace shows."""


def html_of_run(run: Run) -> str:
    """Return the totals of a run and its losses."""
    stats = run.stats
    header = ["loss", "", "steps", "gradients", "seconds", "steps per second", "dropped", "workers"]
    loss = float(run.history.loss[-1]) if len(run.history) else math.nan
    values = (stats.steps, stats.gradients, stats.seconds, stats.steps_per_second, stats.dropped)
    cells = [shown(loss), loss_sparkline(run), *map(shown, values), shown(len(stats.work_share))]
    state = [word for word in ("diverged", "interrupted") if getattr(stats, word)]
    note = ", ".join([stats.engine, *state])
    missed = f"the target {run.missed_target} was not reached" if run.missed_target else ""
    words = sentences([stats.advice, missed, stats.decision, stats.diagnosis])
    return card(method_of(run), table(header, [cells]), words, note=note)


def method_of(run: Run) -> str:
    """Return the name of the run's method; "Run" if it is not recorded."""
    method = run.config.get("method")
    return str(method.get("type", "Run")) if isinstance(method, dict) else "Run"


def loss_sparkline(run: Run) -> Markup:
    """Return the losses of a run as a sparkline."""
    return sparkline(run.history.loss.tolist(), "loss at every evaluation")


def html_of_history(history: History) -> str:
    """Return the first, last and lowest value of the loss and of every metric."""
    curves = {"loss": history.loss, **history.metrics}
    rows = []
    for name, values in curves.items():
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
        ends = (float(values[0]), float(values[-1])) if len(values) else (math.nan, math.nan)
        rows.append([name, sparkline(values.tolist(), name), *map(shown, (*ends, low, high))])
    title = f"History of {len(history):,} evaluations"
    note = f"up to step {int(history.step[-1]):,}" if len(history) else ""
    return card(title, table(["", "", "first", "last", "lowest", "highest"], rows), note=note)


def html_of_trace(trace: Trace) -> str:
    """Return the number of arrivals, what became of them, and the slowest workers."""
    title = f"Trace of {len(trace):,} arrivals"
    note = f"{trace.num_workers:,} workers, {shown(trace.seconds)} s"
    if trace.kept != "full":
        note += f", {trace.kept}: {trace.num_arrivals:,} gradients arrived"
    if not len(trace) or len(trace) > ROWS_READ_AT_ONCE:
        return card(title, note=note)
    rows = trace.arrivals
    counts = np.bincount(rows["outcome"], minlength=len(OUTCOMES))
    outcomes = ", ".join(f"{count:,} {name}" for name, count in zip(OUTCOMES, counts, strict=True) if count)
    delay = f"{outcomes}; delay median {np.median(rows['delay']):,.0f}, maximum {rows['delay'].max():,}"
    return card(title, sentences([delay]), _slowest_workers(trace), note=note)


def _slowest_workers(trace: Trace) -> Markup:
    """Return a table of the workers with the most seconds per gradient; first those that delivered none."""
    rows, workers = trace.arrivals, trace.by_worker()
    delays = np.bincount(rows["worker"], weights=rows["delay"])
    chosen = sorted(workers, key=lambda worker: (worker.gradients > 0, -worker.seconds_per_gradient))[:SLOWEST]
    lines = []
    for worker in chosen:
        number, count = worker.worker, worker.gradients
        means = (worker.seconds_per_gradient, float(delays[number]) / count) if count else (math.nan, math.nan)
        lines.append([f"worker {number}", shown(count), *map(shown, means)])
    first = "slowest workers" if len(workers) > len(chosen) else "slowest first"
    return table([first, "gradients", "seconds per gradient", "mean delay"], lines)


def html_of_sweep(sweep: Sweep) -> str:
    """Return the final losses by stepsize; the best stepsize is marked."""
    lost = sweep.diverged.any(axis=1)
    best = None if lost.all() else sweep.best_place
    rows = []
    for place in np.argsort(sweep.stepsizes).tolist():
        final, count = sweep.decisive[place], int(sweep.diverged[place].sum())
        result = f"{count} of {len(sweep.seeds)} diverged" if count else ("best" if place == best else "")
        curve = sparkline(sweep.curves[place, 0].tolist(), "loss at every evaluation, first seed")
        losses = (float(np.median(final)), float(final.min()), float(final.max()))
        rows.append([shown(float(sweep.stepsizes[place])), curve, *map(shown, losses), result])
    name = "final loss" if sweep.answers is None else "loss of the output"
    header = ["stepsize", "", f"{name} (median)", "lowest", "highest", ""]
    note = f"{len(sweep.stepsizes)} stepsizes, {len(sweep.seeds)} seeds, {sweep.engine}"
    return card("Sweep", table(header, rows), sentences([sweep.advice]), note=note)
