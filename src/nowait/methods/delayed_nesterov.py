"""Delayed Nesterov: the outer optimiser of asynchronous local SGD."""

from __future__ import annotations

from dataclasses import field
from typing import Any, final

from nowait.core import Arrival, GradientSum, Method, Server, StepsizeOrFloat, checks, method_dataclass


@final
@method_dataclass
class DelayedNesterov(Method):
    """Apply g/N at each arrival; at every N-th arrival update the momentum and include it in the step.

    Liu et al., "Asynchronous Local-SGD Training for Language Modeling" (2024): with m ← β·m + mean of the last N
    gradients, the N-th step is along g/N + β·m, the others along g/N. Momentum that is updated with every stale
    gradient would overshoot. With N = 1 this is Nesterov's momentum. ``every`` is N and ``beta`` β. Usual values are
    γ = 0.7 for local steps, β = 0.9 and N close to the number of workers.
    """

    makes_its_own_update = True
    stepsize: StepsizeOrFloat
    every: int
    beta: float = 0.9
    momentum: GradientSum = field(init=False, repr=False, compare=False)
    recent: GradientSum = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.every = checks.at_least(1, self.every, "every", "it counts the arrivals between two updates of momentum")
        self.beta = checks.fraction(self.beta, "beta", "momentum would never fade")

    def start(self, server: Server) -> None:
        """Reset the momentum and give every worker a ticket."""
        self.momentum, self.recent = server.sum(), server.sum()
        super().start(server)

    def state(self) -> dict[str, Any]:
        """Return the momentum, and the gradients since its last update."""
        return {"momentum": self.momentum, "recent": self.recent}

    def resume(self, server: Server, state: dict[str, Any]) -> None:
        """Continue with the momentum, and give every worker a ticket."""
        self.start(server)
        self.momentum.restore(state["momentum"])
        self.recent.restore(state["recent"])

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Step along g/N, at every N-th arrival also along the momentum, and assign the worker a new ticket."""
        self.recent.add(arrival)
        step = server.sum()
        step.add(arrival, 1 / self.every)
        if self.recent.count >= self.every:
            self._update_momentum()
            step.merge(self.momentum, self.beta, statistics=False)
        server.step(step, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return M·max(1, 1/(N·(1 − β))): in total, a gradient moves params by 1/(N·(1 − β)) of the stepsize."""
        return num_workers * max(1.0, 1 / (self.every * (1 - self.beta)))

    def _update_momentum(self) -> None:
        self.momentum.merge(self.momentum, self.beta - 1)
        self.momentum.merge(self.recent, 1 / self.every)
        self.recent.clear()
