"""A ``LightningModule`` as a problem: its steps, what it logs in evaluations, its optimiser and its scheduler."""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch.utils.data import DataLoader

from nowait.core import Sample, checks
from nowait.pytorch.adapter import (
    DroppedLogs,
    Progress,
    Recipe,
    no_stepsize,
    none_explained,
    optimizer_of,
    overrides,
)
from nowait.pytorch.data_loaders import Epoch, TrainingData, evaluation_set, warn_of_loader_options
from nowait.pytorch.evaluation import Evaluation, EvaluationBatch, EvaluationSet, WeightedMeans
from nowait.pytorch.lr_schedule import TorchSchedule

logger = logging.getLogger("nowait")

NOT_CALLED = (
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "configure_sharded_model",
    "lr_scheduler_step",
    "on_after_backward",
    "on_before_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_fit_end",
    "on_fit_start",
    "on_load_checkpoint",
    "on_save_checkpoint",
    "on_train_batch_end",
    "on_train_batch_start",
    "on_train_end",
    "on_train_epoch_end",
    "on_train_epoch_start",
    "on_train_start",
    "on_validation_batch_end",
    "on_validation_batch_start",
    "on_validation_end",
    "on_validation_model_eval",
    "on_validation_model_train",
    "on_validation_model_zero_grad",
    "on_validation_start",
    "optimizer_step",
    "optimizer_zero_grad",
    "teardown",
    "transfer_batch_to_device",
)
"""Hooks of training that a module may override, but that are not called."""
BEFORE_STEPS = ("on_train_batch_start", "on_train_epoch_start", "on_train_start")
"""Those in which modules often set what ``training_step`` reads."""
OF_MODULES = ("automatic_optimization", "configure_optimizers")
"""By these a LightningModule is known, of ``lightning`` and of ``pytorch_lightning``."""
NONE = (
    "nowait trains without a Trainer, so self.logger of a module and self.trainer of a data module are None: write "
    "`if self.logger:` before what uses it"
)
LOSSES = ("loss", "val_loss", "valid_loss", "validation_loss", "val/loss", "valid/loss", "validation/loss")
"""Names under which ``validation_step`` may log its loss, if it returns none."""


