"""What a problem takes over from another framework: its evaluation, its optimiser, its schedule, its files.

And what code of the framework reads in a worker: how far the run is, in steps, epochs and batches.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import torch

from nowait.core import DelayAdaptive, Sample, Scheduled, Stepsize
from nowait.pytorch.evaluation import Evaluation
from nowait.pytorch.optimizer import TorchOptimizer
from nowait.pytorch.optimizer_kind import IMPLEMENTATIONS, OptimizerKind
from nowait.pytorch.parameter_groups import Options

logger = logging.getLogger("nowait")


@final
@dataclass(frozen=True)
class UsualSchedule:
    """The schedule of a framework. ``config.json`` has some of its factors: a resumed run takes it from the problem."""

    schedule: Callable[[int], float]

    def __call__(self, step: int) -> float:
        """Return the factor of a step; the first one is step 1."""
        return self.schedule(step)

    def described(self) -> dict[str, Any]:
        """Return factors by which the schedule is recognised; some schedules end after a number of steps."""
        factors: dict[str, float] = {}
        with suppress(ValueError):
            for step in DESCRIBED_STEPS:
                factors[str(step)] = self.schedule(step)
        return {"type": type(self).__name__, "factors": factors}


DESCRIBED_STEPS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


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
    steps: int | None
    """None if the number of items of an epoch is not known."""
    without_stepsize: str = ""
    """Why the scheduler gives no stepsize, if it does not: the error of ``stepsize()``."""

    def update(self) -> TorchOptimizer:
        """Return the optimiser with its parameter groups."""
        return TorchOptimizer(self.optimizer.optimizer, groups=self.groups or None, **self.optimizer.options)

    def stepsize(self) -> Stepsize:
        """Return the learning rate as a rule that makes smaller steps for old gradients, with the schedule."""
        if self.without_stepsize:
            raise ValueError(self.without_stepsize)
        rule = DelayAdaptive(self.lr)
        return rule if self.schedule is None else Scheduled(rule, UsualSchedule(self.schedule))


@final
class Progress:
    """How far a run is when a worker computes a gradient, counted as a framework counts in one process.

    A gradient takes the place of a step: ``step`` is how many gradients all workers together had been given before this
    one. It is the id of the ticket, so a replay has the same numbers. Without a ticket it is the job number.
    """

    def __init__(self, steps_per_epoch: int | None, batches_per_step: int) -> None:
        self._steps_per_epoch, self._batches_per_step = steps_per_epoch, batches_per_step
        self.step = 0
        self._part = 0

    def begin(self, sample: Sample) -> None:
        """Begin with a gradient."""
        self.step = int(sample.job if sample.ticket is None else sample.ticket)
        self._part = 0

    @property
    def epoch(self) -> int:
        """How often all workers together have taken all items before; 0 if their number is not known."""
        return 0 if self._steps_per_epoch is None else self.step // self._steps_per_epoch

    @property
    def epochs(self) -> float:
        """The same with the share of the current epoch."""
        return 0.0 if self._steps_per_epoch is None else self.step / self._steps_per_epoch

    def next_batch(self) -> int:
        """Return the number of the next batch of this gradient in its epoch."""
        step = self.step if self._steps_per_epoch is None else self.step % self._steps_per_epoch
        number = step * self._batches_per_step + self._part
        self._part += 1
        return number


@final
class DroppedLogs:
    """What is logged while gradients are computed: it goes nowhere, and the first time a warning names it."""

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._has_told = False

    def tell(self, what: str, logged: Mapping[str, Any], loss: Any) -> None:
        """Warn of values that are lost, by their names; the loss of the gradient is not, it is in training_loss."""
        if self._has_told:
            return
        lost = [name for name, value in logged.items() if not _is_the_same(value, loss)]
        if lost:
            self._has_told = True
            logger.warning(
                "%s logs %s: workers drop it while they compute gradients. The mean of their losses is the metric "
                "training_loss; %s",
                what,
                ", ".join(lost),
                self._advice,
            )


def _is_the_same(value: Any, loss: Any) -> bool:
    """Return True if a logged value is the loss, also detached or as a number. It does not wait for a GPU."""
    if not isinstance(loss, torch.Tensor):
        return False
    if isinstance(value, torch.Tensor):
        return value.shape == loss.shape and value.data_ptr() == loss.data_ptr()
    return isinstance(value, float) and value == loss.item()  # the GPU was waited for when the number was read


@contextmanager
def none_explained(text: str) -> Iterator[None]:
    """Add a text to errors of the user's code that look for an attribute of None."""
    try:
        yield
    except AttributeError as error:
        if error.name is not None and error.obj is None:
            error.add_note(text)
        raise


def no_stepsize(scheduler: str, lr: float) -> str:
    """Return the error for a scheduler whose factors depend on evaluations."""
    return (
        f"{scheduler} changes the learning rate by the values of evaluations, which an asynchronous run has later than "
        f"the steps they belong to: in place of usual_stepsize() choose nw.DelayAdaptive({lr:g}), or with a schedule "
        f"nw.Scheduled(nw.DelayAdaptive({lr:g}), nw.schedules.cosine(steps)); nw.EarlyStopping ends a run at a plateau"
    )


def overrides(part: Any, name: str, packages: tuple[str, ...]) -> bool:
    """Return True if the class that defines a method of an object is not of one of these packages."""
    owner = next((kind for kind in type(part).__mro__ if name in vars(kind)), None)
    return owner is not None and not owner.__module__.startswith(packages)


class Adapter(Protocol):
    """A problem asks this in place of its own rules. It is sent to workers, without the recipe."""

    @property
    def recipe(self) -> Recipe:
        """How the framework would train; only in the process that made the problem."""

    @property
    def evaluates_sets_together(self) -> bool:
        """True if one evaluation takes the batches of several validation sets; False: each set has its own."""

    def begin(self, sample: Sample) -> None:
        """Called before the batches of a gradient are computed."""

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
