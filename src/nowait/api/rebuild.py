"""Rebuilds the parts of a run from their descriptions in ``config.json``.

A run's folder is not trusted, so a description can only name classes on the list below. They compute with the numbers
they are given; none of them opens files, imports modules or runs code from the description.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

from nowait import core, methods, speeds
from nowait.core import L1, Ball, Box, Method, Output, Schedule, Scheduled, Stepsize, Update
from nowait.core.capabilities import Capabilities
from nowait.methods import AdaptiveStrength, WindowRule
from nowait.speeds import Speeds

NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
BASES = (Method, Update, Output, Stepsize, Schedule, Speeds, WindowRule, L1, Ball, Box, AdaptiveStrength)
"""Only these classes and their subclasses are made from a description."""
USUAL_SCHEDULE = "UsualSchedule"
"""The name of a schedule that is not recorded, because the problem has it."""
FUSED_BEFORE = "device"
"""What ``TorchOptimizer`` did in runs whose description does not say it."""
KINDS: dict[str, type] = {"method": Method, "update": Update, "output": Output, "speeds": Speeds}
"""The class of each part of a run."""


def rebuild(description: Any, what: str) -> Any:
    """Return the object of this library that ``nowait.recording.describe`` described.

    ``what`` is the entry of ``config.json``. Any other description raises ``ValueError``.
    """
    try:
        part = _value(description, what)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"the {what} cannot be made again: {type(error).__name__}: {error}") from error
    if part is not None and not isinstance(part, KINDS[what]):
        raise ValueError(f"the {what} must be described as a {KINDS[what].__name__}, got a {type(part).__name__}")
    return part


def with_usual_schedule(description: Any, problem: Any) -> Any:
    """Return a description in which the schedule of a framework is the one that the problem has, if it is the same."""
    if isinstance(description, list):
        return [with_usual_schedule(item, problem) for item in description]
    if not isinstance(description, dict):
        return description
    if description.get("type") == USUAL_SCHEDULE:
        return _usual_schedule(description.get("factors"), problem)
    return {key: with_usual_schedule(item, problem) for key, item in description.items()}


def _usual_schedule(factors: Any, problem: Any) -> Any:
    usual = None if problem is None else Capabilities.of(problem).usual_stepsize
    rule = None if usual is None else usual()
    if not isinstance(rule, Scheduled):
        raise ValueError("the run had the schedule of a framework, but the problem has none: pass method= again")
    if not isinstance(factors, dict):
        raise ValueError("the factors of its schedule are not recorded: pass method= again")
    for step, factor in factors.items():
        if not math.isclose(rule.schedule(int(step)), factor, rel_tol=1e-9):
            raise ValueError(
                f"the problem has another schedule than the run: the factor of step {step} is "
                f"{rule.schedule(int(step)):g}, and was {factor:g}; make the trainer with the settings it had, or pass "
                f"method= again"
            )
    return rule.schedule


def fields_of(description: Any, what: str) -> dict[str, Any]:
    """Return the fields in the description of a dataclass that is not of this library, rebuilt, by name."""
    if not isinstance(description, dict):
        raise ValueError(f"the {what} must be described by the names of its fields, got {description!r:.100}")
    return {key: _value(item, what) for key, item in description.items() if key != "type"}


def _value(description: Any, what: str) -> Any:
    if isinstance(description, list):
        return [_value(item, what) for item in description]
    if isinstance(description, str):
        return NUMBERS.get(description, description)
    if not isinstance(description, dict):
        return description
    if "array" in description:
        raise ValueError(f"the {what} has an array that the run folder does not hold: pass {what}= again")
    if "type" not in description:
        return {key: _value(item, what) for key, item in description.items()}
    return _made(dict(description), what)


def _made(description: dict[str, Any], what: str) -> Any:
    name = description.pop("type")
    if name == "TorchOptimizer":
        return _torch_optimizer(description, what)
    kind = _class_of(name)
    if kind is None:
        command = f" (to nowait resume and replay: --method file.py:{name!s:.100})" if what == "method" else ""
        raise ValueError(
            f"the {what} of the run is a {name!s:.100}, which is not of this library: pass {what}= again{command}"
        )
    return kind(**{key: _value(item, what) for key, item in description.items()})


def _class_of(name: Any) -> type | None:
    """Return the class of this library with this name, or None if a description may not name it."""
    for module in (core, methods, speeds):
        if isinstance(name, str) and name in module.__all__:
            kind = getattr(module, name)
            return kind if inspect.isclass(kind) and issubclass(kind, BASES) else None
    return None


def _torch_optimizer(description: dict[str, Any], what: str) -> Any:
    from nowait.pytorch import TorchOptimizer

    kind = _optimizer_class(description.get("optimizer"), what)
    options = {"fused": FUSED_BEFORE} | _plain_options(description.get("options"), what)
    if "fused" in description:
        options["fused"] = description["fused"]
    if "scale" in description:
        options["scale"] = description["scale"]
    if "groups" in description:
        options["groups"] = _torch_groups(description["groups"], what)
    return TorchOptimizer(kind, **options)


def _torch_groups(description: Any, what: str) -> dict[str, dict[str, Any]]:
    if not isinstance(description, dict) or "type" in description:
        raise ValueError(f"the parameter groups of the run are not recorded: pass {what}= again")
    groups = {name: _plain_options(options, what) for name, options in description.items()}
    for options in groups.values():
        if "optimizer" in options:
            options["optimizer"] = _optimizer_class(options["optimizer"], what)
    return groups


def _optimizer_class(name: Any, what: str) -> Any:
    import torch

    kind = getattr(torch.optim, name, None) if isinstance(name, str) else None
    if not (inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)):
        raise ValueError(f"torch.optim has no optimiser {name!s:.100}: pass {what}= again")
    return kind


def _plain_options(options: Any, what: str) -> dict[str, Any]:
    if not isinstance(options, dict) or not all(_is_plain(option) for option in options.values()):
        raise ValueError(f"the options of an optimiser must be numbers and lists of numbers: pass {what}= again")
    return {option: _value(value, what) for option, value in options.items()}


def _is_plain(option: Any) -> bool:
    """Return True for numbers, None, text and flat lists of them."""
    items = option if isinstance(option, list) else [option]
    return all(item is None or isinstance(item, bool | int | float | str) for item in items)
