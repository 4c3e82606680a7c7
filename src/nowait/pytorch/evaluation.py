"""How the loss and the metrics of a model are computed from batches, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, final

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


class Evaluation(Protocol):
    """One pass over the validation set. It is called without gradients, and with the model in evaluation mode."""

    def add(self, model: torch.nn.Module, batch: Any, items: int, precision: AbstractContextManager[Any]) -> None:
        """Take a batch of some items into account; outputs and losses are computed in the context ``precision``."""

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

    def add(self, model: torch.nn.Module, batch: Any, items: int, precision: AbstractContextManager[Any]) -> None:
        """Add the loss and the metrics of a batch, weighted by its number of items."""
        with precision:
            output, target = self._forward(model, batch)
            self._means.add("loss", self._loss(output, target), items)
        for name, metric in self._metrics.items():
            self._means.add(name, metric(output, target), items)

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
class EvaluatedItems:
    """The items on which params are evaluated: the validation set, or the first items of the training set."""

    training: Batches
    validation: Any
    batch_size: int

    @classmethod
    def of(cls, training: Batches, validation: Any, batch_size: int | None) -> EvaluatedItems:
        """Check the arguments of a problem."""
        size = 4 * training.size.usual
        if batch_size is not None:
            size = checks.at_least(1, batch_size, "evaluation_batch_size", "a loss needs items")
        if isinstance(validation, DataLoader):
            raise TypeError("validation must be a data set, got a DataLoader: pass its dataset, and batch sizes here")
        if validation is not None and not (hasattr(validation, "__getitem__") and hasattr(validation, "__len__")):
            raise TypeError(f"validation must be a data set with a length and items, got {validation!r}")
        if validation is not None and len(validation) == 0:
            raise ValueError("validation is empty: leave it out to evaluate on the training set")
        return cls(training, validation, size)

    def batches(self) -> Iterator[tuple[int, Any]]:
        """Yield batches, each with its number of items."""
        size = self.batch_size
        if self.validation is None and self.training.is_stream:
            batch = self.training.first(min(size, EVALUATED_ITEMS))
            yield size, batch
            return
        name = "train_set" if self.validation is None else "validation"
        data = self.training.data if self.validation is None else self.validation
        count = min(len(data), EVALUATED_ITEMS) if self.validation is None else len(data)
        for first in range(0, count, size):
            places = np.arange(first, min(first + size, count))
            yield self.training.some(places, data, name)


def evaluated(
    evaluation: Evaluation, bound: BoundModel, batches: Iterable[tuple[int, Any]], settings: ComputeSettings, seed: int
) -> dict[str, float]:
    """Return the result of an evaluation of a model, in evaluation mode, on batches with their numbers of items."""
    bound.model.eval()
    with seeded(seed):
        for items, batch in batches:
            evaluation.add(bound.model, moved(batch, bound.device), items, settings.precision(bound.device))
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
