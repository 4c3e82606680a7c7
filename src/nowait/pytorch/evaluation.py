"""How the loss and the metrics of a model are computed from batches, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, final

import torch

from nowait.core.problem import RESERVED_METRICS

Metric = Callable[[Any, Any], Any]


class Evaluation(Protocol):
    """One pass over the validation set. It is called without gradients, and with the model in evaluation mode."""

    def add(self, model: torch.nn.Module, batch: Any, items: int, precision: AbstractContextManager[Any]) -> None:
        """Take a batch of some items into account; outputs and losses are computed in the context ``precision``."""

    def result(self) -> dict[str, float]:
        """Return the numbers by name; one of them is the ``"loss"``."""


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
        self._totals[name] = self._totals.get(name, 0.0) + weight * float(value)
        self._weights[name] = self._weights.get(name, 0.0) + weight

    def result(self) -> dict[str, float]:
        """Return the means."""
        return {name: total / self._weights[name] for name, total in self._totals.items()}


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


def check_metrics(metrics: Mapping[str, Metric], *, has_own: bool) -> None:
    """Raise unless these are functions under names that are free; or if the evaluation ``has_own`` metrics."""
    if "loss" in metrics or not all(map(callable, metrics.values())):
        raise ValueError("metrics must map names to functions of (output, target), and no name may be 'loss'")
    if reserved := sorted(RESERVED_METRICS.intersection(metrics)):
        raise ValueError(f"no metric may be called {reserved[0]!r}: that is another column of metrics.jsonl")
    if metrics and has_own:
        raise ValueError("metrics= needs a loss of (output, target): these evaluations have metrics of their own")
