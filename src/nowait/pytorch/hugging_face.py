"""A ``transformers.Trainer`` as a problem: its model, data, loss, metrics, optimiser and schedule."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from pathlib import Path
from typing import Any, final

import torch

from nowait.pytorch.adapter import Recipe, optimizer_of
from nowait.pytorch.evaluation import Evaluation, WeightedMeans
from nowait.pytorch.lr_schedule import lr_schedule

FLOAT16_SCALE = 1024.0
"""The ``loss_scale`` for ``fp16=True``."""
LEFT_OUT = ("model", "model_wrapped", "train_dataset", "eval_dataset", "callback_handler", "optimizer", "lr_scheduler")
"""Attributes of a trainer that are not sent to workers."""


def problem_arguments(trainer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``TorchProblem`` for a trainer; ``options`` take precedence."""
    _check(trainer)
    _check_device(options.get("device", trainer.args.device), trainer.args.device)
    args, template = trainer.args, _template(trainer)
    adapter = TrainerAdapter(trainer)
    loader = trainer.get_train_dataloader()
    validation = None if trainer.eval_dataset is None else trainer.get_eval_dataloader().dataset
    return {
        "build_model": lambda: copy.deepcopy(template),
        "loss": adapter.loss,
        "train_set": loader.dataset,
        "batch_size": args.per_device_train_batch_size,
        "validation": validation,
        "collate_fn": loader.collate_fn,
        "forward": adapter.forward,
        "sampling": "epochs",
        "clip_norm": args.max_grad_norm or None,
        "accumulate": args.gradient_accumulation_steps,
        "device": str(args.device),
        "autocast": "bfloat16" if args.bf16 else "float16" if args.fp16 else None,
        "loss_scale": FLOAT16_SCALE if args.fp16 else 1.0,
        "seed": args.seed,
        "adapter": adapter,
    } | dict(options)


@final
class TrainerAdapter:
    """Computes losses and metrics with the methods of a trainer, whose subclass may override them."""

    def __init__(self, trainer: Any) -> None:
        self._recipe: Recipe | None = _recipe(trainer)
        self._trainer = copy.copy(trainer)
        for name in LEFT_OUT:
            setattr(self._trainer, name, None)

    @property
    def recipe(self) -> Recipe:
        """How the trainer would train."""
        assert self._recipe is not None
        return self._recipe

    def forward(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, None]:
        """Return ``trainer.compute_loss`` of a batch."""
        with self._trainer_of(model) as trainer:
            return trainer.compute_loss(model, dict(batch)), None  # a copy: it may remove the labels

    def loss(self, loss: torch.Tensor, _: None) -> torch.Tensor:
        """Return the loss as it is."""
        return loss

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return an evaluation by ``trainer.prediction_step`` and ``compute_metrics``."""
        return TrainerEvaluation(self._trainer_of, with_metrics and self._trainer.compute_metrics is not None)

    def write_beside(self, folder: Path) -> None:
        """Write the tokeniser, or what else the trainer has in its place."""
        if self._trainer.processing_class is not None:
            self._trainer.processing_class.save_pretrained(folder)

    @contextmanager
    def _trainer_of(self, model: torch.nn.Module) -> Iterator[Any]:
        """Return the trainer; ``trainer.model`` is this model while it is used."""
        self._trainer.model = model
        try:
            yield self._trainer
        finally:
            self._trainer.model = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recipe: workers do not need it."""
        return self.__dict__ | {"_recipe": None}


