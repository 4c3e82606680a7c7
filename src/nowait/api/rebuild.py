"""Rebuilds the parts of a run from their descriptions in ``config.json``.

A run's folder is not trusted, so a description can only name classes on the list below. They compute with the numbers
they are given; none of them opens files, imports modules or runs code from the description.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

from nowait import core, methods, speeds
from nowait.core import L1, Ball, Box, Method, Output, Schedule, Stepsize, Update
from nowait.methods import AdaptiveStrength, WindowRule
from nowait.speeds import Speeds

NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
BASES = (Method, Update, Output, Stepsize, Schedule, Speeds, WindowRule, L1, Ball, Box, AdaptiveStrength)
"""Only these classes and their subclasses are made from a description."""
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
        raise ValueError(f"the {what} of the run is a {name!s:.100}, which is not of this library: pass {what}= again")
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
