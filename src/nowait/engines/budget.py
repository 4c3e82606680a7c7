"""When a run ends, and when its loss is evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from nowait.core import checks
from nowait.core.problem import Evaluation
from nowait.recording.monitor import Monitor, lower_is_better
from nowait.recording.target import is_reached

EVALUATIONS = 100
"""The number of evaluations of a run by default."""
STEPS_BETWEEN_EVALUATIONS = 100
"""Steps between evaluations by default if the length of the run is not known."""
SIGNS = ("<=", ">=")


@final
@dataclass(frozen=True)
class Budget:
    """The run ends at whichever of these comes first."""

    steps: int | None = None
    gradients: int | None = None
    seconds: float | None = None
    target_loss: float | None = None
    target: Mapping[str, Any] | None = None
    """The values that metrics have to reach, all in one evaluation: 0.9 is at least 0.9, ("<=", 20) is at most 20.

    For names that end in "loss", a number alone is the most.
    """

    def __post_init__(self) -> None:
        if self.only_a_loss_ends_it and not self.has_target:
            raise ValueError(
                "a run needs an end: give at least one of steps=, gradients=, seconds=, target_loss= and target="
            )
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
        if self.target is not None:
            checks.store(self, target=_checked_target(self.target))

    @property
    def has_target(self) -> bool:
        """True if a loss or metrics may end the run."""
        return self.target_loss is not None or bool(self.target)

    def reached(self, evaluation: Evaluation) -> bool:
        """Return True if an evaluation reached ``target_loss`` or ``target``."""
        return is_reached(evaluation.values, self.target_loss, self.target)

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


def _checked_target(target: Any) -> dict[str, tuple[str, float]]:
    """Return a sign and a value for every metric."""
    if not isinstance(target, Mapping) or not target:
        raise TypeError(f'target must map metrics to values, as in {{"accuracy": 0.9}}, got {checks.shown(target)}')
    return {Monitor.of(name, argument="target").name: _checked_goal(name, goal) for name, goal in target.items()}


def _checked_goal(name: str, goal: Any) -> tuple[str, float]:
    sign, value = ("<=" if lower_is_better(name) else ">="), goal
    if isinstance(goal, tuple | list):
        if len(goal) != 2 or goal[0] not in SIGNS:
            raise ValueError(f'target[{name!r}] must be a number, or as in ("<=", 20), got {checks.shown(goal)}')
        sign, value = goal
    return sign, checks.finite(value, f"target[{name!r}]", "no metric would ever reach it")


@final
@dataclass(frozen=True)
class EvaluationPlan:
    """The number of steps, gradients or seconds between evaluations; infinity means never."""

    steps: float = math.inf
    gradients: float = math.inf
    seconds: float = math.inf
    at_multiples: bool = False
    """True for evaluations at multiples of ``seconds``; otherwise they are ``seconds`` after the last one."""

    def described(self) -> dict[str, Any]:
        """Return the fields for ``config.json``; one that older versions did not have only if it is set."""
        fields = {"type": "EvaluationPlan", "steps": self.steps, "gradients": self.gradients, "seconds": self.seconds}
        return fields | ({"at_multiples": True} if self.at_multiples else {})

    @classmethod
    def of(
        cls,
        evaluate_every: int | None,
        budget: Budget,
        evaluations: int = EVALUATIONS,
        evaluate_seconds: float | None = None,
    ) -> EvaluationPlan:
        """Return a plan for every ``evaluate_every`` steps and all multiples of ``evaluate_seconds``.

        None for both spreads about ``evaluations`` over the budget.
        """
        if evaluate_seconds is not None:
            seconds = checks.positive(evaluate_seconds, "evaluate_seconds", "it is the time between two evaluations")
            steps = math.inf if evaluate_every is None else cls.of(evaluate_every, budget).steps
            return cls(steps=steps, seconds=seconds, at_multiples=True)
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
