"""A ``transformers.Trainer`` as a problem: its model, data, loss, metrics, optimiser and schedule."""

from __future__ import annotations

import copy
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, final

import torch

from nowait.core import Sample
from nowait.pytorch.adapter import DroppedLogs, Progress, Recipe, no_stepsize, none_explained, optimizer_of
from nowait.pytorch.data_loaders import (
    Epoch,
    TrainingData,
    checked_loader,
    evaluation_set,
    warn_of_loader_options,
)
from nowait.pytorch.evaluation import Evaluation, EvaluationBatch, EvaluationSet, WeightedMeans
from nowait.pytorch.lr_schedule import lr_schedule
from nowait.pytorch.trainer_support import check_supported

logger = logging.getLogger("nowait")

FLOAT16_SCALE = 1024.0
"""The ``loss_scale`` for ``fp16=True``."""
LEFT_OUT = (
    "model",
    "model_init",
    "model_wrapped",
    "train_dataset",
    "eval_dataset",
    "callback_handler",
    "optimizer",
    "lr_scheduler",
    "_eval_dataloaders",
)
"""Attributes of a trainer that are not sent to workers."""
NONE = (
    "workers do not have the data sets, the optimiser and the scheduler of the trainer: self.train_dataset and the "
    "like are None in compute_loss. What it needs of them must be an attribute of its own"
)
PREPARED = ("_models", "_optimizers", "_schedulers", "_dataloaders", "_custom_objects", "trackers")
"""Lists of an ``Accelerator`` with what an earlier training has used."""
OF_ARGUMENTS = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")
"""Options of loaders that are fields of ``TrainingArguments``, with ``dataloader_`` before them."""
TRAIN, EVAL = "get_train_dataloader", "get_eval_dataloader"

Log = Callable[..., None]


