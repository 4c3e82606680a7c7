"""Makes the parts of a run again from what ``config.json`` says of them."""

from __future__ import annotations

import math
from typing import Any

from nowait import core, methods, speeds

NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def rebuild(description: Any, what: str) -> Any:
    """The object that ``nowait.recording.describe`` described, if it is one of this library."""
    if isinstance(description, list):
        return [rebuild(item, what) for item in description]
    if isinstance(description, str):
        return NUMBERS.get(description, description)
    if not isinstance(description, dict):
        return description
    if "array" in description:
        raise ValueError(f"the {what} has an array that the run folder does not hold: pass {what}= again")
    if "type" not in description:
        return {key: rebuild(item, what) for key, item in description.items()}
    return _made(dict(description), what)


def _made(description: dict[str, Any], what: str) -> Any:
    name = description.pop("type")
    if name == "TorchOptimizer":
        return _torch_optimizer(description, what)
    for module in (core, methods, speeds):
        if name in module.__all__:
            arguments = {key: rebuild(item, what) for key, item in description.items()}
            return getattr(module, name)(**arguments)
    raise ValueError(f"the {what} of the run is a {name}, which is not of this library: pass {what}= again")


def _torch_optimizer(description: dict[str, Any], what: str) -> Any:
    import torch

    from nowait.pytorch import TorchOptimizer

    kind = getattr(torch.optim, description["optimizer"], None)
    if kind is None:
        raise ValueError(f"torch.optim has no {description['optimizer']}: pass {what}= again")
    return TorchOptimizer(kind, **rebuild(description["options"], what))
