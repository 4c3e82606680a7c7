"""A ``LightningModule`` as a problem: its steps, what it logs in evaluations, its optimiser and its scheduler."""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from nowait.core import checks
from nowait.pytorch.adapter import Recipe, optimizer_of
from nowait.pytorch.auto_sizes import AutoSizes
from nowait.pytorch.evaluation import Evaluation, WeightedMeans
from nowait.pytorch.lr_schedule import TorchSchedule
from nowait.pytorch.per_worker import PerWorker

logger = logging.getLogger("nowait")

NOT_CALLED = (
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "on_after_backward",
    "on_before_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_train_batch_start",
    "on_train_epoch_end",
    "on_train_epoch_start",
    "optimizer_step",
    "optimizer_zero_grad",
    "transfer_batch_to_device",
)
"""Hooks of training that a module may override, but that are not called."""
LOSSES = ("loss", "val_loss", "valid_loss", "validation_loss", "val/loss")
"""Names under which ``validation_step`` may log its loss, if it returns none."""


def problem_arguments(module: Any, datamodule: Any, epochs: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``TorchProblem`` for a module; ``options`` take precedence."""
    _check(module)
    train, validation = _loaders(module if datamodule is None else datamodule, datamodule is not None)
    template = copy.deepcopy(module).to("cpu")
    arguments = {
        "build_model": lambda: copy.deepcopy(template),
        "train_set": train.dataset,
        "batch_size": train.batch_size,
        "validation": None if validation is None else validation.dataset,
        "collate_fn": train.collate_fn,
        "sampling": "replacement" if isinstance(train.dataset, IterableDataset) else "epochs",
    } | dict(options)
    adapter = LightningAdapter(_recipe(template, arguments, checks.at_least(1, epochs, "epochs", "data are used")))
    return arguments | {"loss": adapter.loss, "forward": adapter.forward, "adapter": adapter}


@final
class LightningAdapter:
    """Computes losses with ``training_step``, and evaluates with ``validation_step``."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe: Recipe | None = recipe

    @property
    def recipe(self) -> Recipe:
        """How a Lightning trainer would train."""
        assert self._recipe is not None
        return self._recipe

    def forward(self, model: torch.nn.Module, batch: Any) -> tuple[Any, None]:
        """Return the loss of ``training_step``; what it logs is dropped."""
        logs = Logs()
        with logs.collected_from(model, None):
            result = _call_step(model, "training_step", batch, 0)
        logs.reset_metrics()
        loss = _loss_in(result)
        if loss is None:
            raise ValueError("training_step must return its loss, or a dict with it under 'loss'")
        return loss, None

    def loss(self, loss: torch.Tensor, _: None) -> torch.Tensor:
        """Return the loss as it is."""
        return loss

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return an evaluation by ``validation_step``, or by ``training_step`` of a module without one."""
        return LightningEvaluation(with_metrics=with_metrics)

    def write_beside(self, folder: Path) -> None:
        """Write nothing: no files belong to a module."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recipe: workers do not need it."""
        return {"_recipe": None}


@final
class Logs:
    """What a module passes to ``self.log``: the means of numbers, and ``torchmetrics`` that compute theirs."""

    def __init__(self) -> None:
        self.means = WeightedMeans()
        self._metrics: dict[str, Any] = {}

    @contextmanager
    def collected_from(self, model: torch.nn.Module, items: int | None) -> Iterator[None]:
        """Collect what the module logs in this context; a number counts for so many items, or is dropped if None."""

        def log(
            name: str, value: Any, *_: Any, batch_size: int | None = None, reduce_fx: Any = "mean", **__: Any
        ) -> None:
            if callable(getattr(value, "compute", None)):
                self._metrics[name] = value
            elif items is None:
                return  # reading it would wait for the GPU
            elif reduce_fx in ("mean", torch.mean):
                self.means.add(name, value, items if batch_size is None else batch_size)
            else:
                raise ValueError(f"self.log({name!r}, …, reduce_fx={reduce_fx!r}): only means are supported")

        model.log = log  # type: ignore[assignment]
        try:
            yield
        finally:
            del model.log

    def reset_metrics(self) -> None:
        """Reset all ``torchmetrics`` that were logged."""
        for metric in self._metrics.values():
            metric.reset()

    def result(self) -> dict[str, float]:
        """Return all numbers by name, and reset the ``torchmetrics``."""
        computed = {name: float(metric.compute()) for name, metric in self._metrics.items()}
        self.reset_metrics()
        return self.means.result() | computed


@final
class LightningEvaluation:
    """The mean loss, and all that is logged in ``validation_step`` and at the end of the pass."""

    def __init__(self, *, with_metrics: bool) -> None:
        self._with_metrics, self._logs, self._losses = with_metrics, Logs(), WeightedMeans()
        self._model: Any = None
        self._batches = 0

    def add(self, model: torch.nn.Module, batch: Any, items: int, precision: AbstractContextManager[Any]) -> None:
        """Call the step with a batch."""
        with precision, self._logs.collected_from(model, items):
            if self._model is None:
                self._model = model
                self._model.on_validation_epoch_start()
            name = "validation_step" if _overrides(model, "validation_step") else "training_step"
            result = _call_step(model, name, batch, self._batches)
        self._batches += 1
        loss = _loss_in(result)
        if loss is not None:
            self._losses.add("loss", loss, items)

    def result(self) -> dict[str, float]:
        """Return the loss and the logged numbers. The loss is the one that the step returns, or that it logs."""
        with self._logs.collected_from(self._model, 1):
            self._model.on_validation_epoch_end()
        logged = self._logs.result()
        if "loss" in self._losses:
            logged |= self._losses.result()
        else:
            name = next((name for name in LOSSES if name in logged), None)
            if name is None:
                raise ValueError(f"validation_step must return its loss, or log it as one of {', '.join(LOSSES)}")
            logged["loss"] = logged[name]
        return logged if self._with_metrics else {"loss": logged["loss"]}


@final
@dataclass
class TrainerFacts:
    """What ``configure_optimizers`` may read of ``self.trainer``."""

    estimated_stepping_batches: int
    num_training_batches: int
    max_epochs: int
    current_epoch: int = 0
    global_step: int = 0

    @property
    def max_steps(self) -> int:
        """The number of steps."""
        return self.estimated_stepping_batches


@final
@dataclass(frozen=True)
class Slower:
    """A schedule whose scheduler makes one step in every ``period`` steps."""

    schedule: Callable[[int], float]
    period: int

    def __call__(self, step: int) -> float:
        """Return the factor of a step; the first one is step 1."""
        return self.schedule(1 + (step - 1) // self.period)


def _check(module: Any) -> None:
    """Raise unless the module can be used; log which of its hooks are not called."""
    if not isinstance(module, torch.nn.Module) or not callable(getattr(module, "configure_optimizers", None)):
        raise TypeError(f"from_lightning needs a LightningModule, got {type(module).__name__}")
    if not module.automatic_optimization:
        raise ValueError(
            f"{type(module).__name__} uses manual optimisation, which cannot run on workers that make no steps: "
            f"compute the gradients in a function and pass it as TorchProblem(..., manual=function)"
        )
    ignored = [name for name in NOT_CALLED if _overrides(module, name)]
    if ignored:
        logger.warning("%s overrides %s, which is not called", type(module).__name__, ", ".join(ignored))


def _overrides(module: Any, name: str) -> bool:
    """Return True if a class of the module, and not Lightning, defines this hook."""
    owner = next((kind for kind in type(module).__mro__ if name in vars(kind)), None)
    return owner is not None and not owner.__module__.startswith(("lightning.", "pytorch_lightning."))


def _call_step(model: Any, name: str, batch: Any, index: int) -> Any:
    step = getattr(model, name)
    batch = model.on_after_batch_transfer(model.on_before_batch_transfer(batch, 0), 0)
    return step(batch, index) if len(inspect.signature(step).parameters) > 1 else step(batch)


def _loss_in(result: Any) -> Any:
    """Return the loss in what a step returned, or None."""
    return result.get("loss") if isinstance(result, Mapping) else result


def _loaders(source: Any, is_datamodule: bool) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    """Return the loaders of training and validation of a data module, or of the module itself."""
    if is_datamodule:
        if isinstance(source, type) or not callable(getattr(source, "setup", None)):
            name = f"the class {source.__name__}" if isinstance(source, type) else f"a {type(source).__name__}"
            raise TypeError(f"datamodule must be a LightningDataModule object, got {name}")
        source.prepare_data()
        source.setup("fit")
    train = _only(source.train_dataloader(), "train_dataloader")
    found = source.val_dataloader() if _overrides(source, "val_dataloader") else None
    validation = None if found is None else _only(found, "val_dataloader")
    sampler = getattr(train, "sampler", None)
    if not isinstance(train.dataset, IterableDataset) and not isinstance(sampler, RandomSampler | SequentialSampler):
        raise ValueError(
            f"train_dataloader has the sampler {type(sampler).__name__}, which is not used: workers draw the items of "
            f"every epoch in a random order"
        )
    if validation is not None and validation.collate_fn is not train.collate_fn:
        raise ValueError("train_dataloader and val_dataloader must have the same collate_fn")
    return train, validation


def _only(loaders: Any, name: str) -> DataLoader[Any]:
    loader = loaders[0] if isinstance(loaders, list | tuple) and len(loaders) == 1 else loaders
    if not isinstance(loader, DataLoader):
        raise TypeError(f"{name} must return one DataLoader, got {type(loader).__name__}")
    if loader.batch_size is None:
        raise TypeError(f"{name} must return a DataLoader with a batch_size: workers do not use a batch_sampler")
    return loader


def _recipe(template: Any, arguments: Mapping[str, Any], epochs: int) -> Recipe:
    """Return the recipe of a copy of a module, whose optimiser and scheduler are not used for anything else."""
    data = arguments["train_set"]
    size = arguments["batch_size"]
    sizes = AutoSizes.of(size) if isinstance(size, str) else PerWorker.of(size, "batch_size", "a gradient needs items")
    batch_size = sizes.usual
    accumulate = PerWorker.of(arguments.get("accumulate", 1), "accumulate", "it counts batches").usual
    batches = 1 if isinstance(data, IterableDataset) else math.ceil(len(data) / batch_size)
    steps_per_epoch = math.ceil(batches / accumulate)
    template.trainer = TrainerFacts(epochs * steps_per_epoch, batches, epochs)
    optimizer, settings = _configured(template.configure_optimizers())
    kind, groups, lr = optimizer_of(optimizer, template)
    schedule = None if settings is None else _schedule(settings, lr, steps_per_epoch)
    template.trainer = None
    return Recipe(kind, groups, lr, schedule, epochs * steps_per_epoch)


def _schedule(settings: Mapping[str, Any], lr: float, steps_per_epoch: int) -> Callable[[int], float]:
    period = int(settings.get("frequency", 1)) * (1 if settings.get("interval") == "step" else steps_per_epoch)
    return Slower(TorchSchedule(lambda _: settings["scheduler"], lr), period)


def _configured(result: Any) -> tuple[torch.optim.Optimizer, Mapping[str, Any] | None]:
    """Return the optimiser, and the settings of the scheduler, in what ``configure_optimizers`` returned."""
    schedulers: Any = []
    if isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], list | tuple):
        result, schedulers = result
    if isinstance(result, list | tuple) and len(result) == 1:
        result = result[0]
    if isinstance(result, Mapping):
        schedulers = [result["lr_scheduler"]] if result.get("lr_scheduler") is not None else []
        result = result["optimizer"]
    if not isinstance(result, torch.optim.Optimizer) or len(schedulers) > 1:
        raise ValueError(
            "configure_optimizers must return one optimiser with at most one scheduler: for several, compute the "
            "gradients in a function and pass it as TorchProblem(..., manual=function)"
        )
    settings = next(iter(schedulers), None)
    if settings is None or isinstance(settings, Mapping):
        return result, settings
    return result, {"scheduler": settings}
