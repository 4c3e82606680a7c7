"""The schedulers of ``torch.optim.lr_scheduler`` as schedules of the stepsize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

MakeScheduler = Callable[[torch.optim.Optimizer], Any]


def lr_schedule(make: MakeScheduler) -> TorchSchedule:
    """Return a schedule for ``nw.Scheduled`` from a scheduler of PyTorch, which ``make(optimizer)`` returns.

    The optimiser has a learning rate of 1, so the learning rates that the scheduler sets are the factors of the
    stepsize. Its steps are those of the server. Only the learning rate is used, not a momentum.

    >>> schedule = lr_schedule(
    ...     lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    ... )
    >>> [schedule(step) for step in (1, 2, 3, 5)]
    [1.0, 1.0, 0.5, 0.25]
    """
    return TorchSchedule(make)


@final
class TorchSchedule:
    """The factor of every step, computed in order by stepping a scheduler, and kept.

    A scheduler with an optimiser of its own gives learning rates, which are divided by ``lr``.
    """

    def __init__(self, make: MakeScheduler, lr: float = 1.0) -> None:
        if not callable(make):
            raise TypeError(
                f"lr_schedule needs a function that returns a scheduler, as in "
                f"lr_schedule(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30)), got {make!r}"
            )
        self._make, self._lr = make, lr
        self._reset()
        self(2)  # raises now for a scheduler that needs more than the number of the step

    def __call__(self, step: int) -> float:
        """Return the factor of a step; the first one is step 1."""
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}: the first step is step 1")
        while len(self._factors) < step:
            self._advance()
        return self._factors[step - 1]

    def _advance(self) -> None:
        try:
            self._scheduler.step()
        except Exception as error:
            raise ValueError(
                f"the scheduler does not give a factor for step {len(self._factors) + 1}: {error}"
            ) from error
        self._factors.append(self._factor())

    def _reset(self) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
        self._scheduler = self._make(optimizer)
        if not isinstance(self._scheduler, torch.optim.lr_scheduler.LRScheduler):
            raise TypeError(f"lr_schedule needs a function that returns a scheduler, got {self._scheduler!r}")
        self._scheduler.optimizer.step()  # a scheduler warns if it is stepped before its optimiser
        self._factors = [self._factor()]

    def _factor(self) -> float:
        return float(self._scheduler.optimizer.param_groups[0]["lr"]) / self._lr

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_lr": self._lr}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make, self._lr = state["_make"], state["_lr"]
        self._reset()

    def __repr__(self) -> str:
        return f"lr_schedule({getattr(self._make, '__qualname__', self._make)})"
