"""Stands for the server in a session while a plan is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core.ledger import Counts
from nowait.core.types import Vector
from nowait.engines.session import Session
from nowait.engines.simulator.blueprint import Blueprint
from nowait.engines.simulator.execution import Execution
from nowait.engines.simulator.plan import NotPlannable, Plan
from nowait.problems.compiled_data import ProblemData
from nowait.recording import Trace
from nowait.recording.tally import Tally, places_kept

EVENTS_AT_A_TIME = 1 << 17
"""How many events are executed between two checks for signals, and updates of the progress bar."""


@final
@dataclass(frozen=True)
class Stretch:
    """Several events of a plan, up to this one, which pass as one event."""

    last: int
    time: float


class Position:
    """A place in a plan: how far the run has come after so many events."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.num_events = 0
        """How many events have passed."""

    @property
    def is_ahead(self) -> bool:
        """Does the plan know of more events than have passed?"""
        return self.num_events < len(self.plan.moments)

    @property
    def steps(self) -> int:
        """As the server's."""
        return self.plan.moments.steps_after(self.num_events - 1)

    @property
    def now(self) -> float:
        """As the server's."""
        return float(self.plan.moments.time[self.num_events - 1]) if self.num_events else 0.0

    @property
    def stepped_at(self) -> float:
        """As the server's."""
        return self.plan.moments.stepped_at(self.num_events - 1)

    @property
    def counts(self) -> Counts:
        """As the server's; before the end of the plan only the gradients."""
        if not self.is_ahead:
            return self.plan.counts
        return Counts(gradients=int(self.plan.moments.gradients[self.num_events - 1]) if self.num_events else 0)


@final
class Playback(Position):
    """To a session it is the server and its log. Its events are stretches of a plan."""

    def __init__(self, data: ProblemData, blueprint: Blueprint, plan: Plan, initial: Vector) -> None:
        super().__init__(plan)
        self._data = data
        self._blueprint = blueprint
        self._initial = initial
        self._execution = self._new_execution()
        self.diverged: str | None = None
        self.kept = "full"
        """How much of the trace is kept."""

    def _new_execution(self) -> Execution:
        shares = self._blueprint.shares(self.plan)
        return Execution(self._data, self.plan, self._blueprint.seed, self._initial, np.ones(1), shares)

    @property
    def num_tickets(self) -> int:
        """As the server's, at the end of the plan."""
        return self.plan.num_tickets

    @property
    def params(self) -> Vector:
        """As the server's."""
        params: Vector = self._execution.points[0]
        return params

    # What a session calls

    def start(self) -> list[Any]:
        """Nothing to do."""
        return []

    def next_stretch(self, session: Session) -> Stretch:
        """Up to the event after which something is due, or not quite so far."""
        moments = self.plan.moments
        last = min(moments.first_due(self.num_events, *session.due), self.num_events + EVENTS_AT_A_TIME - 1)
        return Stretch(last, float(moments.time[last]))

    def handle(self, stretch: Stretch) -> list[Any]:
        """Execute it. If numbers stop being finite, the reference way has to say what follows."""
        self._execution.run_to(self.plan.moments.codes_after(stretch.last))
        self.num_events = stretch.last + 1
        if not self._execution.finite()[0]:
            raise NotPlannable("params or gradients stopped being finite")
        return []

    def declare_diverged(self, reason: str) -> None:
        """As the server's."""
        self.diverged = reason

    def finish(self) -> Vector:
        """As the server's."""
        answer: Vector = self.params if self.plan.uses is None else self._execution.averages[0]
        return answer.astype(self.params.dtype)

    def trace(self, seconds: float, last_norm: float) -> Trace:
        """As a recorder's."""
        self.plan.arrivals["gradient_norm"] = self._execution.gradient_norms[: len(self.plan.arrivals)]
        workers = np.array(self._blueprint.workers, dtype=np.int64)
        rows = self.plan.arrivals
        if self.kept != "full":
            rows = rows[places_kept(rows, self.kept, Tally())]
        return Trace(rows, self.plan.events, workers, seconds, last_norm, self.kept, len(self.plan.arrivals))

    def tally(self) -> Tally:
        """As a recorder's."""
        return Tally.of(self.plan.arrivals)

    # Other plans

    def go_on_with(self, plan: Plan) -> None:
        """Take a longer plan, whose first events are those that have passed, and execute those again."""
        self.plan = plan
        self._execution = self._new_execution()
        self._execution.run_to(plan.moments.codes_after(self.num_events - 1))

    def end_with(self, plan: Plan) -> None:
        """Take the plan of a run that ends here. What has been computed stays, but for the weights of an average."""
        self.plan = plan
        if plan.uses is not None:
            self._execution = self._new_execution()
            self._execution.run_to(len(plan.codes))
