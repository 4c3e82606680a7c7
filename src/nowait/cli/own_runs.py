"""Runs of a method from a Python file: what made the method, as the labels in the run's ``config.json`` say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, final

from nowait.api.rebuild import fields_of
from nowait.api.recorded import entry
from nowait.cli.consent import confirm_method
from nowait.cli.methods import parameters_in, parse_method
from nowait.cli.problems import COMMAND
from nowait.cli.stepping import stepping_of
from nowait.core import Method, checks
from nowait.recording import describe
from nowait.studies.own_code import TRIED, names_a_file


@final
@dataclass(frozen=True)
class Made:
    """The options of the command that made the method of a run."""

    method: str
    schedule: str | None
    steps: int | None
    stepsize: float

    def method_again(self, text: str) -> Method:
        """Return the method with the stepsize and the schedule of the run."""
        return stepping_of(text, None, self.schedule, self.steps).make(self.stepsize)


def method_of(folder: Path, config: dict[str, Any], named: str | None) -> Method | None:
    """Return the method of a run that is named, or that the folder names in a file and the user confirms.

    None if it is a method of this library, which ``config.json`` describes.
    """
    if named is not None and not names_a_file(named):
        raise ValueError(f"--method is for a method of your own, file.py:Class, got {named!r}: omit it for others")
    made = entry({"labels": {}} | config, "labels", _made)
    if named is None and (made is None or not names_a_file(made.method)):
        return None
    if named is None and made is not None:
        confirm_method(folder, made.method)
    return _method_again(config, made, made.method if named is None and made is not None else str(named))


def stepsize_of(config: dict[str, Any]) -> float | None:
    """Return the stepsize that a command gave to the method of a run; None if no command made the run."""
    made = entry({"labels": {}} | config, "labels", _made)
    return None if made is None else made.stepsize


def _method_again(config: dict[str, Any], made: Made | None, text: str) -> Method:
    """Return the method of a run: a dataclass from its description, another one as the command made it."""
    had, example = config.get("method"), parse_method(text)(TRIED)
    differing = _differing(had, example, parameters_in(text))
    if differing:
        raise ValueError(f"--method {text} is not the method of the run: {differing}")
    if is_dataclass(example):
        method: Method = entry(config, "method", lambda _: type(example)(**fields_of(had, "method")))
        return method
    if made is None:
        raise ValueError(
            f"{type(example).__name__} is no dataclass, so config.json does not hold its fields: pass the method to "
            f"nw.resume or nw.replay"
        )
    return made.method_again(text)


def _differing(had: Any, example: Method, given: Iterable[str]) -> str:
    """Return what the user names and the run did not have, the class or a parameter; empty if there is nothing."""
    before, now = _without_size(had), _without_size(describe(example))
    names = [name for name in ("type", *given) if name in now and now[name] != before.get(name)]
    return f"its {names[0]} is {now[names[0]]}, that of the run was {before.get(names[0])}" if names else ""


def _without_size(description: Any) -> dict[str, Any]:
    """Return a description of a method with its stepsize rule alone, without γ and without the schedule."""
    if not isinstance(description, dict):
        return {}
    rule = description.get("stepsize")
    while isinstance(rule, dict) and "rule" in rule:
        rule = rule["rule"]
    return description | {"stepsize": rule.get("type") if isinstance(rule, dict) else None}


def _made(labels: Any) -> Made | None:
    """Return the options that a command stored in the labels; None if no command did."""
    asked = labels.get(COMMAND) if isinstance(labels, dict) else None
    if not isinstance(asked, dict) or "method" not in asked or "stepsize" not in asked:
        return None
    method, schedule, steps = asked["method"], asked.get("schedule"), asked.get("steps")
    if not isinstance(method, str) or not isinstance(schedule, str | None) or not isinstance(steps, int | None):
        raise ValueError(f"method and schedule must be text, got {method!r:.80} and {schedule!r:.80}")
    return Made(method, schedule, steps, checks.positive(asked["stepsize"], "stepsize", "params would not move"))
