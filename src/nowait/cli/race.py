"""The race command: real workers, the paper's experiment, a table, figures and a report."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.table import Table

import nowait as nw
from nowait.cli.cluster import JITTER, make_folder, mixed_cluster, spread_cluster
from nowait.cli.exits import kept_study, on_interrupt, refused_as_options
from nowait.cli.layout import side_by_side
from nowait.cli.methods import parse_methods
from nowait.cli.problems import COMMAND, load_problem, remembered
from nowait.cli.results import open_console, print_json
from nowait.core.types import Floats
from nowait.recording import describe
from nowait.studies import Race, race
from nowait.studies.entrants import Methods, checked_entrants, paper_methods, usual_methods
from nowait.studies.findings import RaceRow
from nowait.studies.race_setup import check_engine

GRADIENTS_PER_SECOND, QUICK_GRADIENTS_PER_SECOND = 2_000, 3_000
"""Slowed workers compute about this many gradients per second in total, so that the machine is not overloaded."""
USUAL_SPREAD = 1.0
GRADIENTS, QUICK_GRADIENTS = 32_000, 7_500
"""The slowest worker delivers about 12 of the quick ones: with fewer steps of minibatch SGD, a speedup says little."""
TUNING: dict[str, Any] = {"tuning_sizes": 10}
QUICK_TUNING: dict[str, Any] = {"tuning_sizes": 7}
THOROUGH_TUNING: dict[str, Any] = {"tuning_sizes": 12, "tuning_seeds": 3, "tuning_share": 1.0}


@final
@dataclass(frozen=True)
class RaceSettings:
    """The options of the command."""

    workers: int
    methods: list[str]
    paper: bool
    engine: str | nw.RayCluster
    native: bool
    straggler: float | None
    spread: float | None
    gradients: int | None
    problem: str | None
    loss: str
    batch_size: int
    seeds: int
    seed: int
    folder: Path
    quick: bool
    thorough: bool
    as_json: bool

    @property
    def rate(self) -> int:
        """About how many gradients per second the slowed workers compute in total."""
        return QUICK_GRADIENTS_PER_SECOND if self.quick else GRADIENTS_PER_SECOND

    @property
    def tuning(self) -> dict[str, Any]:
        """How methods are tuned: arguments of ``nw.race``."""
        return THOROUGH_TUNING if self.thorough else QUICK_TUNING if self.quick else TUNING

    @property
    def resolved(self) -> dict[str, Any]:
        """The options as every run stores them."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        return values | {"problem": remembered(self.problem), "engine": describe(self.engine)}


def run_race(asked: RaceSettings, log: Callable[[str], list[nw.loggers.Logger]] | None = None) -> Race:
    """Load the problem, race, and print the table; figures and report are written to the folder."""
    with refused_as_options():
        usual: Methods = paper_methods() if asked.paper else usual_methods()
        methods: Methods = {**usual, **parse_methods(asked.methods)}
        checked_entrants(methods)
        speeds, slowdown, imitation = _workers(asked)
        check_engine(asked.engine, speeds)
        problem = load_problem(asked.problem, asked.loss, asked.batch_size)
        make_folder(asked.folder)
    console = open_console(stderr=asked.as_json)
    console.print(f"{problem!r}. {imitation}", highlight=False)
    with on_interrupt(lambda: kept_study(asked.folder)):
        found = _race(problem, methods, asked, (speeds, slowdown), console, log)
    _tell(console, found, asked)
    return found


def _race(
    problem: Any,
    methods: Methods,
    asked: RaceSettings,
    slowed: tuple[Any, dict[int, float] | None],
    console: Console,
    log: Callable[[str], list[nw.loggers.Logger]] | None,
) -> Race:
    """Race; if a signal ends it, print what was found so far."""
    speeds, slowdown = slowed
    try:
        return race(
            problem,
            methods,
            engine=asked.engine,
            workers=asked.workers,
            speeds=speeds,
            slowdown=slowdown,
            gradients=(QUICK_GRADIENTS if asked.quick else GRADIENTS) if asked.gradients is None else asked.gradients,
            seeds=range(asked.seed, asked.seed + asked.seeds),
            probe_seconds=_probe_seconds(asked),
            **asked.tuning,
            folder=asked.folder,
            labels={COMMAND: asked.resolved},
            log=log,
            tell=lambda words: console.print(words, highlight=False, markup=False),
        )
    except nw.Interrupted as error:
        if error.race is not None and error.race.runs:
            _tell(console, error.race, asked)
        raise
    finally:
        with contextlib.suppress(OSError):
            asked.folder.rmdir()  # fails, as it should, if anything was written


def _tell(console: Console, found: Race, asked: RaceSettings) -> None:
    if not asked.as_json:
        _print(console, found, asked.folder)
        return
    rows = [asdict(row) for row in found.rows]
    print_json({"interrupted": found.interrupted, "rows": rows, "findings": found.findings, "config": found.config})