def problem_arguments(trainer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``TorchProblem`` for a trainer; ``options`` take precedence."""
    _check(trainer)
    args = trainer.args
    _check_device(options.get("device", args.device), args.device)
    data = _training_data(trainer)
    arguments = {
        "build_model": _builder(trainer),
        "validation": _validation(trainer),
        "loader_workers": args.dataloader_num_workers,
        "clip_norm": args.max_grad_norm or None,
        "accumulate": args.gradient_accumulation_steps,
        "device": str(args.device),
        "autocast": "bfloat16" if args.bf16 else "float16" if args.fp16 else None,
        "loss_scale": FLOAT16_SCALE if args.fp16 else 1.0,
        "deterministic": args.full_determinism,
        "seed": args.seed,
    } | data.arguments(options)
    adapter = TrainerAdapter(trainer, data.epoch(arguments))
    return {"loss": adapter.loss, "forward": adapter.forward, "adapter": adapter} | arguments


@final
class TrainerAdapter:
    """Computes losses and metrics with the methods of a trainer, whose subclass may override them."""

    def __init__(self, trainer: Any, epoch: Epoch) -> None:
        self._recipe: Recipe | None = _recipe(trainer, epoch.steps)
        self._progress = Progress(epoch.steps, epoch.batches_per_step)
        self._trainer = _sendable(trainer, self._recipe.steps)
        self._dropped = DroppedLogs("what is logged in evaluations are metrics, too")

    @property
    def recipe(self) -> Recipe:
        """How the trainer would train."""
        assert self._recipe is not None
        return self._recipe

    @property
    def evaluates_sets_together(self) -> bool:
        """False: a Trainer evaluates each of its sets by itself."""
        return False

    def begin(self, sample: Sample) -> None:
        """Set what ``compute_loss`` may read of ``self.state``: ``global_step`` and ``epoch``."""
        self._progress.begin(sample)
        state = self._trainer.state
        state.global_step, state.epoch = self._progress.step, self._progress.epochs

    def forward(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, None]:
        """Return ``trainer.compute_loss`` of a batch, with the number of its labels, as in a step of the trainer."""
        logged: dict[str, Any] = {}
        with self._trainer_of(model, lambda logs, *_, **__: logged.update(logs)) as trainer:
            device = next(model.parameters()).device
            (batch,), count = trainer.get_batch_samples(iter([dict(batch)]), 1, device)  # a copy: labels are removed
            with trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(model, batch, num_items_in_batch=count)
        self._dropped.tell(f"compute_loss of {type(trainer).__name__}", logged, loss)
        return loss, None

    def loss(self, loss: torch.Tensor, _: None) -> torch.Tensor:
        """Return the loss as it is."""
        return loss

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return an evaluation by ``trainer.prediction_step`` and ``compute_metrics``."""
        has_metrics = self._trainer.compute_metrics is not None and not self._trainer.args.prediction_loss_only
        return TrainerEvaluation(self._evaluating_trainer, with_metrics, with_metrics and has_metrics)

    def write_beside(self, folder: Path) -> None:
        """Write the tokeniser, or what else the trainer has in its place."""
        if self._trainer.processing_class is not None:
            self._trainer.processing_class.save_pretrained(folder)

    @contextmanager
    def _trainer_of(self, model: torch.nn.Module, log: Log) -> Iterator[Any]:
        """Return the trainer; while it is used ``trainer.model`` is this model, and ``trainer.log`` this function."""
        self._trainer.model, self._trainer.log = model, log
        try:
            with none_explained(NONE):
                yield self._trainer
        finally:
            self._trainer.model = self._trainer.log = None

    def _evaluating_trainer(self, model: torch.nn.Module, log: Log) -> AbstractContextManager[Any]:
        """Return the trainer at step 0: an evaluation depends on params, not on how far the run is."""
        self._trainer.state.global_step, self._trainer.state.epoch = 0, 0
        return self._trainer_of(model, log)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recipe: workers do not need it."""
        return self.__dict__ | {"_recipe": None}


@final
class TrainerEvaluation:
    """The mean loss, what ``compute_loss`` logs, and ``compute_metrics`` of the predictions of all batches."""

    def __init__(
        self,
        trainer_of: Callable[[torch.nn.Module, Log], AbstractContextManager[Any]],
        has_logs: bool,
        has_metrics: bool,
    ) -> None:
        self._trainer_of, self._has_logs, self._has_metrics = trainer_of, has_logs, has_metrics
        self._means, self._logged = WeightedMeans(), WeightedMeans()
        self._predictions: Any = None
        self._labels: Any = None
        self._compute_metrics: Callable[..., Any] | None = None

    def add(self, model: torch.nn.Module, batch: EvaluationBatch, precision: AbstractContextManager[Any]) -> None:
        """Add the loss of a batch, and keep its predictions and labels if there are metrics."""

        def log(logs: Mapping[str, Any], *_: Any, **__: Any) -> None:
            for name, value in logs.items() if self._has_logs else ():
                self._logged.add(str(name).removeprefix("eval_"), value, batch.items)

        content = dict(batch.content)
        with precision, self._trainer_of(model, log) as trainer:
            loss, predictions, labels = trainer.prediction_step(model, content, not self._has_metrics)
            if loss is None:
                raise ValueError(f"the trainer computes no loss in evaluations: a batch has {', '.join(content)}")
            self._means.add("loss", loss, batch.items)
            if self._has_metrics:
                if trainer.preprocess_logits_for_metrics is not None:
                    predictions = trainer.preprocess_logits_for_metrics(predictions, labels)
                self._keep(predictions, labels, trainer)

    def _keep(self, predictions: Any, labels: Any, trainer: Any) -> None:
        from transformers.trainer_pt_utils import EvalLoopContainer

        if self._predictions is None:
            concatenates = trainer.args.eval_do_concat_batches
            self._predictions, self._labels = (EvalLoopContainer(concatenates, padding_index=-100) for _ in range(2))
        self._predictions.add(predictions)
        self._labels.add(labels)
        self._predictions.to_cpu_and_numpy()
        self._labels.to_cpu_and_numpy()
        self._compute_metrics = trainer.compute_metrics

    def result(self) -> dict[str, float]:
        """Return the loss and the metrics that are numbers, without the prefix ``eval_``."""
        from transformers import EvalPrediction
        from transformers.trainer_utils import denumpify_detensorize

        loss = self._logged.result() | self._means.result()
        if self._compute_metrics is None:
            return loss
        values = self._compute_metrics(
            EvalPrediction(predictions=self._predictions.get_arrays(), label_ids=self._labels.get_arrays())
        )
        if not isinstance(values, Mapping):
            raise TypeError(f"compute_metrics must return a dict of numbers by name, got a {type(values).__name__}")
        plain = denumpify_detensorize(dict(values))  # tensors with one entry become numbers
        numbers = {str(name).removeprefix("eval_"): value for name, value in plain.items()}
        return {name: float(value) for name, value in numbers.items() if isinstance(value, Real)} | loss


def _check(trainer: Any) -> None:
    """Raise unless the trainer can be used."""
    if not callable(getattr(trainer, "compute_loss", None)) or not hasattr(trainer, "args"):
        raise TypeError(f"from_trainer needs a transformers.Trainer, got {type(trainer).__name__}")
    if trainer.lr_scheduler is not None and not _made_its_scheduler(trainer):
        raise ValueError(
            "the trainer has a scheduler that belongs to its optimiser: make a new Trainer that has not trained, with "
            "optimizers=(optimizer, None), and choose lr_scheduler_type"
        )
    if trainer.train_dataset is None:
        raise ValueError("the trainer has no train_dataset: there is nothing to train on")
    check_supported(trainer)
    if trainer.state.global_step:
        logger.warning(
            "the trainer has trained for %d steps: a run starts from its params, with a new state of the optimiser and "
            "at the first step of the schedule",
            trainer.state.global_step,
        )


def _made_its_scheduler(trainer: Any) -> bool:
    """Return True if the trainer made its scheduler itself when it trained, so that it would make a new one."""
    return bool(getattr(trainer, "_created_lr_scheduler", False))


def _check_device(device: Any, of_trainer: torch.device) -> None:
    """Raise unless the first device, on which evaluations run, is the one to which the trainer moves batches."""
    first = torch.device(device if isinstance(device, str | torch.device) else device[0])
    if (first.type, first.index or 0) != (of_trainer.type, of_trainer.index or 0):
        raise ValueError(
            f"the first device must be that of the trainer, {of_trainer}, got {first}: evaluations run there; "
            f"set use_cpu of TrainingArguments, or another order of devices"
        )


def _training_data(trainer: Any) -> TrainingData:
    """Return the data of the trainer's loader; raise if workers cannot draw them as it does."""
    loader = checked_loader(trainer.get_train_dataloader(), TRAIN)
    data = TrainingData.of(loader, TRAIN)
    warn_of_loader_options({TRAIN: loader}, _loader_options(trainer.args, loader))
    if data.in_order:
        raise ValueError(
            f"{TRAIN} takes the items in their order, but workers draw those of every epoch in a random order: return "
            f"a loader with shuffle=True"
        )
    return replace(data, batch_size=data.batch_size and _per_device(data.batch_size, trainer.args, "train"))


def _loader_options(args: Any, loader: Any) -> dict[str, Any]:
    """Return the options that a Trainer gives to its loader: warnings about ``TrainingArguments`` name those."""
    own = {name: getattr(args, f"dataloader_{name}") for name in OF_ARGUMENTS}
    return own | {"worker_init_fn": loader.worker_init_fn}


def _validation(trainer: Any) -> EvaluationSet | dict[str, EvaluationSet] | None:
    """Return the data of the trainer's evaluations, or of several of them by name."""
    sets = trainer.eval_dataset
    if sets is None:
        return None
    if isinstance(sets, dict):
        return {str(name): _evaluation_set(trainer, trainer.get_eval_dataloader(name)) for name in sets}
    return _evaluation_set(trainer, trainer.get_eval_dataloader())


def _evaluation_set(trainer: Any, loader: Any) -> EvaluationSet:
    part = evaluation_set(loader, EVAL)
    return replace(part, batch_size=_per_device(part.batch_size, trainer.args, "eval"))


def _per_device(size: Any, args: Any, use: str) -> int:
    """Return a batch size for one device: that of ``TrainingArguments``, unless a loader has another one."""
    is_usual = size == getattr(args, f"{use}_batch_size")
    return int(getattr(args, f"per_device_{use}_batch_size") if is_usual else size)


def _sendable(trainer: Any, steps: int | None) -> Any:
    """Return a copy of a trainer for workers, which has no model and has not trained.

    What an ``Accelerator`` has prepared for training belongs to this process, as does the state that all of them share.
    """
    from transformers import TrainerState

    accelerator = copy.copy(trainer.accelerator)
    for name in PREPARED:
        setattr(accelerator, name, [])
    accelerator.gradient_state = copy.copy(accelerator.gradient_state)  # a copy does not share
    accelerator.gradient_state.dataloader_references = [None]
    sent, gather = copy.copy(trainer), trainer.gather_function
    sent.accelerator = accelerator
    sent.gather_function = functools.partial(accelerator.gather_for_metrics, **getattr(gather, "keywords", {}))
    sent.args = copy.copy(trainer.args)
    sent.args._n_gpu = 1  # the model of a worker is on one device
    sent.is_in_train = True  # compute_loss may read it
    sent.state = TrainerState(max_steps=steps or 0, num_train_epochs=math.ceil(trainer.args.num_train_epochs), epoch=0)
    for name in LEFT_OUT:
        setattr(sent, name, None)
    return sent


def _builder(trainer: Any) -> Callable[[], torch.nn.Module]:
    """Return a function that returns copies of the model, as the trainer would train it."""
    args = trainer.args
    template: torch.nn.Module = copy.deepcopy(trainer.model).to("cpu")
    if "_original_forward" in vars(template):  # accelerate has wrapped it, and the wrapper would call the old model
        del template._original_forward, template.forward
    if args.gradient_checkpointing:
        template.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)  # type: ignore[operator]
    compiles, options = args.torch_compile, {"backend": args.torch_compile_backend or "inductor"}
    if args.torch_compile_mode is not None:
        options["mode"] = args.torch_compile_mode

    def build_model() -> torch.nn.Module:
        model = copy.deepcopy(template)
        if compiles:
            model.compile(**options)
        return model

    return build_model


