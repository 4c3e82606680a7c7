"""Decoupled DiLoCo: merge the results of a quorum of workers, and of those that come shortly after it."""

from __future__ import annotations

from dataclasses import field
from typing import final

from nowait.core import (
    Arrival,
    GradientSum,
    Method,
    Nesterov,
    Server,
    StepsizeOrFloat,
    Update,
    checks,
    method_dataclass,
)


@final
@method_dataclass
class DecoupledDiLoCo(Method):
    """Wait for results of ``quorum`` workers, then ``grace_seconds`` more for others, and step along their mean.

    Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training" (2026), for a problem that is wrapped
    in ``nw.problems.LocalSteps``. No worker waits: one that has delivered gets a ticket at the current params at
    once, and a result that misses a merge is part of the next one. If all live workers have delivered, the merge
    does not wait longer. A window that has begun always ends with a merge, even if workers leave. Results are weighted
    by the square of the number of items in a batch of their worker: this is the paper's tokens²/steps if all workers
    make as many local steps. The step is that of ``nw.Nesterov(0.9)`` unless the run is given another update.

    The paper merges fragments of the model at different times, and adapts the window; here params are one
    fragment, and the window is fixed.
    """

    stepsize: StepsizeOrFloat
    quorum: int
    grace_seconds: float = 0.0
    total: GradientSum = field(init=False, repr=False, compare=False)
    delivered: set[int] = field(init=False, repr=False, compare=False)
    """The workers whose results are held."""
    deadline: float | None = field(init=False, repr=False, compare=False)
    """When the window ends, once the quorum is reached."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.quorum = checks.at_least(1, self.quorum, "quorum", "a step needs at least one result")
        why = "it is how long a merge waits after the quorum"
        self.grace_seconds = checks.not_negative(self.grace_seconds, "grace_seconds", why)

    def usual_update(self) -> Update:
        """Return Nesterov's momentum."""
        return Nesterov(0.9)

    def start(self, server: Server) -> None:
        """Start without results and give every worker a ticket."""
        self.total, self.delivered, self.deadline = server.sum(), set(), None
        super().start(server)

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Hold the result, merge if it is the last one to wait for, and assign its worker a new ticket."""
        weight = server.weight_of(arrival.worker)
        self.total.add(arrival, weight * weight)
        self.delivered.add(arrival.worker)
        self._merge_if_due(server)
        server.assign(arrival.worker)

    def on_timer(self, server: Server) -> None:
        """Merge if the window has ended."""
        self._merge_if_due(server)

    def on_leave(self, server: Server, worker: int) -> None:
        """Merge if the method waited only for this worker. Its delivered results are kept."""
        self.delivered.discard(worker)
        self._merge_if_due(server)

    def stepsize_divisor(self, num_workers: int) -> float:
        """Return M/quorum, at least 1, for one step per merge, divided by 1 − β of the momentum."""
        return max(1.0, num_workers / self.quorum) / (1 - self.usual_update().momentum_factor)

    def _merge_if_due(self, server: Server) -> None:
        present, live = len(self.delivered), server.num_workers
        if self.total.count == 0 or live == 0:
            return
        if self.deadline is None:
            if present < min(self.quorum, live):
                return
            self.deadline = server.now + self.grace_seconds
            if self.grace_seconds > 0 and present < live:
                server.wake(self.deadline)
        if server.now < self.deadline and present < live:
            return
        server.step(self.total, self.stepsize.fresh(server), 1 / self.total.weight)
        self.total.clear()
        self.delivered, self.deadline = set(), None
