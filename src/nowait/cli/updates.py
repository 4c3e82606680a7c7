"""Updates named on the command line: ``sgd,adamw,muon:beta=0.9,nesterov=false``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import nowait as nw
from nowait.cli.config import meant
from nowait.cli.methods import option_of, value_of
from nowait.core import Update, checks
from nowait.rules import SCALES


def adamw(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01) -> Update:
    """Return AdamW of PyTorch; raise a ValueError if PyTorch is not installed."""
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
    if len(set(parts)) < len(parts):
        raise ValueError(f"--update has one of them twice: {', '.join(parts)}")
    return {part: parse_update(part) for part in parts}


def parse_update(text: str) -> Update:
    """Return the update of a name with options: ``muon:beta=0.9,exclude=head.weight+letters.weight``.

    Every update takes ``scale=gradient``: a delay rule then scales the gradient instead of the step.
    """
    name, _, rest = text.partition(":")
    if name not in UPDATES:
        raise ValueError(f"there is no update {name!r}{meant(name, UPDATES)} (known: {', '.join(UPDATES)})")
    known = inspect.signature(UPDATES[name]).parameters
    options = dict(option_of(item) for item in rest.split(",") if item)
    scale = checks.one_of(options.pop("scale", "step"), SCALES, "scale")
    for option in options:
        if option not in known or option in NOT_ON_THE_COMMAND_LINE:
            offered = ", ".join(one for one in (*known, "scale") if one not in NOT_ON_THE_COMMAND_LINE)
            raise ValueError(f"{name} has no parameter {option!r}; it has {offered}")
    update = UPDATES[name](**{option: _fitting(value, known[option].default) for option, value in options.items()})
    return nw.ScaleGradient(update) if scale == "gradient" else update


def _fitting(text: str, default: Any) -> Any:
    """Return the value as the option takes it: a text, several names with plus signs between them, or a number."""
    if isinstance(default, str):
        return text
    return tuple(text.split("+")) if isinstance(default, tuple) else value_of(text)
