"""Updates named on the command line: ``sgd,adamw,muon:beta=0.9,nesterov=false``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import nowait as nw
from nowait.cli.names import check_parameters, choice, parameters_of, short_name, value_of
from nowait.core import Update
from nowait.rules import SCALES


def adamw(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01) -> Update:
    """AdamW of PyTorch, which must be installed."""
    try:
        import torch
    except ImportError:
        raise ValueError("adamw needs PyTorch: pip install nowait[pytorch], or use adam") from None
    from nowait.pytorch import TorchOptimizer

    return TorchOptimizer(torch.optim.AdamW, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)


UPDATES: dict[str, Callable[..., Update]] = {
    "sgd": nw.Sgd,
    "momentum": nw.Momentum,
    "nesterov": nw.Nesterov,
    "adam": nw.Adam,
    "amsgrad": nw.AMSGrad,
    "adamw": adamw,
    "muon": nw.Muon,
    "lmo": nw.LMO,
    "heloco": nw.HeLoCo,
}
NOT_ON_THE_COMMAND_LINE = ("rest",)


def parse_updates(texts: Iterable[str]) -> dict[str, Update]:
    """Return the updates of one or more lists with commas, by their texts.

    A part with an equals sign and no name of its own is a further option of the update before it.

    >>> list(parse_updates(["sgd,muon:beta=0.9,nesterov=false,adam"]))
    ['sgd', 'muon:beta=0.9,nesterov=false', 'adam']
    """
    parts: list[str] = []
    for text in texts:
        for number, part in enumerate(text.split(",")):
            if number and "=" in part and ":" not in part.partition("=")[0]:
                parts[-1] += f",{part.strip()}"
            else:
                parts.append(part.strip())
    if len({part.lower() for part in parts}) < len(parts):
        raise ValueError(f"--update has one of them twice: {', '.join(parts)}")
    return {part: parse_update(part) for part in parts}


def parse_update(text: str) -> Update:
    """Return the update of a name with options: ``muon:beta=0.9,exclude=head.weight+letters.weight``.

    The name is short or that of the class. Every update takes ``scale=gradient``: a delay rule then scales the gradient
    instead of the step.
    """
    name, _, rest = text.partition(":")
    make = UPDATES[short_name(name, UPDATES, "update")]
    options = parameters_of(rest)
    scale = choice(options.pop("scale", "step"), SCALES, "scale")
    known = update_parameters(make)
    check_parameters(options, (*known, "scale"), name)
    update = make(**{option: _fitting(value, known[option]) for option, value in options.items()})
    return nw.ScaleGradient(update) if scale == "gradient" else update


def update_parameters(make: Callable[..., Update]) -> dict[str, Any]:
    """Return the parameters of an update, and their defaults."""
    known = inspect.signature(make).parameters.items()
    return {name: item.default for name, item in known if name not in NOT_ON_THE_COMMAND_LINE}


def _fitting(text: str, default: Any) -> Any:
    """Return the value as the option takes it: a text, several names with plus signs between them, or a number."""
    if isinstance(default, str):
        return text
    return tuple(text.split("+")) if isinstance(default, tuple) else value_of(text)
