"""The plan command: what asynchrony would gain here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.table import Table

import nowait as nw
from nowait.cli.exits import refused_as_options
from nowait.cli.layout import broken, number_table
from nowait.cli.methods import parse_methods
from nowait.cli.problems import load_problem
from nowait.cli.records import record_of, speeds_of
from nowait.cli.results import open_console, plain, print_json
from nowait.cli.texts import numbers
from nowait.speeds.reading import is_run_folder
from nowait.studies import Advice, plan

LONGEST_RANGE = 13
"""A longer range of seconds takes two lines."""


@final
@dataclass(frozen=True)
class PlanSettings:
    """The options of the command."""

    seconds_per_gradient: str | None
    trace: str | None
    speeds: str | None
    workers: int | None
    method: list[str]
    probe: float
    problem: str | None
    loss: str
    batch_size: int
    target_loss: float | None
    gradients: int | None
    seeds: int | None
    seed: int
    as_json: bool


def run_plan(asked: PlanSettings) -> Advice:
    """Plan and print."""
    with refused_as_options():
        _check_sources(asked)
        methods, speeds, problem = parse_methods(asked.method), _speeds(asked), _problem(asked)
    advice = plan(
        problem,
        **speeds,
        methods=methods or None,
        probe_seconds=asked.probe,
        target_loss=asked.target_loss,
        gradients=asked.gradients,
        seeds=asked.seeds,
        seed=asked.seed,
    )
    if asked.as_json:
        print_json(as_dictionary(advice))
    else:
        _print(open_console(), advice)
    return advice


def _check_sources(asked: PlanSettings) -> None:
    """Raise unless the speeds come from one source."""
    sources = (asked.seconds_per_gradient, asked.trace, asked.speeds, asked.workers)
    if sum(source is not None for source in sources) != 1:
        raise ValueError(
            "give the speeds by one of --seconds-per-gradient 1,1,1,10, --trace FILE (a recorded job, or the "
            "folder of a run), --speeds file.py:name (a speed model of your own) and --workers N (a probe of this "
            "machine)"
        )


def _problem(asked: PlanSettings) -> Any:
    """Return the problem; None for the one of ``nw.plan``."""
    wants_problem = asked.problem is not None or asked.workers is not None
    return load_problem(asked.problem, asked.loss, asked.batch_size) if wants_problem else None


def _speeds(asked: PlanSettings) -> dict[str, Any]:
    """Return the argument of ``nw.plan`` that gives the speeds."""
    if asked.workers is not None:
        return {"workers": asked.workers}
    if asked.seconds_per_gradient is not None:
        seconds = numbers(asked.seconds_per_gradient, "--seconds-per-gradient")
        nw.theory.speedup(seconds)  # raises if one of them is refused
        return {"seconds_per_gradient": seconds}
    if asked.speeds is not None:
        return {"speeds": speeds_of(asked.speeds, "--speeds")}
    return _recorded(str(asked.trace))


def _recorded(text: str) -> dict[str, Any]:
    """Return the argument of ``nw.plan`` for a recorded job: a trace of ours tells more than the times alone."""
    if is_run_folder(Path(text)):
        return {"trace": nw.load(text).trace}
    return {"speeds": record_of([text])}


def as_dictionary(advice: Advice) -> dict[str, Any]:
    """Return the advice as text and numbers."""
    found: dict[str, Any] = plain(advice)
    for shown, one in zip(found["simulated"], advice.simulated, strict=True):
        shown |= {name: plain(getattr(one, name)) for name in ("seconds", "low", "high", "gradients")}
    found |= {
        "choice": advice.choice.method,
        "as_good": [one.method for one in advice.as_good],
        "fastest": advice.fastest.method,
        "gain": plain(advice.gain),
        "gain_range": plain(advice.gain_range),
        "asynchrony_pays": advice.asynchrony_pays,
        "synchronous_is_better": advice.synchronous_is_better,
        "drop": advice.drop,
        "advice": advice.sentences,
        "formulas": {
            "speedup": advice.speedup.speedup,
            "harmonic_mean": advice.speedup.harmonic_mean,
            "max_delay": advice.speedup.max_delay,
            "worth_removing": advice.speedup.worth_removing,
        },
    }
    return found


def _print(console: Console, advice: Advice) -> None:
    console.print(f"From {advice.source}; simulated on {advice.problem}.", highlight=False, markup=False)
    console.print(_table(advice))
    if advice.predicted:
        console.print(_predictions(advice))
    for sentence in advice.sentences:
        console.print(f"• {sentence}", highlight=False, markup=False)


def _table(advice: Advice) -> Table:
    title = f"Simulated with tuned stepsizes, to a loss of {advice.target_loss:.4g}"
    table = number_table(title, ["method"], ["stepsize", "seconds", "range", "gradients", "gain"])
    table.caption = (
        f"range: seconds with each of {len(advice.choice.times)} seeds; gain: times sooner than minibatch SGD"
    )
    for one in advice.simulated:
        if math.isinf(one.seconds):
            table.add_row(one.method, "–", f"over {advice.budget_seconds:.4g}", "–", "–", "–")
            continue
        gain = advice.minibatch.seconds / one.seconds
        shown = f"{gain:.3g} x" if math.isfinite(gain) else "–"
        between = broken(f"{one.low:.3g} – {one.high:.3g}", LONGEST_RANGE)
        table.add_row(one.method, f"{one.stepsize:.3g}", f"{one.seconds:.4g}", between, f"{one.gradients:,.0f}", shown)
    return table


def _predictions(advice: Advice) -> Table:
    title = "Predicted by the rates of the paper's Table 1 (convex), up to a common constant"
    table = number_table(title, ["method"], ["sooner than minibatch"])
    first = next(iter(advice.predicted.values()))
    for name, seconds in advice.predicted.items():
        table.add_row(name, f"{first / seconds:.3g} x")
    return table