def _workers(asked: RaceSettings) -> tuple[Any, dict[int, float] | None, str]:
    """Return speeds, slowdown, and a sentence about them."""
    if asked.native:
        return _native_workers(asked)
    medians, kind = _medians(asked)
    real = "" if asked.engine == "simulate" else ", in addition to the delays of this machine"
    words = f"Workers are slowed like a mixed cluster{real}: lognormal times with medians from {kind}."
    return nw.speeds.LogNormal(medians.tolist(), sigma=JITTER), None, words


def _native_workers(asked: RaceSettings) -> tuple[None, dict[int, float] | None, str]:
    if asked.engine == "simulate":
        raise ValueError("--native means real delays: it needs --engine processes or ray")
    if asked.spread is not None:
        raise ValueError("--spread slows workers, --native does not: give only one of them")
    slowest = asked.workers - 1
    slowdown = None if asked.straggler is None else {slowest: asked.straggler}
    words = "" if slowdown is None else f", but worker {slowest} is slowed {asked.straggler:g} x"
    return None, slowdown, f"Workers run at the speed of this machine{words}."


def _medians(asked: RaceSettings) -> tuple[Floats, str]:
    """Return the median seconds per gradient of slowed workers, and a few words about them."""
    if asked.straggler is None:
        medians = spread_cluster(asked.workers, USUAL_SPREAD if asked.spread is None else asked.spread)
        if asked.engine != "simulate":
            medians *= float((1 / medians).sum()) / asked.rate
        return medians, f"{medians.min():.3g} to {medians.max():.3g} s"
    if asked.spread is not None:
        raise ValueError("--spread and --straggler are two kinds of clusters: give only one of them")
    unit = 1.0 if asked.engine == "simulate" else asked.workers / asked.rate
    medians = unit * mixed_cluster(asked.workers, asked.straggler, asked.seed)
    return medians, (
        f"{medians.min():.3g} to {medians[:-1].max():.3g} s, and worker {asked.workers - 1} as a straggler with "
        f"{medians[-1]:.3g} s, {asked.straggler:g} times the median"
    )


def _probe_seconds(asked: RaceSettings) -> float:
    """Return a time in which the slowest worker delivers several gradients."""
    if asked.native:
        return 1.0 if asked.quick else 2.0
    return max(0.8 if asked.quick else 2.0, 3 * float(_medians(asked)[0].max()))


def _print(console: Console, found: Race, folder: Path) -> None:
    for table in _tables(found, console.width):
        console.print(table)
    for sentence in found.findings:
        console.print(f"• {sentence}", highlight=False, markup=False)
    console.print(f"Report: {folder / 'report.html'}; figures and runs are beside it.", highlight=False, markup=False)


def _tables(found: Race, width: int) -> Iterator[Table]:
    """Return tables with a column for every method, as many in each as fit."""
    virtual = "virtual " if found.engine == "simulate" else ""
    title = f"The same {found.seconds:.4g} {virtual}seconds for every method"
    cells = _cells_of_settings(found) | {name: [shown(row) for row in found.rows] for name, shown in CELLS.items()}
    return side_by_side(title, [row.method for row in found.rows], cells, width)


def _cells_of_settings(found: Race) -> dict[str, list[str]]:
    """Return what was tuned, if anything was: a dash where a method does not have it."""
    settings = found.config.get("settings", {})
    columns = {
        name: [settings.get(row.method, {}).get(name) for row in found.rows] for name in ("m", "momentum", "stepsize")
    }
    return {
        name: ["–" if value is None else f"{value:.3g}" for value in values]
        for name, values in columns.items()
        if any(value is not None for value in values)
    }


def _delays(row: RaceRow) -> str:
    if not math.isfinite(row.delay_mean):
        return "none arrived"
    return f"{row.delay_median:.0f}, {row.delay_mean:.1f}, {row.delay_max:,.0f}"


def _times(factor: float | None) -> str:
    return f"{factor:.3g} x" if factor is not None and math.isfinite(factor) else "–"


CELLS: dict[str, Callable[[RaceRow], str]] = {
    "gradients": lambda row: f"{row.gradients:,.0f}",
    "steps": lambda row: f"{row.steps:,.0f}",
    "seconds": lambda row: f"{row.seconds:.4g}",
    "steps per second": lambda row: f"{row.steps_per_second:,.4g}",
    "loss": lambda row: "diverged" if row.diverged else f"{row.loss:.4g}",
    "loss − F*": lambda row: "–" if row.diverged or math.isnan(row.error) else f"{row.error:.3g}",
    "delay median, mean, max": _delays,
    "dropped": lambda row: f"{row.dropped:,.0f}",
    "seconds to reach the baseline's loss": lambda row: (
        f"{row.seconds_to_first:.3g}" if math.isfinite(row.seconds_to_first) else "not reached"
    ),
    "speedup predicted": lambda row: "–" if row.expected is None else f"{row.expected} x",
    "speedup measured": lambda row: _times(row.measured),
}
"""The rows of the table."""
