"""Delay-compensated SGD: correct a stale gradient towards the gradient at the current params."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from nowait.core import Arrival, Method, Server, StepsizeOrFloat, checks, method_dataclass
from nowait.core.memory import namespace_of
from nowait.core.types import Vector


@final
@dataclass
class AdaptiveStrength:
    """λ_t = largest/√(MS + 1e-7) in every coordinate; MS is the moving average of squared gradients (DC-ASGD-a)."""

    largest: float = 2.0
    """The strength before division."""
    decay: float = 0.95
    """The share of the moving average MS that is kept in each step."""

    def __post_init__(self) -> None:
        self.largest = checks.positive(self.largest, "largest", "it is the strength before division")
        self.decay = checks.fraction(self.decay, "decay", "the mean would never follow the gradients")


@final
@method_dataclass
class DelayCompensatedSGD(Method):
    """Step along g + λ·g⊙g⊙(x − x_sent), where x_sent is the point of the gradient g.

    Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation" (ICML 2017): g⊙g approximates the
    diagonal of the Hessian. ``strength`` is λ, 0.04 in their experiments, or an ``AdaptiveStrength``. The constants are
    those of public implementations, not checked against the paper's text. (Some implementations keep one moving average
    of squares per worker; here there is a single one.)
    """

    stepsize: StepsizeOrFloat
    strength: float | AdaptiveStrength = 0.04
    squares: Vector | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.strength, AdaptiveStrength):
            self.strength = checks.not_negative(self.strength, "strength", "it weighs the correction")

    def start(self, server: Server) -> None:
        """Reset the moving average of squares and give every worker a ticket."""
        self.squares = None
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Apply the corrected gradient and assign the worker a ticket at the new params."""
        gradient = arrival.gradient
        correction = gradient * gradient * (server.params - arrival.point)
        direction = gradient + self._strength(gradient) * correction
        server.apply(arrival, self.stepsize.at(arrival, server), direction=direction)
        server.assign(arrival.worker)

    def _strength(self, gradient: Vector) -> float | Vector:
        if not isinstance(self.strength, AdaptiveStrength):
            return self.strength
        new = (1 - self.strength.decay) * gradient * gradient
        self.squares = new if self.squares is None else self.strength.decay * self.squares + new
        strength: Vector = self.strength.largest / namespace_of(gradient).sqrt(self.squares + 1e-7)
        return strength
