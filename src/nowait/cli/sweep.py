"""The sweep command: a grid of stepsizes, a table, a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from rich.table import Table

import nowait as nw
from nowait.cli.cluster import make_folder, mixed_cluster
from nowait.cli.exits import on_interrupt
from nowait.cli.methods import parse_method
from nowait.cli.problems import load_problem, unit_of
from nowait.cli.results import open_console, print_json
from nowait.core.types import Floats
from nowait.engines.simulator.gpu.device import checked_name, find_device
from nowait.recording.files import write_json
from nowait.recording.sweep_folder import HEADER


@final
@dataclass(frozen=True)
class SweepSettings:
    """The options of the command."""

    method: str
    problem: str | None
    loss: str
    batch_size: int
    workers: int
    straggler: float
    gradients: int
    stepsizes: str | None
    seeds: int
    device: str
    folder: Path
    as_json: bool


def run_sweep(settings: SweepSettings) -> nw.Sweep:
    """Load the problem, make the runs, and print the table and the figure."""
    _check_device(settings.device)
    make = parse_method(settings.method)
    problem = load_problem(settings.problem, settings.loss, settings.batch_size)
    medians = mixed_cluster(settings.workers, settings.straggler, seed=0)
    speeds = nw.speeds.LogNormal(medians.tolist(), sigma=0.2)
    stepsizes = _stepsizes(settings.stepsizes, problem)
    make(float(stepsizes[0]))
    if not (settings.folder / HEADER).is_file():  # otherwise the sweep in it is continued
        make_folder(settings.folder)
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(settings).items()}
    write_json(settings.folder / "config.json", asked | {"stepsizes": stepsizes.tolist()})
    console = open_console(stderr=settings.as_json)
    console.print(
        f"{problem!r}; {settings.method} with {settings.workers} simulated workers, {medians.min():.2f} to "
        f"{medians.max():.2f} s per gradient; {len(stepsizes)} stepsizes, {settings.seeds} seeds, "
        f"{settings.gradients:,} gradients each.",
        highlight=False,
        markup=False,
    )
    words = f"The complete runs are kept: the same command with --folder {settings.folder} makes the others."
    with on_interrupt(lambda: words):
        sweep = nw.sweep(
            problem,
            make,
            speeds,
            stepsizes=stepsizes,
            seeds=range(settings.seeds),
            gradients=settings.gradients,
            device=settings.device,
            folder=settings.folder,
        )
    if settings.as_json:
        best = None if sweep.diverged.any(axis=1).all() else sweep.best
        print_json({"stepsizes": sweep.stepsizes, "final": sweep.final, "diverged": sweep.diverged, "best": best})
    else:
        console.print(_table(sweep))
    figure = settings.folder / "sweep.png"
    nw.plots.sweep(sweep).savefig(figure, dpi=150)
    report = nw.report(sweep, settings.folder / "report.html")
    console.print(f"Report: {report}; figure: {figure}", highlight=False, markup=False)
    return sweep


def _check_device(name: str) -> None:
    """Raise a ValueError if there is no such device, before anything is computed or written."""
    try:
        if checked_name(name) != "cpu":
            find_device(name)
    except (ImportError, RuntimeError) as error:
        raise ValueError(str(error)) from None


def _stepsizes(text: str | None, problem: Any) -> Floats:
    """Return the stepsizes given, or a grid below 1/L."""
    if text is None:
        return np.asarray(np.geomspace(1e-3, 1.0, 9) * unit_of(problem))
    try:
        sizes = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--stepsizes must be numbers with commas between them, got {text!r}") from None
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"--stepsizes has one of them twice: {text}")
    return np.array(sizes)


def _table(sweep: nw.Sweep) -> Table:
    table = Table(title="Final loss over the seeds")
    for heading in ("stepsize", "median", "lowest", "highest", "diverged", ""):
        table.add_column(heading, justify="right" if heading else "left")
    some_best = not sweep.diverged.any(axis=1).all()
    for place, size in enumerate(sweep.stepsizes):
        final, diverged = sweep.final[place], int(sweep.diverged[place].sum())
        shown = [
            f"{value:.4g}" if np.isfinite(value) else "–" for value in (np.median(final), final.min(), final.max())
        ]
        best = "best" if some_best and place == sweep.best_place else ""
        table.add_row(f"{size:.3g}", *shown, f"{diverged} of {len(sweep.seeds)}" if diverged else "", best)
    return table
