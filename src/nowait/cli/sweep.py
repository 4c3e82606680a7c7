"""The sweep command: a grid of stepsizes, a table, a figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from rich.console import Console
from rich.table import Table

import nowait as nw
from nowait.cli.cluster import JITTER, check_new_folder, make_folder, mixed_cluster
from nowait.cli.exits import on_interrupt, refused_as_options
from nowait.cli.layout import number_table
from nowait.cli.problems import load_problem, unit_of
from nowait.cli.results import open_console, print_json
from nowait.cli.stepping import Stepping, stepping_of
from nowait.cli.texts import numbers
from nowait.core import Method
from nowait.core.types import Floats
from nowait.engines.simulator.gpu.device import checked_name, find_device
from nowait.recording.files import write_json
from nowait.recording.sweep_folder import HEADER


@final
@dataclass(frozen=True)
class SweepSettings:
    """The options of the command."""

    method: str
    update: str | None
    schedule: str | None
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
    with refused_as_options():
        stepping, problem, given = _checked(settings)
    medians = mixed_cluster(settings.workers, settings.straggler, seed=0)
    stepsizes = np.geomspace(1e-3, 1.0, 9) * unit_of(problem) if given is None else given
    asked = {name: str(value) if isinstance(value, Path) else value for name, value in vars(settings).items()}
    write_json(settings.folder / "config.json", asked | {"stepsizes": stepsizes.tolist()})
    console = open_console(stderr=settings.as_json)
    console.print(
        f"{problem!r}; {settings.method} with {settings.workers} simulated workers, {medians.min():.2f} to "
        f"{medians.max():.2f} s per gradient; {len(stepsizes)} stepsizes, {settings.seeds} seeds, "
        f"{settings.gradients:,} gradients each. {stepping.words_on_update(problem)}",
        highlight=False,
        markup=False,
    )
    words = f"The complete runs are kept: the same command with --folder {settings.folder} makes the others."
    with on_interrupt(lambda: words):
        sweep = nw.sweep(
            problem,
            stepping.make,
            nw.speeds.LogNormal(medians.tolist(), sigma=JITTER),
            stepsizes=stepsizes,
            seeds=range(settings.seeds),
            gradients=settings.gradients,
            update=stepping.update,
            device=settings.device,
            folder=settings.folder,
        )
    _tell(console, sweep, settings)
    return sweep


def _checked(settings: SweepSettings) -> tuple[Stepping, Any, Floats | None]:
    """Check all options and create the folder. Return method and update, the problem, and the stepsizes given."""
    _check_device(settings.device)
    stepping = stepping_of(settings.method, settings.update, settings.schedule, steps=None)
    given = _given_stepsizes(settings.stepsizes, stepping.make)
    continued = (settings.folder / HEADER).is_file()
    if not continued:
        check_new_folder(settings.folder)
    problem = load_problem(settings.problem, settings.loss, settings.batch_size)
    if given is None:
        stepping.check_default_stepsize(problem, "--stepsizes")
    if not continued:
        make_folder(settings.folder)
    return stepping, problem, given


def _tell(console: Console, sweep: nw.Sweep, settings: SweepSettings) -> None:
    """Print the result, and write the figure and the report."""
    if settings.as_json:
        best = None if sweep.diverged.any(axis=1).all() else sweep.best
        print_json({"stepsizes": sweep.stepsizes, "final": sweep.final, "diverged": sweep.diverged, "best": best})
    else:
        console.print(_table(sweep))
    figure = settings.folder / "sweep.png"
    nw.plots.sweep(sweep).savefig(figure, dpi=150)
    report = nw.report(sweep, settings.folder / "report.html")
    console.print(f"Report: {report}; figure: {figure}", highlight=False, markup=False)


def _check_device(name: str) -> None:
    """Raise a ValueError if there is no such device, before anything is computed or written."""
    try:
        if checked_name(name) != "cpu":
            find_device(name)
    except (ImportError, RuntimeError) as error:
        raise ValueError(str(error)) from None


def _given_stepsizes(text: str | None, make: Callable[[float], Method]) -> Floats | None:
    """Return the stepsizes given; None for a grid below 1/L."""
    if text is None:
        return None
    sizes = numbers(text, "--stepsizes")
    if len(set(sizes)) < len(sizes):
        raise ValueError(f"--stepsizes has one of them twice: {text}")
    for size in sizes:
        make(size)  # raises if it is refused
    return np.array(sizes)


def _table(sweep: nw.Sweep) -> Table:
    headings = ["stepsize", "median", "lowest", "highest", "diverged", ""]
    table = number_table("Final loss over the seeds", [], headings)
    some_best = not sweep.diverged.any(axis=1).all()
    for place, size in enumerate(sweep.stepsizes):
        final, diverged = sweep.final[place], int(sweep.diverged[place].sum())
        shown = [
            f"{value:.4g}" if np.isfinite(value) else "–" for value in (np.median(final), final.min(), final.max())
        ]
        best = "best" if some_best and place == sweep.best_place else ""
        table.add_row(f"{size:.3g}", *shown, f"{diverged} of {len(sweep.seeds)}" if diverged else "", best)
    return table
