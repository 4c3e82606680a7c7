"""The tolerance command: loss against delay, per optimiser, as tables and a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import nowait as nw
from nowait.cli.cluster import make_folder
from nowait.cli.exits import kept_study, on_interrupt, refused_as_options
from nowait.cli.methods import RULES
from nowait.cli.names import option_of, short_name, value_of
from nowait.cli.problems import load_problem, remembered
from nowait.cli.results import open_console, print_json
from nowait.cli.schedules import parse_schedule
from nowait.cli.texts import whole_numbers
from nowait.cli.updates import parse_updates
from nowait.recording.files import write_json
from nowait.studies.tolerance import checked_delays, checked_patterns, checked_start, checked_updates
from nowait.studies.tolerance_text import short_names
from nowait.studies.tolerated import FIGURE


@final
@dataclass(frozen=True)
class ToleranceSettings:
    """The options of the command."""

    problem: str | None
    loss: str
    batch_size: int
    update: list[str]
    delays: str
    pattern: list[str] | None
    steps: int
    rule: str
    schedule: str
    retune: bool
    trials: int
    start: str | None
    keep: float
    seeds: int
    seed: int
    folder: Path
    as_json: bool

    @property
    def resolved(self) -> dict[str, Any]:
        """The options as config.json stores them."""
        values = {name: str(value) if isinstance(value, Path) else value for name, value in vars(self).items()}
        return values | {"problem": remembered(self.problem)}


def run_tolerance(asked: ToleranceSettings) -> nw.Tolerance:
    """Make the runs, print the tables, and write the data and the figure into the folder."""
    with refused_as_options():
        problem, arguments = _checked(asked)
        make_folder(asked.folder)
    write_json(asked.folder / "config.json", asked.resolved)
    console = open_console(stderr=asked.as_json)
    with on_interrupt(lambda: kept_study(asked.folder, "config.json")):
        try:
            found = nw.tolerance(problem, **arguments, tell=lambda words: console.print(words, highlight=False))
        except nw.Interrupted as error:
            if error.tolerance is not None and error.tolerance.rows:
                _tell(error.tolerance, asked)
            raise
        _tell(found, asked)
    return found


def _checked(asked: ToleranceSettings) -> tuple[Any, dict[str, Any]]:
    """Return the problem and the arguments of ``nw.tolerance``; raise before any work for what it would refuse."""
    updates = parse_updates(asked.update)
    arguments = {
        "updates": updates,
        "steps": asked.steps,
        "delays": checked_delays(whole_numbers(asked.delays, "--delays"), asked.steps),
        "patterns": checked_patterns(asked.pattern or None),
        "rule": _rule(asked.rule, asked.schedule, asked.steps),
        "retune": asked.retune,
        "trials": asked.trials,
        "start": checked_start(_start(asked.start, tuple(updates)), updates),
        "keep": asked.keep,
        "seeds": asked.seeds,
        "seed": asked.seed,
    }
    problem = load_problem(asked.problem, asked.loss, asked.batch_size)
    checked_updates(updates, problem)
    return problem, arguments


def _rule(name: str, schedule: str, steps: int) -> nw.Stepsize:
    rule = RULES[short_name(name, RULES, "stepsize rule")](1.0)
    factor = parse_schedule(schedule, steps)
    return rule if factor is None else nw.Scheduled(rule, factor)


def _start(text: str | None, updates: tuple[str, ...]) -> dict[str, float]:
    """Return the first stepsizes of updates: of ``sgd=0.1,adamw=0.001``, where names may be without options."""
    full = {short: name for name, short in short_names(updates).items()}
    named = [_named_size(item.strip()) for item in (text or "").split(",") if item]
    return {full.get(name, name): size for name, size in named}


def _named_size(item: str) -> tuple[str, float]:
    """Return the name and the stepsize of ``lmo:ball=sign=0.1``: the last equals sign is between them."""
    option_of(item)  # raises if there is none
    name, _, size = item.rpartition("=")
    return name, float(value_of(size))


def _tell(found: nw.Tolerance, asked: ToleranceSettings) -> None:
    """Print the result, and write it into the folder."""
    if asked.as_json:
        print_json(found.as_dictionary())
    else:
        print(found)
    found.save(asked.folder)
    words = f"Figure: {asked.folder / FIGURE}; the data are beside it, as JSON and CSV."
    open_console(stderr=asked.as_json).print(words, highlight=False)
