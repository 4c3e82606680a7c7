"""Schedules named on the command line: ``cosine``, ``warmup:steps=100,cosine:final=0.1``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING
from functools import reduce
from operator import mul
from typing import Any

from nowait import schedules
from nowait.cli.names import check_parameters, parameters_of, short_name, split_list, value_of
from nowait.core import Schedule


def constant() -> None:
    """The stepsize of the rule at every step, which is the default."""


SCHEDULES: dict[str, Callable[..., Schedule | None]] = {
    "constant": constant,
    "warmup": schedules.warmup,
    "linear": schedules.linear,
    "cosine": schedules.cosine,
}
FALLING = ("linear", "cosine")
"""Their ``steps`` are those of the run by default."""


def parse_schedule(text: str | None, steps: int | None) -> Schedule | None:
    """Return the product of the schedules in a list with commas; None without one. ``steps`` are those of the run.

    >>> parse_schedule("warmup:steps=10,cosine:final=0.1", steps=500)
    ScheduleProduct(first=Warmup(steps=10), second=CosineDecay(steps=500, final=0.1))
    """
    if text is None:
        return None
    made = [_parsed(part, steps) for part in split_list([text])]
    factors = [schedule for schedule in made if schedule is not None]
    return reduce(mul, factors) if factors else None


def schedule_parameters(make: Callable[..., Schedule | None]) -> dict[str, Any]:
    """Return the parameters of a schedule, and their defaults; ``MISSING`` for those without."""
    items = inspect.signature(make).parameters.items()
    return {name: MISSING if item.default is item.empty else item.default for name, item in items}


def _parsed(text: str, steps: int | None) -> Schedule | None:
    given, _, rest = text.partition(":")
    name = short_name(given, SCHEDULES, "schedule")
    options = parameters_of(rest)
    known = schedule_parameters(SCHEDULES[name])
    check_parameters(options, known, name)
    values = {option: value_of(value) for option, value in options.items()}
    if "steps" in known and "steps" not in values:
        values["steps"] = _steps_of(name, steps)
    return SCHEDULES[name](**values)


def _steps_of(name: str, steps: int | None) -> int:
    """Return the steps of a schedule that is not given any: those of the run, if it falls until the run ends."""
    if name not in FALLING:
        raise ValueError(f"{name} needs steps: write {name}:steps=100")
    if steps is None:
        raise ValueError(f"{name} needs steps, because the run has none: write {name}:steps=1000")
    return steps
