"""When a session next has to evaluate the loss or end the run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.run_server import RunCounters


@final
@dataclass(slots=True)
class Due:
    """The counts below which a session has nothing to do after an event: no evaluation and no end of the run.

    An event that reaches one of ``steps``, ``gradients`` and ``time`` makes the session check.
    """

    steps: float = 0.0
    gradients: float = 0.0
    time: float = 0.0
    evaluation: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Steps, gradients and time of the next evaluation."""
    end: tuple[float, float] = (math.inf, math.inf)
    """Steps and gradients at which the budget is used up."""
    look: float = math.inf
    """Gradients at which the session looks for a standstill."""
    paused: bool = False
    """True while an evaluation is running: the next one waits for its result."""

    def plan(self, server: RunCounters, evaluations: EvaluationPlan, budget: Budget) -> None:
        """Set the next evaluation, counted from now, and the end of the budget."""
        self.evaluation = (
            _next_multiple(server.steps, evaluations.steps),
            _next_multiple(server.counts.gradients, evaluations.gradients),
            _next_multiple(server.now, evaluations.seconds)
            if evaluations.at_multiples
            else server.now + evaluations.seconds,
        )
        self.end = (budget.steps or math.inf, budget.gradients or math.inf)
        self.unpause()

    def pause(self) -> None:
        """Start no further evaluation until ``unpause``."""
        self.paused = True
        self.steps, self.gradients, self.time = self.end[0], min(self.end[1], self.look), math.inf

    def unpause(self) -> None:
        """Allow evaluations again."""
        self.paused = False
        steps, gradients, self.time = self.evaluation
        self.steps, self.gradients = min(steps, self.end[0]), min(gradients, self.end[1], self.look)

    def look_at(self, gradients: float) -> None:
        """Look for a standstill at so many gradients."""
        self.look = gradients
        if self.paused:
            self.pause()
        else:
            self.unpause()

    def for_evaluation(self, server: RunCounters) -> bool:
        """Return True if the loss should be evaluated now."""
        steps, gradients, time = self.evaluation
        due = server.steps >= steps or server.counts.gradients >= gradients or server.now >= time
        return due and not self.paused


def _next_multiple(count: float, every: float) -> float:
    return (count // every + 1) * every if every < math.inf else math.inf