def problem_arguments(
    module: Any, datamodule: Any, loaders: tuple[Any, Any], epochs: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of ``TorchProblem`` for a module; ``options`` take precedence.

    ``loaders`` are those of training and validation, in place of those of the data module or the module.
    """
    _check(module)
    if isinstance(datamodule, DataLoader):
        datamodule, loaders = None, (datamodule, loaders[1])
    with none_explained(NONE):
        source = _prepared(module, datamodule)
    has_own_data = source is module and loaders[0] is None
    if has_own_data:
        module.setup("fit")
    known = {"num_workers": options["loader_workers"]} if "loader_workers" in options else {}
    train, validation = _loaders(source, *loaders, known)
    arguments = {"validation": validation} | train.arguments(options)
    facts = _facts(train.epoch(arguments), arguments, checks.at_least(1, epochs, "epochs", "data are used"))
    with facts.attached_to(module):
        if not has_own_data:
            module.setup("fit")
        module.configure_model()
    template = copy.deepcopy(module).to("cpu")
    adapter = LightningAdapter(_recipe(template, facts), facts)
    usual = {"build_model": lambda: copy.deepcopy(template)} | arguments
    return usual | {"loss": adapter.loss, "forward": adapter.forward, "adapter": adapter}


@final
class LightningAdapter:
    """Computes losses with ``training_step``, and evaluates with ``validation_step``."""

    def __init__(self, recipe: Recipe, facts: TrainerFacts) -> None:
        self._recipe: Recipe | None = recipe
        self._facts, self._dropped = facts, DroppedLogs("log other metrics in validation_step")

    @property
    def recipe(self) -> Recipe:
        """How a Lightning trainer would train."""
        assert self._recipe is not None
        return self._recipe

    @property
    def evaluates_sets_together(self) -> bool:
        """True: a step is told which loader its batch is from, and the hooks are called once for all loaders."""
        return True

    def begin(self, sample: Sample) -> None:
        """Count the gradients, epochs and batches that ``training_step`` may read."""
        self._facts.progress.begin(sample)

    def forward(self, model: torch.nn.Module, batch: Any) -> tuple[Any, None]:
        """Return the loss of ``training_step``; what it logs is dropped."""
        logs = Logs()
        with self._facts.attached_to(model), logs.collected_from(model, None):
            result = _call_step(model, "training_step", batch, self._facts.progress.next_batch())
        logs.reset_metrics()
        loss = _loss_in(result)
        self._dropped.tell(f"training_step of {type(model).__name__}", logs.latest, loss)
        if loss is None:
            raise ValueError("training_step must return its loss, or a dict with it under 'loss'")
        return loss, None

    def loss(self, loss: torch.Tensor, _: None) -> torch.Tensor:
        """Return the loss as it is."""
        return loss

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return an evaluation by ``validation_step``, or by ``training_step`` of a module without one."""
        return LightningEvaluation(self._facts.in_evaluations(), with_metrics=with_metrics)

    def write_beside(self, folder: Path) -> None:
        """Write nothing: no files belong to a module."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recipe: workers do not need it."""
        return self.__dict__ | {"_recipe": None}


@final
class Logs:
    """What a module passes to ``self.log``: the means of numbers, and ``torchmetrics`` that compute theirs."""

    def __init__(self) -> None:
        self.means = WeightedMeans()
        self.latest: dict[str, Any] = {}
        """The latest value of each name, in order."""
        self.losses = WeightedMeans()
        """Those of ``LOSSES``, over the batches of all loaders."""
        self._metrics: dict[str, Any] = {}

    @contextmanager
    def collected_from(self, model: torch.nn.Module, items: int | None, loader: int | None = None) -> Iterator[None]:
        """Collect what the module logs in this context; a number counts for so many items, or is dropped if None.

        If there are several loaders, the number of the current one is added to the names, as Lightning does it.
        """

        def log(name: str, value: Any, *_: Any, **options: Any) -> None:
            own = loader is not None and options.get("add_dataloader_idx", True)
            self._add(name, f"{name}/dataloader_idx_{loader}" if own else name, value, items, options)

        modules = dict.fromkeys(_with_inner(model))
        for part in modules:
            part.log = log
        try:
            yield
        finally:
            for part in modules:
                del part.log

    def _add(self, name: str, full_name: str, value: Any, items: int | None, options: Mapping[str, Any]) -> None:
        reduce_fx, size = options.get("reduce_fx", "mean"), options.get("batch_size")
        self.latest[name] = value
        if callable(getattr(value, "compute", None)):
            self._metrics[full_name] = value
        elif items is None:
            return  # reading it would wait for the GPU
        elif reduce_fx in ("mean", torch.mean):
            weight = items if size is None else size
            self.means.add(full_name, value, weight)
            if name in LOSSES:
                self.losses.add(name, value, weight)
        else:
            raise ValueError(f"self.log({name!r}, …, reduce_fx={reduce_fx!r}): only means are supported")

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

    def __init__(self, facts: TrainerFacts, *, with_metrics: bool) -> None:
        self._facts, self._with_metrics = facts, with_metrics
        self._logs, self._losses = Logs(), WeightedMeans()
        self._model: Any = None
        self._batches: dict[int, int] = {}

    def add(self, model: torch.nn.Module, batch: EvaluationBatch, precision: AbstractContextManager[Any]) -> None:
        """Call the step with a batch."""
        number = batch.set_number
        index = self._batches[number] = self._batches.get(number, -1) + 1
        loader = number if self._facts.num_val_loaders > 1 else None
        with self._facts.attached_to(model), precision, self._logs.collected_from(model, batch.items, loader):
            if self._model is None:
                self._model = model
                self._model.on_validation_epoch_start()
            name = "validation_step" if _overrides(model, "validation_step") else "training_step"
            result = _call_step(model, name, batch.content, index, number)
        loss = _loss_in(result)
        if loss is not None:
            self._losses.add("loss", loss, batch.items)

    def result(self) -> dict[str, float]:
        """Return the loss and the logged numbers. The loss is the one that the step returns, or that it logs."""
        with self._facts.attached_to(self._model), self._logs.collected_from(self._model, 1):
            self._model.on_validation_epoch_end()
        logged = self._logs.result()
        losses = self._logs.losses.result() | {name: logged[name] for name in LOSSES if name in logged}
        if "loss" in self._losses:
            logged |= self._losses.result()
        else:
            name = next((name for name in LOSSES if name in losses), None)
            if name is None:
                raise ValueError(f"validation_step must return its loss, or log it as one of {', '.join(LOSSES)}")
            logged["loss"] = losses[name]
        return logged if self._with_metrics else {"loss": logged["loss"]}


@final
@dataclass
class TrainerFacts:
    """What a module may read of ``self.trainer``, in ``configure_optimizers`` and in its steps.

    There is one process, as far as the module can see. What a worker computes is counted in gradients of all workers.
    """

    estimated_stepping_batches: float
    num_training_batches: float
    max_epochs: int
    accumulate_grad_batches: int
    progress: Progress
    num_val_loaders: int = 0
    validating: bool = False
    sanity_checking: bool = False
    is_global_zero: bool = True
    world_size: int = 1
    global_rank: int = 0
    local_rank: int = 0
    logger: Any = None
    loggers: tuple[Any, ...] = ()
    progress_bar_callback: Any = None
    model: Any = None

    @property
    def max_steps(self) -> float:
        """The number of steps."""
        return self.estimated_stepping_batches

    @property
    def training(self) -> bool:
        """False while params are evaluated."""
        return not self.validating

    @property
    def global_step(self) -> int:
        """How many gradients all workers together had been given before this one."""
        return self.progress.step

    @property
    def current_epoch(self) -> int:
        """How often all workers together had taken all items before."""
        return self.progress.epoch

    def in_evaluations(self) -> TrainerFacts:
        """Return the facts while params are evaluated: params do not say how far the run is."""
        return replace(self, validating=True, progress=Progress(None, 1))

    @contextmanager
    def attached_to(self, model: Any) -> Iterator[None]:
        """Let a module read these facts of ``self.trainer`` in this context."""
        before = vars(model).get("_trainer")
        model.trainer, self.model = self, model
        try:
            with none_explained(NONE):
                yield
        finally:
            model.trainer, self.model = before, None

    def __getattr__(self, name: str) -> Any:
        """Raise an error that says what there is."""
        hint = "; the server has the optimiser, so self.optimizers() and self.lr_schedulers() do not work in workers"
        raise AttributeError(
            f"self.trainer has no {name} here: nowait trains without a Trainer, and a module can read of it only "
            f"{', '.join(name for name in (*FACTS, *self.__dataclass_fields__) if name not in NOT_OF_LIGHTNING)}"
            f"{hint if name in OF_OPTIMISERS else ''}"
        )


FACTS = ("current_epoch", "global_step", "max_steps", "training")
NOT_OF_LIGHTNING = ("progress", "num_val_loaders", "progress_bar_callback")
OF_OPTIMISERS = ("strategy", "optimizers", "lr_scheduler_configs")
"""What ``self.optimizers()`` and ``self.lr_schedulers()`` read."""


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
    if isinstance(module, torch.nn.Module) and "_orig_mod" in module._modules:
        raise TypeError(
            "from_lightning got a compiled LightningModule, whose validation_step and hooks cannot be seen: pass the "
            "module itself, and compile its layers, as in self.net = torch.compile(self.net)"
        )
    if not _is_lightning_module(module):
        raise TypeError(f"from_lightning needs a LightningModule, got {type(module).__name__}")
    if not module.automatic_optimization:
        raise ValueError(
            f"{type(module).__name__} uses manual optimisation, which cannot run on workers that make no steps: "
            f"compute the gradients in a function and pass it as TorchProblem(..., manual=function)"
        )
    ignored = [name for name in NOT_CALLED if _overrides(module, name)]
    if ignored:
        hint = ": let training_step itself set what it reads" if {*BEFORE_STEPS} & {*ignored} else ""
        logger.warning("%s overrides %s, which is not called%s", type(module).__name__, ", ".join(ignored), hint)


def _is_lightning_module(part: Any) -> bool:
    kind = type(part)
    return isinstance(part, torch.nn.Module) and all(hasattr(kind, name) for name in OF_MODULES)


def _with_inner(module: Any) -> Iterator[Any]:
    """Yield a LightningModule and those inside of it, as far as Lightning gives them its trainer."""
    yield module
    for part in module.children():
        if _is_lightning_module(part):
            yield from _with_inner(part)


def _overrides(part: Any, name: str) -> bool:
    """Return True if a class of the module or data module, and not Lightning, defines this hook."""
    return overrides(part, name, ("lightning.", "pytorch_lightning."))


def _call_step(model: Any, name: str, batch: Any, index: int, loader: int = 0) -> Any:
    """Call a step with as many of batch, number of the batch and number of the loader as it takes."""
    step = getattr(model, name)
    batch = model.on_after_batch_transfer(model.on_before_batch_transfer(batch, loader), loader)
    kinds = [parameter.kind for parameter in inspect.signature(step).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return step(batch, index)
    num_positional = sum(kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD) for kind in kinds)
    return step(*(batch, index, loader)[:num_positional])


def _loss_in(result: Any) -> Any:
    """Return the loss in what a step returned, or None."""
    return result.get("loss") if isinstance(result, Mapping) else result


def _prepared(module: Any, datamodule: Any) -> Any:
    """Let a data module and a module prepare their data; return the one that has the loaders."""
    if datamodule is None:
        module.prepare_data()
        return module
    if isinstance(datamodule, type) or not callable(getattr(datamodule, "setup", None)):
        is_class = isinstance(datamodule, type)
        name = f"the class {datamodule.__name__}" if is_class else f"a {type(datamodule).__name__}"
        raise TypeError(f"datamodule must be a LightningDataModule object, got {name}")
    if _overrides(datamodule, "transfer_batch_to_device"):
        logger.warning("%s overrides transfer_batch_to_device, which is not called", type(datamodule).__name__)
    for hook in ("on_before_batch_transfer", "on_after_batch_transfer"):
        if _overrides(datamodule, hook):
            raise ValueError(
                f"{type(datamodule).__name__} overrides {hook}, which is not called, because workers have the module "
                f"but not the data module: change batches in on_after_batch_transfer of {type(module).__name__}"
            )
    datamodule.prepare_data()
    module.prepare_data()
    datamodule.setup("fit")
    return datamodule


def _loaders(
    source: Any, train: Any, validation: Any, honoured: Mapping[str, Any]
) -> tuple[TrainingData, EvaluationSet | dict[str, EvaluationSet] | None]:
    """Return the data of given loaders, or of those of a data module or a module."""
    if train is None:
        if not _overrides(source, "train_dataloader"):
            raise ValueError(
                f"{type(source).__name__} has no train_dataloader: pass train_dataloaders=, or a data module as the "
                f"second argument"
            )
        train = source.train_dataloader()
    if validation is None and _overrides(source, "val_dataloader"):
        validation = source.val_dataloader()
    training = TrainingData.of(train, "train_dataloader")
    warn_of_loader_options({"train_dataloader": train, "val_dataloader": validation}, honoured)
    if training.in_order:
        logger.warning(
            "train_dataloader does not shuffle, but workers draw the items of an epoch in a random order of their own"
        )
    return training, _validation_sets(validation)


def _validation_sets(loaders: Any) -> EvaluationSet | dict[str, EvaluationSet] | None:
    """Return the validation set, or several by name; None if there is none."""
    loaders = list(loaders.values()) if isinstance(loaders, Mapping) else loaders
    if loaders is None or (isinstance(loaders, list | tuple) and not loaders):
        return None
    if isinstance(loaders, list | tuple) and len(loaders) > 1:
        names = [f"dataloader_idx_{number}" for number in range(len(loaders))]
        return {name: evaluation_set(loader, "val_dataloader") for name, loader in zip(names, loaders, strict=True)}
    return evaluation_set(loaders, "val_dataloader")


def _facts(epoch: Epoch, arguments: Mapping[str, Any], epochs: int) -> TrainerFacts:
    """Return what a module may read of its trainer; an ``IterableDataset`` has an unknown number of batches."""
    validation = arguments["validation"]
    return TrainerFacts(
        estimated_stepping_batches=math.inf if epoch.steps is None else epochs * epoch.steps,
        num_training_batches=math.inf if epoch.batches is None else epoch.batches,
        max_epochs=epochs,
        accumulate_grad_batches=epoch.batches_per_step,
        progress=Progress(epoch.steps, epoch.batches_per_step),
        num_val_loaders=len(validation) if isinstance(validation, dict) else 1,
    )


def _recipe(template: Any, facts: TrainerFacts) -> Recipe:
    """Return the recipe of a copy of a module, whose optimiser and scheduler are not used for anything else."""
    with facts.attached_to(template):
        optimizer, settings = _configured(template.configure_optimizers())
    kind, groups, lr = optimizer_of(optimizer, template)
    steps = facts.estimated_stepping_batches
    recipe = Recipe(kind, groups, lr, None, None if math.isinf(steps) else int(steps))
    if settings is None:
        return recipe
    if getattr(settings["scheduler"], "cycle_momentum", False):
        logger.warning(
            "%s also changes the momentum, but a run keeps the one with which it starts: pass cycle_momentum=False",
            type(settings["scheduler"]).__name__,
        )
    if isinstance(settings["scheduler"], torch.optim.lr_scheduler.ReduceLROnPlateau):
        return replace(recipe, without_stepsize=no_stepsize("ReduceLROnPlateau", lr))
    if settings.get("interval") != "step" and recipe.steps is None:
        return replace(recipe, without_stepsize=SCHEDULER_OF_A_STREAM)
    return replace(recipe, schedule=_schedule(settings, lr, facts))


def _schedule(settings: Mapping[str, Any], lr: float, facts: TrainerFacts) -> Callable[[int], float]:
    steps_per_epoch = facts.estimated_stepping_batches / facts.max_epochs
    period = int(settings.get("frequency", 1)) * (1 if settings.get("interval") == "step" else int(steps_per_epoch))
    return Slower(TorchSchedule(lambda _: settings["scheduler"], lr), period)


SCHEDULER_OF_A_STREAM = (
    "the scheduler makes a step per epoch, but the number of items of an IterableDataset is not known: choose "
    "nw.Scheduled(nw.DelayAdaptive(lr), schedule) in place of usual_stepsize(), or interval 'step'"
)


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
