"""Gradients from a function of the user that calls ``backward`` itself: several losses, alternating steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any, final

import torch

from nowait.core import Sample
from nowait.pytorch.evaluation import Evaluation, EvaluationBatch, WeightedMeans

Manual = Callable[[torch.nn.Module, Any, Sample], Any]
"""``manual(model, batch, sample)`` leaves gradients in ``.grad`` and returns a loss, or a dict with ``"loss"``."""
FIRST = Sample(worker=0, job=0, key=0)
"""The sample that the function gets in evaluations and checks."""


@final
class ManualStep:
    """``forward`` and ``loss`` of a problem whose gradients are left by a function."""

    def __init__(self, manual: Manual) -> None:
        self.function, self.sample = manual, FIRST

    @classmethod
    def of(cls, manual: Any, accumulate: Any, loss_scale: float) -> ManualStep:
        """Check the arguments of a problem."""
        if not callable(manual):
            raise TypeError(f"manual must be a function of (model, batch, sample), got {manual!r}")
        if accumulate != 1 or loss_scale != 1:
            raise ValueError(
                "accumulate and loss_scale have no effect on manual=: call backward several times in it, "
                "and scale the loss there"
            )
        return cls(manual)

    def forward(self, model: torch.nn.Module, batch: Any) -> tuple[Any, None]:
        """Let the function compute the gradients; return its loss."""
        numbers = numbers_of(self.function(model, batch, self.sample))
        if all(parameter.grad is None for parameter in model.parameters()):
            raise ValueError("manual left no gradients: it must call backward on its losses")
        return torch.as_tensor(numbers["loss"]).detach(), None

    def loss(self, value: torch.Tensor, _: None) -> torch.Tensor:
        """Return the loss as a tensor whose ``backward`` adds nothing to the gradients of the model."""
        return value + torch.zeros((), dtype=value.dtype, device=value.device, requires_grad=True)

    def evaluation(self, *, with_metrics: bool) -> Evaluation:
        """Return an evaluation by the numbers that the function returns."""
        return ManualEvaluation(self.function, with_metrics=with_metrics)


@final
class ManualEvaluation:
    """The means of what the function returns; the gradients that it leaves are removed."""

    def __init__(self, manual: Manual, *, with_metrics: bool) -> None:
        self._manual, self._with_metrics = manual, with_metrics
        self._means = WeightedMeans()

    def add(self, model: torch.nn.Module, batch: EvaluationBatch, precision: AbstractContextManager[Any]) -> None:
        """Add the numbers of a batch, weighted by its number of items."""
        with precision, torch.enable_grad():
            numbers = numbers_of(self._manual(model, batch.content, FIRST))
        for parameter in model.parameters():
            parameter.grad = None
        for name, value in numbers.items():
            if self._with_metrics or name == "loss":
                self._means.add(name, value, batch.items)

    def result(self) -> dict[str, float]:
        """Return the means over all items."""
        return self._means.result()


def numbers_of(result: Any) -> Mapping[str, Any]:
    """Return what the function returned as a dict with the loss, or raise a TypeError."""
    numbers = result if isinstance(result, Mapping) else {"loss": result}
    for name in ("loss", *numbers):
        value = numbers.get(name)
        if not isinstance(value, Real) and not (isinstance(value, torch.Tensor) and value.dim() == 0):
            raise TypeError(
                f"manual must return a loss, or a dict of numbers and scalar tensors with a 'loss', "
                f"but {name!r} is {type(value).__name__}"
            )
    return {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in numbers.items()}
