"""How the loss and the metrics of a model are computed from batches, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch.utils.data import DataLoader

from nowait.core import checks
from nowait.core.problem import RESERVED_METRICS
from nowait.pytorch.batches import Batches, moved
from nowait.pytorch.bound_model import BoundModel
from nowait.pytorch.rng import seeded
from nowait.pytorch.settings import ComputeSettings

Metric = Callable[[Any, Any], Any]
EVALUATED_ITEMS = 2_048
"""Without a validation set the loss is the mean over this many items of the training set."""


@final
@dataclass(frozen=True)
class EvaluationSet:
    """A validation set with a name, and batches of its own: None takes what the problem has."""

    data: Any
    name: str = ""
    batch_size: int | None = None
    collate: Any = None


class EvaluationBatch(NamedTuple):
    """A batch of the validation set with this number, and how many items it has."""

    content: Any
    items: int
    set_number: int = 0


class Evaluation(Protocol):
    """One pass over the validation set. It is called without gradients, and with the model in evaluation mode."""

    def add(self, model: torch.nn.Module, batch: EvaluationBatch, precision: AbstractContextManager[Any]) -> None:
        """Take a batch into account; outputs and losses are computed in the context ``precision``."""

    def result(self) -> dict[str, float]:
        """Return the numbers by name; one of them is the ``"loss"``."""


class Evaluations(Protocol):
    """Makes evaluations: of a loss and metrics, of a function that computes gradients itself, or of a framework."""

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return a new evaluation."""


@final
class WeightedMeans:
    """Means of numbers by name; each number has a weight, such as the number of items in its batch."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._totals

    def add(self, name: str, value: Any, weight: float) -> None:
        """Add a number or a tensor with one entry."""
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise _no_number(name, value, f" of shape {tuple(value.shape)}")
        try:
            number = float(value)  # may raise an error of the GPU, too
        except (TypeError, ValueError):
            raise _no_number(name, value) from None
        self._totals[name] = self._totals.get(name, 0.0) + weight * number
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def result(self) -> dict[str, float]:
        """Return the means."""
        return {name: total / self._weights[name] for name, total in self._totals.items()}


def _no_number(name: str, value: Any, shape: str = "") -> TypeError:
    return TypeError(
        f"{name} of a batch must be a number or a tensor with one entry, got a {type(value).__name__}{shape}"
    )


@final
class UsualEvaluation:
    """The means of a loss and of metrics, which are functions of (output, target)."""

    def __init__(
        self,
        forward: Callable[[torch.nn.Module, Any], tuple[Any, Any]],
        loss: Callable[[Any, Any], torch.Tensor],
        metrics: Mapping[str, Metric],
    ) -> None:
        self._forward, self._loss, self._metrics = forward, loss, metrics
        self._means = WeightedMeans()

    def add(self, model: torch.nn.Module, batch: EvaluationBatch, precision: AbstractContextManager[Any]) -> None:
        """Add the loss and the metrics of a batch, weighted by its number of items."""
        with precision:
            output, target = self._forward(model, batch.content)
            self._means.add("loss", self._loss(output, target), batch.items)
        for name, metric in self._metrics.items():
            self._means.add(name, metric(output, target), batch.items)

    def result(self) -> dict[str, float]:
        """Return the means over all items."""
        return self._means.result()


@final
@dataclass(frozen=True)
class UsualEvaluations:
    """Makes evaluations of a loss and of metrics."""

    forward: Callable[[torch.nn.Module, Any], tuple[Any, Any]]
    loss: Callable[[Any, Any], torch.Tensor]
    metrics: Mapping[str, Metric]

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return a new evaluation."""
        return UsualEvaluation(self.forward, self.loss, self.metrics if with_metrics else {})


