"""What a problem takes over from another framework: its evaluation, its optimiser, its schedule, its files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import torch

from nowait.core import DelayAdaptive, Scheduled, Stepsize
from nowait.pytorch.evaluation import Evaluation
from nowait.pytorch.optimizer import TorchOptimizer
from nowait.pytorch.optimizer_kind import IMPLEMENTATIONS, OptimizerKind
from nowait.pytorch.parameter_groups import Options


@final
@dataclass(frozen=True)
class Recipe:
    """How a framework would train a model in one process."""

    optimizer: OptimizerKind
    groups: Mapping[str, Options]
    """Options of parameters that differ from those of the optimiser, by name."""
    lr: float
    schedule: Callable[[int], float] | None
    """The factor of the learning rate at each step."""
    steps: int

    def update(self) -> TorchOptimizer:
        """Return the optimiser with its parameter groups."""
        return TorchOptimizer(self.optimizer.optimizer, groups=self.groups or None, **self.optimizer.options)

    def stepsize(self) -> Stepsize:
        """Return the learning rate as a rule that makes smaller steps for old gradients, with the schedule."""
        rule = DelayAdaptive(self.lr)
        return rule if self.schedule is None else Scheduled(rule, self.schedule)


class Adapter(Protocol):
    """A problem asks this in place of its own rules. It is sent to workers, without the recipe."""

    @property
    def recipe(self) -> Recipe:
        """How the framework would train; only in the process that made the problem."""

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return a new evaluation, as the framework does it."""

    def write_beside(self, folder: Path) -> None:
        """Write files that belong to the model, such as those of its tokeniser, to the folder of the model."""


def optimizer_of(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module
) -> tuple[OptimizerKind, dict[str, Options], float]:
    """Return the class of an optimiser with its options, the options of parameters by name, and the learning rate.

    The learning rate is that of the first group; ``stepsize_factor`` is by how much those of other groups are larger.
    It is 0 for parameters that the optimiser does not have.
    """
    kind = OptimizerKind(type(optimizer), _own_options(optimizer))
    lr = _learning_rate(optimizer.param_groups[0])
    found = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    groups: dict[str, Options] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own = _group_options(found[id(parameter)], optimizer, lr) if id(parameter) in found else {}
            groups[name] = own if id(parameter) in found else {"stepsize_factor": 0.0}
    return kind, {name: own for name, own in groups.items() if own}, lr


def _own_options(optimizer: torch.optim.Optimizer) -> Options:
    """Return the options that the optimiser was made with, without those that are usual."""
    known = inspect.signature(type(optimizer)).parameters
    return {
        name: value
        for name, value in optimizer.defaults.items()
        if name in known and name not in ("lr", *IMPLEMENTATIONS) and value != known[name].default
    }


def _group_options(group: Mapping[str, Any], optimizer: torch.optim.Optimizer, lr: float) -> Options:
    options = {
        name: group[name]
        for name, value in optimizer.defaults.items()
        if name not in ("lr", *IMPLEMENTATIONS) and group[name] != value
    }
    factor = _learning_rate(group) / lr
    return options if factor == 1.0 else options | {"stepsize_factor": factor}


def _learning_rate(group: Mapping[str, Any]) -> float:
    """Return the learning rate of a group before its scheduler changed it."""
    lr = group.get("initial_lr", group["lr"])
    if lr is None or not float(lr) > 0:
        raise ValueError(f"the optimiser must have a positive learning rate, got {lr!r}: it is the stepsize")
    return float(lr)
