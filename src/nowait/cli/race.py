"""The simulated race: tune, run, show."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import nowait as nw
from nowait.cli.cluster import make_folder, mixed_cluster
from nowait.core.types import Floats

TUNING_SHARE = 0.2
"""The part of the budget that every stepsize of the grid is tried for."""
Make = Callable[[float], nw.Method]


@final
@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    workers: int
    gradients: int
    straggler: float
    batch_size: int
    seed: int
    folder: Path


@final
@dataclass(frozen=True)
class Entrant:
    """A method in the race and the stepsizes to try, in units of 1/L."""

    name: str
    make: Make
    grid: list[float]


def entrants(workers: int) -> list[Entrant]:
    """The three of the paper's Figure 1. A single gradient of M in flight takes about 1/M of a minibatch's step."""
    whole = [2.0 ** (half / 2) for half in range(2, -3, -1)]
    parts = [2.0 ** (half / 2) / workers for half in range(4, -3, -1)]
    return [
        Entrant("Minibatch", lambda size: nw.MinibatchSGD(nw.Constant(size)), whole),
        Entrant("Async, constant", lambda size: nw.AsynchronousSGD(nw.Constant(size)), parts),
        Entrant("Async, adaptive", lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size)), parts),
    ]


def run_race(settings: Settings) -> dict[str, nw.Run]:
    """The whole race: problem, tuning, runs, table, figure."""
    make_folder(settings.folder)
    logging.getLogger("nowait").setLevel(logging.ERROR)  # stepsizes that diverge are part of the tuning, and shown
    console = Console()
    problem = nw.problems.LeastSquares.random(batch_size=settings.batch_size, seed=42)
    medians = mixed_cluster(settings.workers, settings.straggler, settings.seed)
    speeds = nw.speeds.LogNormal(medians.tolist(), sigma=0.2)
    seconds = settings.gradients / float((1 / medians).sum())
    smoothness = problem.constants().L
    assert smoothness is not None
    _introduce(console, problem, medians, seconds)
    runs: dict[str, nw.Run] = {}
    field = entrants(settings.workers)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("racing", total=2 * len(field))
        for entrant in field:
            tuning = nw.sweep(
                problem,
                entrant.make,
                speeds,
                stepsizes=[multiple / smoothness for multiple in entrant.grid],
                seeds=[settings.seed],
                seconds=seconds * TUNING_SHARE,
                progress=False,
            )
            bar.advance(task)
            _show_tuning(console, entrant.name, tuning)
            runs[entrant.name] = nw.simulate(
                problem, entrant.make(tuning.best), speeds, seconds=seconds, seed=settings.seed, progress=False
            )
            bar.advance(task)
    lowest = problem.minimum()[1]
    console.print(_table(runs, lowest))
    _save(console, runs, lowest, settings.folder)
    return runs


def _final_loss(run: nw.Run) -> float:
    return math.inf if run.stats.diverged else float(run.history.loss[-1])


def _introduce(console: Console, problem: nw.problems.LeastSquares, medians: Floats, seconds: float) -> None:
    fast, slow = np.sort(medians)[[0, -1]]
    console.print(
        f"Least squares, {problem.samples:,} rows, {problem.dimension} dimensions, batch {problem.batch_size}; "
        f"{len(medians)} simulated workers, {fast:.2f} to {slow:.2f} s per gradient (lognormal); "
        f"every method gets {seconds:,.0f} s of virtual time.",
    )


def _show_tuning(console: Console, name: str, tuning: nw.Sweep) -> None:
    shown = ", ".join(
        f"{size:.3g}" + (" (diverged)" if diverged else "")
        for size, diverged in zip(tuning.stepsizes, tuning.diverged[:, 0], strict=True)
    )
    console.print(f"{name}: of the stepsizes {shown} the best is {tuning.best:.3g}", highlight=False)
    if tuning.advice:
        console.print(f"  {tuning.advice}", style="yellow", highlight=False)


def _table(runs: dict[str, nw.Run], lowest: float) -> Table:
    table = Table(title="The same virtual time for every method")
    for heading in ("method", "gradients", "steps", "error", "time to first's", "delay median, mean, max"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=heading == "method")
    target = _final_loss(next(iter(runs.values())))
    for name, run in runs.items():
        delay = run.trace.delay
        table.add_row(
            name,
            f"{run.stats.gradients:,}",
            f"{run.stats.steps:,}",
            "diverged" if run.stats.diverged else f"{run.history.loss[-1] - lowest:.3g}",
            _time_to(run, target),
            f"{np.median(delay):.0f}, {delay.mean():.1f}, {delay.max()}" if len(delay) else "none arrived",
        )
    return table


def _time_to(run: nw.Run, target: float) -> str:
    reached = np.flatnonzero(run.history.loss <= target)
    return f"{run.history.time[reached[0]]:,.0f} s" if len(reached) else "not reached"


def _save(console: Console, runs: dict[str, nw.Run], lowest: float, folder: Path) -> None:
    for name, run in runs.items():
        run.save(folder / name.lower().replace(", ", "-"))
    nw.plots.race(runs, minimum=lowest).savefig(folder / "race.png", dpi=150)
    console.print(f"Figure: {folder / 'race.png'}, runs beside it", highlight=False)
