"""Delay rules for training loops that do not use nowait's engines, and delays on one machine to try them with."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch

from nowait.core import checks
from nowait.core.stepsizes import Stepsize
from nowait.rules import SCALES, Rule, checked_factor, delay_adaptive, factor_of

Gradients = list[torch.Tensor | None]


class _Around:
    """Around an optimiser, whose groups and state it has."""

    optimizer: torch.optim.Optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimiser."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        """The state of the optimiser."""
        return self.optimizer.state


@final
class DelayAware(_Around):
    """Wraps a ``torch.optim`` optimiser: ``step(delay=τ)`` scales the step as a delay rule says.

    ``rule`` is a function of (delay, workers), such as those of ``nowait.rules``, or a stepsize rule, whose γ does not
    matter, and which may not depend on the step. A fresh gradient has delay 1. ``scale="step"`` multiplies the learning
    rate, ``"gradient"`` the gradient, before it enters the moments of Adam, and leaves it so. With a factor of 0 no
    step is made. Learning-rate schedulers take the inner ``optimizer``.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = DelayAware(torch.optim.SGD(model.parameters(), lr=0.1), workers=4)
    >>> model(torch.ones(2)).backward()
    >>> optimizer.step(delay=8)  # with a learning rate of 0.05
    0.5
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rule: Stepsize | Rule = delay_adaptive,
        *,
        workers: int,
        scale: str = "step",
    ) -> None:
        self.optimizer = checks.instance(optimizer, torch.optim.Optimizer, "optimizer", "torch.optim.AdamW(...)")
        self.workers = checks.at_least(1, workers, "workers", "delays are compared with it")
        self._factor, self._scale = factor_of(rule), checks.one_of(scale, SCALES, "scale")
        self.zero_grad, self.state_dict = optimizer.zero_grad, optimizer.state_dict
        self.load_state_dict = optimizer.load_state_dict

    def step(self, *, delay: int) -> float:
        """Make a step along gradients with a delay; returns the factor by which it was scaled."""
        factor = checked_factor(self._factor, delay, self.workers)
        if factor > 0:
            if self._scale == "gradient":
                self._scale_gradients(factor)
                self.optimizer.step()
            else:
                with self._scaled_learning_rates(factor):
                    self.optimizer.step()
        return factor

    @torch.no_grad()
    def _scale_gradients(self, factor: float) -> None:
        for gradient in _gradients_of(self.optimizer):
            if gradient is not None and factor != 1:
                gradient.mul_(factor)

    @contextmanager
    def _scaled_learning_rates(self, factor: float) -> Iterator[None]:
        groups = self.optimizer.param_groups
        rates = [group["lr"].clone() if isinstance(group["lr"], torch.Tensor) else group["lr"] for group in groups]
        try:
            for group, rate in zip(groups, rates, strict=True):
                _set_rate(group, rate * factor)
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                _set_rate(group, rate)

    def __repr__(self) -> str:
        return f"DelayAware({self.optimizer!r}, workers={self.workers}, scale={self._scale!r})"


@final
class Delayed(_Around):
    """Wraps a ``torch.optim`` optimiser: every gradient is applied late, so that its delay is ``delay``.

    It simulates asynchronous training on one machine, to measure how much delay your training tolerates. The first
    ``delay`` − 1 calls of ``step`` make no step; after that each makes one along the gradients of ``delay`` − 1 calls
    before. It holds ``delay`` − 1 copies of the gradients. ``optimizer`` may be a ``DelayAware``.

    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = Delayed(torch.optim.SGD(model.parameters(), lr=0.1), delay=4)
    """

    def __init__(self, optimizer: torch.optim.Optimizer | DelayAware, delay: int) -> None:
        self._wrapped = optimizer
        inner = optimizer.optimizer if isinstance(optimizer, DelayAware) else optimizer
        self.optimizer = checks.instance(inner, torch.optim.Optimizer, "optimizer", "torch.optim.AdamW(...)")
        self.delay = checks.at_least(1, delay, "delay", "a fresh gradient has delay 1")
        self._waiting: deque[Gradients] = deque()
        """The gradients that were not applied yet, the oldest first."""
        self.zero_grad = inner.zero_grad

    def step(self) -> bool:
        """Put the present gradients at the end of the queue, and apply the first ones. Returns True if a step was made.

        The gradients of the parameters are the present ones again afterwards.
        """
        present = _gradients_of(self.optimizer)
        if self.delay == 1:
            self._apply()
            return True
        self._waiting.append([None if gradient is None else gradient.clone() for gradient in present])
        if len(self._waiting) < self.delay:
            return False
        _set_gradients(self.optimizer, self._waiting.popleft())
        try:
            self._apply()
        finally:
            _set_gradients(self.optimizer, present)
        return True

    def _apply(self) -> None:
        if isinstance(self._wrapped, DelayAware):
            self._wrapped.step(delay=self.delay)
        else:
            self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimiser and the gradients that were not applied yet."""
        return {"optimizer": self.optimizer.state_dict(), "waiting": [list(kept) for kept in self._waiting]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self._waiting = deque(list(kept) for kept in state["waiting"])

    def __repr__(self) -> str:
        return f"Delayed({self._wrapped!r}, delay={self.delay})"


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _gradients_of(optimizer: torch.optim.Optimizer) -> Gradients:
    return [parameter.grad for parameter in _parameters_of(optimizer)]


def _set_gradients(optimizer: torch.optim.Optimizer, gradients: Gradients) -> None:
    for parameter, gradient in zip(_parameters_of(optimizer), gradients, strict=True):
        parameter.grad = gradient


def _set_rate(group: dict[str, Any], rate: Any) -> None:
    """Set a learning rate; one that is a tensor stays the same object, which a captured graph may read."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].copy_(rate)
    else:
        group["lr"] = rate
