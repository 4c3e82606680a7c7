"""Executes a plan, many events at a time: the ``RunServer`` of a session without workers, and its recorder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core import Command
from nowait.core.ledger import Counts
from nowait.core.types import Floats, Vector
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
    """Several events of a plan that a session handles as one; ``last`` is the index of the last of them."""

    last: int


class PlanPosition:
    """A position in a plan, with the counts and times of the server after ``num_events`` events."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.num_events = 0
        """How many events of the plan were executed."""

    @property
    def is_ahead(self) -> bool:
        """True while the plan has events that were not executed."""
        return self.num_events < len(self.plan.moments)

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self.plan.moments.steps_after(self.num_events - 1)

    @property
    def now(self) -> float:
        """The time of the latest event."""
        return float(self.plan.moments.time[self.num_events - 1]) if self.num_events else 0.0

    @property
    def stepped_at(self) -> float:
        """The time of the latest step."""
        return self.plan.moments.stepped_at(self.num_events - 1)

    @property
    def counts(self) -> Counts:
        """The counts of the server; before the end of the plan, only ``gradients`` is set."""
        if not self.is_ahead:
            return self.plan.counts
        return Counts(gradients=int(self.plan.moments.gradients[self.num_events - 1]) if self.num_events else 0)


@final
class Playback(PlanPosition):
    """Makes the steps of a plan. Its events are stretches of the plan, and there are no commands."""

    def __init__(self, data: ProblemData, blueprint: Blueprint, plan: Plan, initial: Vector) -> None:
        super().__init__(plan)
        self._data = data
        self._blueprint = blueprint
        self._initial = initial
        self._execution = self._new_execution()
        self.diverged: str | None = None

    def _new_execution(self) -> Execution:
        shares = self._blueprint.shares(self.plan)
        return Execution(self._data, self.plan, self._blueprint.seed, self._initial, np.ones(1), shares)

    @property
    def num_tickets(self) -> int:
        """How many tickets were issued by the end of the plan."""
        return self.plan.num_tickets

    @property
    def params(self) -> Vector:
        """The current params."""
        params: Vector = self._execution.points[0]
        return params

    @property
    def gradient_norms(self) -> Floats:
        """The norms of the gradients, by arrival."""
        return self._execution.gradient_norms

    # What a session calls

    def start(self) -> list[Command]:
        """Return no commands: there are no workers to give tickets to."""
        return []

    def handle(self, stretch: Stretch) -> list[Command]:
        """Execute a stretch. ``NotPlannable`` if numbers stop being finite: only the server has rules for that."""
        self._execution.run_to(self.plan.moments.codes_after(stretch.last))
        self.num_events = stretch.last + 1
        if not self._execution.finite()[0]:
            raise NotPlannable("params or gradients stopped being finite")
        return []

    def declare_diverged(self, reason: str) -> None:
        """Record that the run diverged."""
        self.diverged = reason

    def finish(self, last: Vector) -> Vector:
        """Return the answer of the output rule: ``last``, a copy of params, without a step or for the last iterate."""
        if self.plan.uses is None or self.steps == 0:
            return last
        answer: Vector = self._execution.averages[0]
        return answer.astype(self.params.dtype)

    # What the engine calls

    def next_stretch(self, steps: float, gradients: float, seconds: float) -> Stretch:
        """Return the events up to the first that reaches a limit, or to the end, but at most ``EVENTS_AT_A_TIME``."""
        due = self.plan.moments.first_due(self.num_events, steps, gradients, seconds)
        return Stretch(min(due, self.num_events + EVENTS_AT_A_TIME - 1))

    def continue_with(self, plan: Plan) -> None:
        """Replace the plan by a longer one of the same run, and execute the events up to the present one again."""
        self.plan = plan
        self._execution = self._new_execution()
        self._execution.run_to(plan.moments.codes_after(self.num_events - 1))

    def end_with(self, plan: Plan) -> None:
        """Replace the plan by that of a run that ends here. Averages are computed again, with other weights."""
        self.plan = plan
        if plan.uses is not None:
            self._execution = self._new_execution()
            self._execution.run_to(len(plan.codes))


@final
class PlaybackRecorder:
    """Returns the record of a run that was played: the rows of its plan, with the norms of the gradients."""

    def __init__(self, playback: Playback, workers: Sequence[int], kept: str) -> None:
        """``kept`` says which rows of the trace are kept: "full", "sampled" or "none"."""
        self._playback = playback
        self._workers = np.array(workers, dtype=np.int64)
        self._kept = kept
        self._checksums: dict[int, int] = {}

    def params_are(self, step: int, checksum: int) -> None:
        """Record the checksum of the params after a step."""
        self._checksums[step] = checksum

    def tally(self) -> Tally:
        """Return the totals over all arrivals."""
        return Tally.of(self._playback.plan.arrivals)

    def trace(self, seconds: float, last_norm: float) -> Trace:
        """Return the trace of the whole plan."""
        plan = self._playback.plan
        plan.arrivals["gradient_norm"] = self._playback.gradient_norms[: len(plan.arrivals)]
        kept = plan.arrivals
        if self._kept != "full":
            kept = kept[places_kept(kept, self._kept, Tally())]
        return Trace(
            kept,
            plan.events,
            self._workers,
            seconds,
            last_norm,
            self._kept,
            len(plan.arrivals),
            checksums=self._checksums,
            notes=plan.notes,
        )
