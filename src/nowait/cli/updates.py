"""Updates named on the command line: ``adamw:weight_decay=0.1``, ``torch.RAdam:betas=0.9+0.95``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import nowait as nw
from nowait.cli.names import check_parameters, choice, parameters_of, short_name, split_list, value_of
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
TORCH = "torch."
"""Before the name of a class of ``torch.optim``."""
NOT_ON_THE_COMMAND_LINE = ("rest", "params", "lr", "maximize", "foreach", "capturable", "differentiable", "fused")


def parse_updates(texts: Iterable[str]) -> dict[str, Update]:
    """Return the updates of one or more lists with commas, by their texts.

    >>> list(parse_updates(["sgd,muon:beta=0.9,nesterov=false,adam"]))
    ['sgd', 'muon:beta=0.9,nesterov=false', 'adam']
    """
    parts = split_list(texts)
    if len({part.lower() for part in parts}) < len(parts):
        raise ValueError(f"--update has one of them twice: {', '.join(parts)}")
    return {part: parse_update(part) for part in parts}


def parse_one_update(text: str | None) -> Update | None:
    """Return the update that ``--update`` of a run names; None if it is not given."""
    if text is None:
        return None
    parts = split_list([text])
    if len(parts) > 1:
        raise ValueError(f"--update has {len(parts)} updates, {' and '.join(parts)}, but a run has one")
    return parse_update(parts[0])


def parse_update(text: str) -> Update:
    """Return the update of a name with options: ``muon:beta=0.9,exclude=head.weight+letters.weight``.

    The name is short or that of the class, or ``torch.`` and that of an optimiser of PyTorch. Every update takes
    ``scale=gradient``: a delay rule then scales the gradient instead of the step.
    """
    name, _, rest = text.partition(":")
    kind = _torch_class(name) if name.lower().startswith(TORCH) else UPDATES[short_name(name, UPDATES, "update")]
    options = parameters_of(rest)
    scale = choice(options.pop("scale", "step"), SCALES, "scale")
    known = update_parameters(kind)
    if "lr" in options:
        raise ValueError(f"{name} has no parameter 'lr': the learning rate is the stepsize of the run")
    check_parameters(options, (*known, "scale"), name)
    values = {option: _fitting(value, known[option]) for option, value in options.items()}
    update = kind(**values) if kind in UPDATES.values() else _torch_update(kind, values)
    return nw.ScaleGradient(update) if scale == "gradient" else update


def update_parameters(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters of an update, and their defaults."""
    known = inspect.signature(make).parameters.items()
    return {name: item.default for name, item in known if name not in NOT_ON_THE_COMMAND_LINE}


def _torch_class(name: str) -> Any:
    """Return the class of ``torch.optim`` that ``torch.NAME`` names."""
    try:
        import torch
    except ImportError:
        raise ValueError(f"{name} needs PyTorch: pip install nowait[pytorch]") from None
    base = torch.optim.Optimizer
    kinds = {each: kind for each, kind in vars(torch.optim).items() if inspect.isclass(kind) and issubclass(kind, base)}
    kinds.pop("Optimizer")
    return kinds[short_name(name[len(TORCH) :], kinds, "optimiser of torch.optim")]


def _torch_update(kind: Any, options: dict[str, Any]) -> Update:
    from nowait.pytorch import TorchOptimizer

    return TorchOptimizer(kind, **options)


def _fitting(text: str, default: Any) -> Any:
    """Return the value as the option takes it: a text, a number, or several of them with plus signs between them."""
    if isinstance(default, str):
        return text
    if isinstance(default, tuple):
        of_numbers = any(isinstance(item, int | float) for item in default)
        return tuple(value_of(item) if of_numbers else item for item in text.split("+"))
    return value_of(text)
