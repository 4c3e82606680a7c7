"""When a run ends, and when its loss is evaluated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from nowait.core import checks

EVALUATIONS = 100
"""The number of evaluations of a run by default."""
STEPS_BETWEEN_EVALUATIONS = 100
"""Steps between evaluations by default if the length of the run is not known."""


@final
@dataclass(frozen=True)
class Budget:
    """The run ends at whichever of these comes first."""

    steps: int | None = None
    gradients: int | None = None
    seconds: float | None = None
    target_loss: float | None = None

    def __post_init__(self) -> None:
        if self.only_a_loss_ends_it and self.target_loss is None:
            raise ValueError("a run needs an end: give at least one of steps=, gradients=, seconds= and target_loss=")
        if self.steps is not None:
            checks.store(self, steps=checks.at_least(1, self.steps, "steps", "a run of no steps has no result"))
        if self.gradients is not None:
            why = "a run of no gradients has no result"
            checks.store(self, gradients=checks.at_least(1, self.gradients, "gradients", why))
        if self.seconds is not None:
            checks.store(self, seconds=checks.positive(self.seconds, "seconds", "a run of no time has no result"))
        if self.target_loss is not None:
            why = "no loss would ever reach it"
            checks.store(self, target_loss=checks.finite(self.target_loss, "target_loss", why))

    @property
    def only_a_loss_ends_it(self) -> bool:
        """True if neither steps nor gradients nor seconds are limited."""
        return self.steps is None and self.gradients is None and self.seconds is None

    def exhausted(self, steps: int, gradients: int) -> bool:
        """Return True if the steps or the gradients are used up."""
        return steps >= (self.steps or math.inf) or gradients >= (self.gradients or math.inf)

    def share_used(self, steps: int, gradients: int, time: float) -> float | None:
        """Return the fraction of the budget that is used; None if only a loss ends the run."""
        used = [
            done / whole
            for done, whole in ((steps, self.steps), (gradients, self.gradients), (time, self.seconds))
            if whole is not None
        ]
        return min(1.0, max(used)) if used else None


@final
@dataclass(frozen=True)
class EvaluationPlan:
    """The number of steps, gradients or seconds between evaluations; infinity means never."""

    steps: float = math.inf
    gradients: float = math.inf
    seconds: float = math.inf

    @classmethod
    def of(cls, evaluate_every: int | None, budget: Budget, evaluations: int = EVALUATIONS) -> EvaluationPlan:
        """Return a plan for every ``evaluate_every`` steps; None spreads about ``evaluations`` over the budget."""
        if evaluate_every is not None:
            why = "it counts the steps between two evaluations; for none in between, give the number of steps"
            return cls(steps=checks.at_least(1, evaluate_every, "evaluate_every", why))
        if budget.only_a_loss_ends_it:
            return cls(steps=STEPS_BETWEEN_EVALUATIONS)
        return cls(
            steps=math.inf if budget.steps is None else max(1, budget.steps // evaluations),
            gradients=math.inf if budget.gradients is None else max(1, budget.gradients // evaluations),
            seconds=math.inf if budget.seconds is None else budget.seconds / evaluations,
        )