@final
@dataclass(frozen=True)
class SeparateEvaluations:
    """Makes evaluations of several validation sets: the numbers of each are named after it."""

    names: tuple[str, ...]
    of_one_set: Evaluations

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return a new evaluation."""
        return SeparateEvaluation(self.names, lambda: self.of_one_set.evaluation(with_metrics=with_metrics))


@final
class SeparateEvaluation:
    """``near_loss`` and ``far_loss`` of two sets, say, and as the loss the mean over the items of all sets."""

    def __init__(self, names: tuple[str, ...], new_evaluation: Callable[[], Evaluation]) -> None:
        self._names, self._new_evaluation = names, new_evaluation
        self._evaluations: dict[int, Evaluation] = {}
        self._items: dict[int, int] = {}

    def add(self, model: torch.nn.Module, batch: EvaluationBatch, precision: AbstractContextManager[Any]) -> None:
        """Add a batch to the evaluation of its set."""
        number = batch.set_number
        if number not in self._evaluations:
            self._evaluations[number] = self._new_evaluation()
        self._evaluations[number].add(model, batch, precision)
        self._items[number] = self._items.get(number, 0) + batch.items

    def result(self) -> dict[str, float]:
        """Return the numbers of all sets, and the mean loss."""
        loss, values = WeightedMeans(), dict[str, float]()
        for number, evaluation in self._evaluations.items():
            found = evaluation.result()
            values |= {f"{self._names[number]}_{name}": value for name, value in found.items()}
            loss.add("loss", found["loss"], self._items[number])
        return values | loss.result()


@final
@dataclass(frozen=True)
class EvaluatedItems:
    """The items on which params are evaluated: those of the validation sets, or the first ones of the training set."""

    training: Batches
    sets: tuple[EvaluationSet, ...]
    batch_size: int

    @classmethod
    def of(cls, training: Batches, validation: Any, batch_size: int | None) -> EvaluatedItems:
        """Check the arguments of a problem."""
        size = 4 * training.size.usual
        if batch_size is not None:
            size = checks.at_least(1, batch_size, "evaluation_batch_size", "a loss needs items")
        return cls(training, _checked_sets(validation), size)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the validation sets; empty if there is at most one."""
        return tuple(part.name for part in self.sets) if self.sets and self.sets[0].name else ()

    def batches(self) -> Iterator[EvaluationBatch]:
        """Yield the batches of all sets."""
        if not self.sets:
            yield from self._batches_of_training()
        for number in range(len(self.sets)):
            yield from self._batches_of(number)

    def first_batches(self) -> Iterator[EvaluationBatch]:
        """Yield the first batch of every set, for checks."""
        return (next(self._batches_of(number)) for number in range(len(self.sets)))

    def _batches_of(self, number: int) -> Iterator[EvaluationBatch]:
        part = self.sets[number]
        batches = self.training if part.collate is None else replace(self.training, collate=part.collate)
        name = f"validation[{part.name!r}]" if part.name else "validation"
        size, count = part.batch_size or self.batch_size, len(part.data)
        for first in range(0, count, size):
            items, content = batches.some(np.arange(first, min(first + size, count)), part.data, name)
            yield EvaluationBatch(content, items, number)

    def _batches_of_training(self) -> Iterator[EvaluationBatch]:
        training, size = self.training, self.batch_size
        if training.is_stream:
            yield EvaluationBatch(training.first(min(size, EVALUATED_ITEMS)), size)
            return
        count = min(len(training.data), EVALUATED_ITEMS)
        for first in range(0, count, size):
            items, content = training.some(np.arange(first, min(first + size, count)), training.data)
            yield EvaluationBatch(content, items)


def _checked_sets(validation: Any) -> tuple[EvaluationSet, ...]:
    """Return the validation sets: none, one without a name, or those of a dictionary."""
    if validation is None:
        return ()
    if not isinstance(validation, Mapping):
        return (_checked_set(validation, "", "validation"),)
    if not validation:
        raise ValueError("validation is empty: leave it out to evaluate on the training set")
    for name in validation:
        if not isinstance(name, str) or not name or f"{name}_loss" in RESERVED_METRICS:
            raise ValueError(
                f"a validation set cannot be called {name!r}: its loss becomes the metric {name}_loss, so its name "
                f"must be text, and not 'training'"
            )
    return tuple(_checked_set(data, name, f"validation[{name!r}]") for name, data in validation.items())


def _checked_set(data: Any, name: str, argument: str) -> EvaluationSet:
    part = replace(data, name=name) if isinstance(data, EvaluationSet) else EvaluationSet(data, name)
    if isinstance(part.data, DataLoader):
        raise TypeError(f"{argument} must be a data set, got a DataLoader: pass its dataset, and batch sizes here")
    if not (hasattr(part.data, "__getitem__") and hasattr(part.data, "__len__")):
        raise TypeError(f"{argument} must be a data set with a length and items, got {part.data!r}")
    if len(part.data) == 0:
        raise ValueError(f"{argument} is empty: leave it out to evaluate on the training set")
    return part


def evaluated(
    evaluation: Evaluation,
    bound: BoundModel,
    batches: Iterable[EvaluationBatch],
    settings: ComputeSettings,
    seed: int,
) -> dict[str, float]:
    """Return the result of an evaluation of a model, in evaluation mode, on batches."""
    bound.model.eval()
    with seeded(seed):
        for batch in batches:
            content = moved(batch.content, bound.device)
            evaluation.add(bound.model, batch._replace(content=content), settings.precision(bound.device))
        return evaluation.result()


def checked_metrics(metrics: Any, *, has_own: bool) -> dict[str, Metric]:
    """Return functions by names that are free, or raise; also if there are some and the evaluation ``has_own`` ones."""
    metrics = {} if metrics is None else metrics
    if not isinstance(metrics, Mapping) or "loss" in metrics or not all(map(callable, metrics.values())):
        raise ValueError("metrics must map names to functions of (output, target), and no name may be 'loss'")
    if reserved := sorted(RESERVED_METRICS.intersection(metrics)):
        raise ValueError(f"no metric may be called {reserved[0]!r}: that is another column of metrics.jsonl")
    if metrics and has_own:
        raise ValueError("metrics= needs a loss of (output, target): these evaluations have metrics of their own")
    return dict(metrics)
