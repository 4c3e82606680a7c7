"""The tune command: short trials of the stepsize, a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from rich.table import Table

import nowait as nw
from nowait.cli.exits import refused_as_options
from nowait.cli.layout import WIDEST_NAME, broken, number_table
from nowait.cli.methods import parameters
from nowait.cli.problems import load_problem
from nowait.cli.records import speeds_of
from nowait.cli.results import open_console, print_json
from nowait.cli.stepping import Stepping, stepping_of
from nowait.cli.texts import numbers, target_of

OWN_MOMENTUM = ("momentum", "beta")
"""What methods that make their own update call their momentum."""


@final
@dataclass(frozen=True)
class TuneSettings:
    """The options of the command."""

    problem: str | None
    loss: str
    batch_size: int
    method: str
    stepsize: float | None
    update: str | None
    schedule: str | None
    momentum: str | None
    trials: int
    workers: int | None
    speeds: str | None
    steps: int | None
    gradients: int | None
    seconds: float | None
    target_loss: float | None
    target: str | None
    monitor: str
    evaluate_every: int | None
    seed: int
    as_json: bool


def run_tune(asked: TuneSettings, engine: str | nw.RayCluster) -> nw.Tuning:
    """Make the trials and print them."""
    with refused_as_options():
        if asked.steps is None and asked.gradients is None and asked.seconds is None:
            raise ValueError("say when a trial ends: --steps, --gradients or --seconds")
        stepping = stepping_of(asked.method, asked.update, asked.schedule, asked.steps)
        momenta = None if asked.momentum is None else numbers(asked.momentum, "--momentum")
        make = stepping.make if momenta is None else _with_momentum(stepping)
        where = _where(asked, engine)
        problem = load_problem(asked.problem, asked.loss, asked.batch_size)
        if asked.stepsize is None:
            stepping.check_default_stepsize(problem, "--stepsize, the first to try,")
    console = open_console(stderr=asked.as_json)
    words = stepping.words_on_update(problem) if momenta is None else "The momentum is tuned too."
    console.print(words, highlight=False)
    found = nw.tune(
        problem,
        make,
        **where,
        trials=asked.trials,
        steps=asked.steps,
        gradients=asked.gradients,
        seconds=asked.seconds,
        target_loss=asked.target_loss,
        target=target_of(asked.target),
        start=asked.stepsize,
        momenta=momenta,
        monitor=asked.monitor,
        update=stepping.update,
        evaluate_every=asked.evaluate_every,
        seed=asked.seed,
        tell=lambda words: console.print(words, highlight=False),
    )
    if asked.as_json:
        print_json(as_dictionary(found))
    else:
        console.print(_table(found))
        console.print(_sentence(found), highlight=False)
    return found


def as_dictionary(found: nw.Tuning) -> dict[str, Any]:
    """Return the result as text and numbers."""
    names = ("stepsize", "momentum", "value", "seconds_to_target", "diverged", "steps", "seconds", "mean_delay")
    return {
        "stepsize": None if found.diverged else found.stepsize,
        "momentum": None if found.diverged else found.momentum,
        "monitor": found.monitor.name,
        "advice": found.advice,
        "trials": [{name: getattr(trial, name) for name in names} for trial in found.trials],
    }


def _with_momentum(stepping: Stepping) -> Callable[[float, float], Any]:
    """Return a function of stepsize and momentum: the method's own momentum, or Nesterov's as the update."""
    example = stepping.make(1.0)
    if stepping.update is not None:
        raise ValueError("--momentum tunes the momentum of the method, or Nesterov's: omit --update")
    own = OWN_MOMENTUM if example.makes_its_own_update else OWN_MOMENTUM[:1]
    name = next((name for name in own if name in parameters(type(example))), None)
    if name is None and not example.makes_its_own_update:
        return lambda size, momentum: (stepping.make(size), nw.Nesterov(momentum))
    if name is None:
        raise ValueError(f"--momentum: {type(example).__name__} makes its own update, which has no momentum to tune")
    return lambda size, momentum: dataclasses.replace(stepping.make(size), **{name: momentum})  # type: ignore[type-var]


def _where(asked: TuneSettings, engine: str | nw.RayCluster) -> dict[str, Any]:
    """Return the arguments of ``nw.tune`` that say where trials run."""
    if asked.speeds is None:
        return {"workers": asked.workers, "engine": engine}
    if asked.workers is not None or engine != "processes":
        raise ValueError("--speeds simulates the workers: omit --workers and --engine")
    return {"speeds": speeds_of(asked.speeds, "--speeds")}


def _sentence(found: nw.Tuning) -> str:
    if found.diverged:
        return "No stepsize was found."
    momentum = "" if found.momentum is None else f", momentum {found.momentum:g}"
    return f"Best stepsize: {found.stepsize:.4g}{momentum}" + (f" ({found.advice})" if found.advice else "")


def _table(found: nw.Tuning) -> Table:
    tuned = found.momentum is not None
    metric = broken(found.monitor.name, WIDEST_NAME)
    last = "momen-\ntum" if tuned else "mean\ndelay"  # both do not fit into 80 characters
    headings = ["stepsize", metric, "seconds to\nthe target", "steps", last, ""]
    table = number_table("Trials, the largest stepsize first", [], headings)
    for trial in sorted(found.trials, key=lambda one: -one.stepsize):
        best = "best" if trial is found.best and not found.diverged else ""
        table.add_row(
            f"{trial.stepsize:.4g}",
            "diverged" if trial.diverged else f"{trial.value:.4g}",
            f"{trial.seconds_to_target:.4g}" if math.isfinite(trial.seconds_to_target) else "–",
            f"{trial.steps:,}",
            f"{trial.momentum:g}" if tuned else f"{trial.mean_delay:.1f}",
            best,
        )
    return table