@final
class TrainerEvaluation:
    """The mean loss, and ``compute_metrics`` of the predictions of all batches."""

    def __init__(self, trainer_of: Callable[[torch.nn.Module], AbstractContextManager[Any]], metrics: bool) -> None:
        from transformers.trainer_pt_utils import EvalLoopContainer

        self._trainer_of, self._has_metrics, self._means = trainer_of, metrics, WeightedMeans()
        self._predictions, self._labels = (EvalLoopContainer(True, padding_index=-100) for _ in range(2))
        self._compute_metrics: Callable[..., Any] | None = None

    def add(self, model: torch.nn.Module, batch: Any, items: int, precision: AbstractContextManager[Any]) -> None:
        """Add the loss of a batch, and keep its predictions and labels if there are metrics."""
        with precision, self._trainer_of(model) as trainer:
            loss, predictions, labels = trainer.prediction_step(model, dict(batch), not self._has_metrics)
            if loss is None:
                raise ValueError(f"the trainer computes no loss in evaluations: a batch has {', '.join(batch)}")
            self._means.add("loss", loss, items)
            if self._has_metrics:
                if trainer.preprocess_logits_for_metrics is not None:
                    predictions = trainer.preprocess_logits_for_metrics(predictions, labels)
                self._predictions.add(predictions)
                self._labels.add(labels)
                self._predictions.to_cpu_and_numpy()
                self._labels.to_cpu_and_numpy()
                self._compute_metrics = trainer.compute_metrics

    def result(self) -> dict[str, float]:
        """Return the loss and the metrics that are numbers, without the prefix ``eval_``."""
        from transformers import EvalPrediction

        loss = self._means.result()
        if self._compute_metrics is None:
            return loss
        values = self._compute_metrics(
            EvalPrediction(predictions=self._predictions.get_arrays(), label_ids=self._labels.get_arrays())
        )
        if not isinstance(values, Mapping):
            raise TypeError(f"compute_metrics must return a dict of numbers by name, got a {type(values).__name__}")
        numbers = {str(name).removeprefix("eval_"): value for name, value in values.items()}
        return {name: float(value) for name, value in numbers.items() if isinstance(value, Real)} | loss


def _check(trainer: Any) -> None:
    """Raise unless the trainer can be used."""
    if not callable(getattr(trainer, "compute_loss", None)) or not hasattr(trainer, "args"):
        raise TypeError(f"from_trainer needs a transformers.Trainer, got {type(trainer).__name__}")
    args = trainer.args
    if trainer.lr_scheduler is not None:
        raise ValueError(
            "the trainer has a scheduler that belongs to its optimiser: make a new Trainer that has not trained, with "
            "optimizers=(optimizer, None), and choose lr_scheduler_type"
        )
    if trainer.train_dataset is None:
        raise ValueError("the trainer has no train_dataset: there is nothing to train on")
    if isinstance(trainer.eval_dataset, dict):
        raise ValueError(f"eval_dataset must be one data set, got {len(trainer.eval_dataset)}: choose one of them")
    for name in ("neftune_noise_alpha", "batch_eval_metrics", "include_for_metrics", "deepspeed", "fsdp"):
        if getattr(args, name, None):
            raise ValueError(f"from_trainer does not support {name} of TrainingArguments: leave it out")


def _check_device(device: Any, of_trainer: torch.device) -> None:
    """Raise unless the first device, on which evaluations run, is the one to which the trainer moves batches."""
    first = torch.device(device if isinstance(device, str | torch.device) else device[0])
    if (first.type, first.index or 0) != (of_trainer.type, of_trainer.index or 0):
        raise ValueError(
            f"the first device must be that of the trainer, {of_trainer}, got {first}: evaluations run there; "
            f"set use_cpu of TrainingArguments, or another order of devices"
        )


def _template(trainer: Any) -> torch.nn.Module:
    """Return a copy of the model in host memory."""
    template: torch.nn.Module = copy.deepcopy(trainer.model).to("cpu")
    if trainer.args.gradient_checkpointing:
        template.gradient_checkpointing_enable(trainer.args.gradient_checkpointing_kwargs)  # type: ignore[operator]
    return template


def _recipe(trainer: Any) -> Recipe:
    maker, steps = copy.copy(trainer), _num_steps(trainer)
    kind, groups, lr = optimizer_of(maker.create_optimizer(), trainer.model)

    def make_scheduler(optimizer: torch.optim.Optimizer) -> Any:
        other = copy.copy(trainer)
        other.optimizer = optimizer
        return other.create_scheduler(steps, optimizer)

    return Recipe(kind, groups, lr, lr_schedule(make_scheduler), steps)


def _num_steps(trainer: Any) -> int:
    """Return how many steps the trainer would make in one process."""
    args = trainer.args
    if args.max_steps > 0:
        return int(args.max_steps)
    batches: int = math.ceil(len(trainer.train_dataset) / args.per_device_train_batch_size)
    epochs: float = args.num_train_epochs
    return math.ceil(epochs * math.ceil(batches / int(args.gradient_accumulation_steps)))
