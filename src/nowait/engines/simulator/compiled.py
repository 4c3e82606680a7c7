"""The compiled way: a plan of the whole run, then its execution, with the results of the reference way."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np

from nowait.core import ApplyAtOnce, LastIterate, Method, Output, Sgd
from nowait.core.ledger import Counts
from nowait.core.randomness import CounterRandom
from nowait.core.schedule import speaks_for
from nowait.core.types import Floats, Vector
from nowait.engines.budget import Budget
from nowait.engines.progress import Progress
from nowait.engines.session import Parts, Session
from nowait.engines.signals import Interruption
from nowait.engines.simulator.execution import Execution
from nowait.engines.simulator.plan import NotPlannable, Plan
from nowait.engines.simulator.planner import Planner
from nowait.engines.simulator.schedule import scheduled_plan
from nowait.problems.compiled_data import ProblemData
from nowait.recording import Interrupted, Run, Trace
from nowait.recording.tally import Tally, places_kept
from nowait.speeds import Faults, Speeds
from nowait.speeds.formula import Formula

EVENTS_AT_A_TIME = 1 << 17
"""Between two looks at signals and the progress bar."""
LONG, SHORT = 1 << 24, 1 << 16
"""How many events the first plan has at most: few if it costs much, or if a loss may end the run soon."""
GROWTH = 16
"""So many times longer is the next one, if the first was too short."""
MOST_EVENTS = 1 << 26
"""A longer run is made the reference way, whose memory does not grow: a plan takes some 150 bytes an event."""
TOO_LONG = f"the run may have more than {MOST_EVENTS:,} events, too many for a plan in memory"
NO_COMPILED_GRADIENT = "the problem has no compiled gradient"
METHOD_BEHAVIOUR = ("start", "on_arrival", "on_timer", "on_join", "on_leave", "on_reissue", "pending_stepsize")
SPEEDS_BEHAVIOUR = ("timing", "clock")
PROBLEM_BEHAVIOUR = ("gradient", "gradient_into", "gradient_with_memory", "add_penalty_gradient")
"""What declarations are about: ``Method.schedule``, ``Speeds.formula`` and ``compiled_data`` of a problem."""


def simulate_compiled(parts: Parts, speeds: Speeds, faults: Faults, seed: int, progress: bool | None) -> Run:
    """Make a run from a plan. Raises ``NotPlannable`` if that is impossible, and ``Interrupted`` after a signal."""
    data = _data_of(parts)
    if max(parts.budget.steps or 0, parts.budget.gradients or 0) > MOST_EVENTS:
        raise NotPlannable(TOO_LONG)
    blueprint = Blueprint(parts.server.method, list(parts.server.workers), speeds, faults, seed, parts.server.output)
    return _CompiledRun(parts, data, blueprint, progress).run()


def _data_of(parts: Parts) -> ProblemData:
    """Return what compiled code needs of the problem; ``NotPlannable`` if other parts of the run need the server."""
    if parts.callbacks:
        raise NotPlannable("there are callbacks")
    if not isinstance(parts.server.update, Sgd):
        raise NotPlannable("the update is not plain SGD")
    if parts.keeper is not None:
        raise NotPlannable("the run writes checkpoints")
    data = data_of(parts.problem)
    if data is None:
        raise NotPlannable(NO_COMPILED_GRADIENT)
    return data


def data_of(problem: Any) -> ProblemData | None:
    """What compiled code needs of a problem, if its class says that, and if that is still true of it."""
    kind = type(problem)
    if not hasattr(kind, "compiled_data") or not speaks_for(kind, "compiled_data", PROBLEM_BEHAVIOUR):
        return None
    data: ProblemData | None = problem.compiled_data()
    return data


@final
class Blueprint:
    """Makes the plans of a run, of any length."""

    def __init__(
        self,
        method: Method,
        workers: list[int],
        speeds: Speeds,
        faults: Faults,
        seed: int,
        output: Output | None = None,
    ) -> None:
        self.method = method
        self.workers = workers
        self.output = LastIterate() if output is None else output
        self.averaging = not isinstance(self.output, LastIterate)
        self.seed = seed
        self._speeds = speeds
        self._faults = faults
        self._planner: Planner | None = None
        self._stopped = False
        self._declared: ApplyAtOnce | None = None
        self._formula: Formula | None = None
        if not faults.changes and speaks_for(type(method), "schedule", METHOD_BEHAVIOUR):
            self._declared = method.schedule()
        if speaks_for(type(speeds), "formula", SPEEDS_BEHAVIOUR):
            self._formula = speeds.formula(seed)

    @property
    def is_scheduled(self) -> bool:
        """Are plans made by compiled code?"""
        return self._declared is not None and self._formula is not None

    def stop(self) -> None:
        """End the plan that is being made, and keep those that follow from growing."""
        self._stopped = True
        if self._planner is not None:
            self._planner.stopped = True

    def go_on(self) -> None:
        """Plan again after ``stop``."""
        self._stopped = False

    def plan(
        self, budget: Budget, bar: Progress, *, most_events: float = math.inf, weigh_in_flight: bool = True
    ) -> Plan:
        """The plan of the whole budget, or of so many events."""
        declared, formula = self._declared, self._formula
        if declared is None or formula is None:
            return self._planned_by_the_method(budget, bar, most_events, weigh_in_flight)
        try:
            return scheduled_plan(
                declared,
                formula,
                self.workers,
                budget,
                averaging=self.averaging,
                weigh_in_flight=weigh_in_flight,
                most_events=most_events,
                go_on=lambda: not self._stopped,
            )
        except NotPlannable:
            return self._planned_by_the_method(budget, bar, most_events, weigh_in_flight)

    def _planned_by_the_method(self, budget: Budget, bar: Progress, most_events: float, weigh_in_flight: bool) -> Plan:
        clock = self._speeds.clock(self.seed)
        planner = self._planner = Planner(
            self.method, self.workers, clock, self._faults, budget, seed=self.seed, averaging=self.averaging
        )
        planner.stopped = self._stopped
        try:
            return planner.plan(bar, most_events, weigh_in_flight=weigh_in_flight)
        except Exception as error:  # a method that fails fails the reference way too, and says why
            raise NotPlannable(f"the method raised {type(error).__name__}: {error}") from error

    def shares(self, plan: Plan) -> Floats | None:
        """The share of every iterate in the answer; None if the answer is the last one."""
        if plan.uses is None:
            return None
        shares = self.output.shares(plan.uses, CounterRandom(self.seed, "output"))
        if shares is None:
            raise NotPlannable(f"the output {type(self.output).__name__} cannot be computed from a plan")
        return shares


@final
class _CompiledRun:
    def __init__(self, parts: Parts, data: ProblemData, blueprint: Blueprint, progress: bool | None) -> None:
        self._parts = parts
        soon = parts.budget.target_loss is not None or not blueprint.is_scheduled
        self._most_events = SHORT if soon else LONG
        self._blueprint = blueprint
        self._data = data
        self._progress = progress
        self._session: Session | None = None
        self._signal = ""

    def run(self) -> Run:
        """To the end of the budget. Once a signal came, the run does not return: whatever follows, it is told of."""
        try:
            run = self._run()
        except NotPlannable:
            if self._signal:
                raise Interrupted(self._signal) from None
            raise
        if self._signal:
            raise Interrupted(self._signal, run=run)
        return run

    def _run(self) -> Run:
        quiet = np.errstate(over="ignore", invalid="ignore")
        with quiet, Interruption(self._interrupt), Progress("simulating", self._progress) as bar:
            plan = self._blueprint.plan(self._parts.budget, bar, most_events=self._most_events)
            playback = Playback(self._data, self._blueprint, plan, self._parts.server.params.copy())
            playback.kept = self._parts.recorder.kept
            server: Any = playback
            session = self._session = Session(
                dataclasses.replace(self._parts, server=server, recorder=server), _NoWorkforce()
            )
            self._play(session, playback, bar)
            if playback.is_ahead:
                self._blueprint.go_on()
                plan = self._blueprint.plan(
                    self._parts.budget,
                    bar,
                    most_events=playback.num_events,
                    weigh_in_flight=playback.diverged is None,
                )
                playback.end_with(plan)
        if self._signal and not session.interrupted:  # it came while the plan was made, or at the very end
            session.interrupt(self._signal)
        seconds = playback.now if playback.plan.seconds is None else playback.plan.seconds
        return session.result(seconds, "compiled")

    def _interrupt(self, signal: str) -> None:
        self._signal = signal
        if self._session is None:
            self._blueprint.stop()  # what is planned is executed
        else:
            self._session.interrupt(signal)

    def _play(self, session: Session, playback: Playback, bar: Progress) -> None:
        """Event after event, many at a time."""
        session.start()
        while not session.finished:
            if playback.num_events == len(playback.plan.moments):
                self._end_of_plan(session, playback, bar)
            else:
                session.handle(playback.next_stretch(session))  # type: ignore[arg-type]
                bar.show(self._parts.budget.share_used(playback.steps, playback.counts.gradients, playback.now))

    def _end_of_plan(self, session: Session, playback: Playback, bar: Progress) -> None:
        """The plan ended before the run: by a signal, by time, by nobody's arriving, or because it was too short."""
        if self._signal:
            session.interrupt(self._signal)
        elif playback.num_events < self._most_events:
            session.stop(playback.plan.advice)
        elif self._most_events >= MOST_EVENTS:
            raise NotPlannable(TOO_LONG)
        else:
            self._most_events = min(GROWTH * self._most_events, MOST_EVENTS)
            playback.go_on_with(self._blueprint.plan(self._parts.budget, bar, most_events=self._most_events))


@final
@dataclasses.dataclass(frozen=True)
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


@final
class _NoWorkforce:
    def add_worker(self) -> None:
        raise RuntimeError("a planned run has no callbacks that could add workers")

    def remove_worker(self, worker: int) -> None:
        raise RuntimeError(f"a planned run has no callbacks that could remove worker {worker}")