def _recipe(trainer: Any, steps_per_epoch: int | None) -> Recipe:
    maker, steps = copy.copy(trainer), _num_steps(trainer, steps_per_epoch)
    optimizer = maker.create_optimizer()
    if type(optimizer).__module__.startswith("accelerate."):  # of a trainer that has trained
        optimizer = optimizer.optimizer
    kind, groups, lr = optimizer_of(optimizer, trainer.model)

    def make_scheduler(optimizer: torch.optim.Optimizer) -> Any:
        other = copy.copy(trainer)
        other.optimizer, other.lr_scheduler = optimizer, None
        return other.create_scheduler(steps, optimizer)

    trial = make_scheduler(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0))
    if type(trial).__name__ in BY_EVALUATIONS:
        return Recipe(kind, groups, lr, None, steps, no_stepsize(type(trial).__name__, lr))
    return Recipe(kind, groups, lr, lr_schedule(make_scheduler), steps)


BY_EVALUATIONS = ("ReduceLROnPlateau", "GreedyLR")
"""Schedulers that need the values of evaluations."""


def _num_steps(trainer: Any, steps_per_epoch: int | None) -> int:
    """Return how many steps the trainer would make in one process."""
    args = trainer.args
    if args.max_steps > 0 or steps_per_epoch is None:
        return int(args.max_steps)
    return math.ceil(float(args.num_train_epochs) * steps_per_epoch)
