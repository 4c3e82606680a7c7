"""The plans of a sweep: who may share one, how they are made by several threads, and where runs are evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import Method, checks
from nowait.core.capabilities import Capabilities
from nowait.core.problem import loss_of
from nowait.core.types import Floats, Vector
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.due import Due
from nowait.engines.progress import Progress
from nowait.engines.simulator.blueprint import Blueprint
from nowait.engines.simulator.plan import ADD, APPLY, MERGE, STEP, NotPlannable, Plan
from nowait.engines.simulator.playback import PlanPosition
from nowait.problems.compiled_data import ProblemData
from nowait.speeds import Faults, Speeds

EVENTS_COMPARED = 500
"""Over how many events the plans for different stepsizes are compared."""


@final
@dataclass(frozen=True)
class SweepParts:
    """What all runs of a sweep have in common."""

    problem: Any
    data: ProblemData | None
    make: Callable[[float], Method]
    speeds: Speeds
    faults: Faults
    budget: Budget
    evaluations: EvaluationPlan
    initial: Vector

    @cached_property
    def capabilities(self) -> Capabilities:
        """The optional members of the problem, resolved once."""
        return Capabilities.of(self.problem)

    @cached_property
    def initial_loss(self) -> float:
        """The loss of the initial params."""
        return loss_of(self.problem, self.initial)

    def blueprint(self, stepsize: float, seed: int) -> Blueprint:
        """Return the blueprint of the run with this stepsize and seed."""
        method = checks.instance(self.make(stepsize), Method, "method", "nw.AsynchronousSGD(nw.DelayAdaptive(0.01))")
        workers = self.faults.present_at_start(self.speeds.num_workers)
        return Blueprint(method, workers, self.speeds, self.faults, seed)


class StoppedError(Exception):
    """The sweep was stopped by its caller."""


@final
@dataclass(frozen=True, eq=False)
class EvaluatedPlan:
    """A plan, and the events after which the loss is evaluated."""

    plan: Plan
    events: list[int]
    seed: int

    def moments(self) -> list[Floats]:
        """Return the steps, gradients and times at the start and at every evaluation."""
        moments = self.plan.moments
        return [
            np.array([0.0, *(moments.steps_after(event) for event in self.events)]),
            np.array([0.0, *(float(moments.gradients[event]) for event in self.events)]),
            np.array([0.0, *(moments.stepped_at(event) for event in self.events)]),
        ]


@final
class Planning:
    """Makes the plans of a sweep, in any thread."""

    def __init__(self, parts: SweepParts) -> None:
        self._parts = parts
        self._stopped = False
        self._lock = Lock()
        """One method at a time: a function may return the same method object again and again."""
        self._under_way: set[Blueprint] = set()
        self._latest: tuple[tuple[float, Hashable], EvaluatedPlan] | None = None
        """The latest plan, by what it depends on."""

    def stop(self) -> None:
        """Stop planning; from now on ``plan`` and ``check`` raise."""
        self._stopped = True
        for blueprint in list(self._under_way):
            blueprint.stop()

    def check(self) -> None:
        """Raise after ``stop``: curves that it cut short must not be kept, since they look like runs that diverged."""
        if self._stopped:
            raise StoppedError

    @property
    def stopped(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopped

    def plan(self, stepsize: float, seed: int) -> EvaluatedPlan:
        """Return the plan of a run. Plans that need only compiled code are made in parallel.

        The latest one is returned again, with another seed too if it does not depend on that.
        """
        parts = self._parts
        with self._lock:
            blueprint = parts.blueprint(stepsize, seed)
            self._under_way.add(blueprint)
            key, latest = (stepsize, blueprint.arrivals_key()), self._latest
        try:
            self.check()
            if latest is not None and latest[0] == key:
                return replace(latest[1], seed=seed)
            plan = self._plan_of(blueprint)
        finally:
            self._under_way.discard(blueprint)
        self.check()
        found = EvaluatedPlan(plan, evaluation_events(plan, parts.evaluations, parts.budget), seed)
        self._latest = (key, found)
        return found

    def plans_scale(self, stepsizes: Floats, seed: int) -> bool:
        """Return whether the plans for all stepsizes differ only in a factor of their stepsizes.

        All stepsizes are compared over the first events; the smallest and the largest over the whole run.
        """
        unit, others = float(stepsizes[0]), stepsizes[1:].tolist()
        blueprint = self._parts.blueprint(unit, seed)
        few = blueprint.plan(self._parts.budget, Progress("", shown=False), most_events=EVENTS_COMPARED)
        comparison = _Comparison(self._parts, blueprint, unit, few, EVENTS_COMPARED)
        if not all(comparison.is_scaled(size) for size in others):
            return False
        if len(few.moments) < EVENTS_COMPARED or not others:
            return True
        comparison = _Comparison(self._parts, blueprint, unit, self.plan(unit, seed).plan, math.inf)
        extremes = {float(stepsizes.min()), float(stepsizes.max())} - {unit}
        return all(comparison.is_scaled(size) for size in extremes)

    def _plan_of(self, blueprint: Blueprint) -> Plan:
        try:
            return blueprint.scheduled_plan(self._parts.budget)
        except NotPlannable:
            with self._lock:
                return blueprint.plan(self._parts.budget, Progress("", shown=False))


@final
class _Comparison:
    """Compares the plans for other stepsizes with that for one stepsize, the unit."""

    def __init__(
        self, parts: SweepParts, unit: Blueprint, unit_size: float, unit_plan: Plan, most_events: float
    ) -> None:
        self._parts, self._unit, self._unit_size, self._most_events = parts, unit, unit_size, most_events
        self._unit_plan = unit_plan
        made = unit_plan.arrivals["step"] > 0
        self._delays, self._steps = unit_plan.arrivals["delay"][made], unit_plan.arrivals["step"][made]

    def is_scaled(self, size: float) -> bool:
        """Return whether the plan for ``size`` has the same instructions, with stepsizes scaled in proportion."""
        blueprint, factor = self._parts.blueprint(size, self._unit.seed), size / self._unit_size
        stepsizes = blueprint.stepsizes_like(self._unit, self._delays, self._steps)
        if stepsizes is None or len(stepsizes) != len(self._unit_plan.numbers):
            plan = blueprint.plan(self._parts.budget, Progress("", shown=False), most_events=self._most_events)
            return _is_scaled(plan, self._unit_plan, factor)
        return _are_close(stepsizes, factor * self._unit_plan.numbers)


def _is_scaled(plan: Plan, unit: Plan, factor: float) -> bool:
    """Return whether the instructions are the same, with stepsizes ``factor`` times as large."""
    if not np.array_equal(plan.codes, unit.codes) or len(plan.numbers) != len(unit.numbers):
        return False
    columns = [name for name in plan.arrivals.dtype.names or () if name != "stepsize"]
    same = all(np.array_equal(plan.arrivals[name], unit.arrivals[name]) for name in columns)
    return same and _are_close(plan.numbers, np.where(_are_stepsizes(plan.codes), factor, 1.0) * unit.numbers)


def _are_close(numbers: Floats, expected: Floats) -> bool:
    return bool((np.abs(numbers - expected) <= 1e-12 * np.abs(expected)).all())


def _are_stepsizes(codes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return a mask of those numbers of a plan that are stepsizes."""
    marks = np.zeros((len(codes), 2), np.int8)  # by instruction: 1 for a stepsize, 2 for another number
    marks[(codes == APPLY) | (codes == STEP), 0] = 1
    marks[codes == STEP, 1] = 2
    marks[(codes == ADD) | (codes == MERGE), 0] = 2
    numbers = marks[marks > 0]
    return np.asarray(numbers == 1)


def evaluation_events(plan: Plan, evaluations: EvaluationPlan, budget: Budget) -> list[int]:
    """Return the events after which a session would evaluate the loss, including the last one."""
    events: list[int] = []
    position, due, evaluated = PlanPosition(plan), Due(), 0
    due.plan(position, evaluations, budget)
    while position.is_ahead:
        last = plan.moments.first_due(position.num_events, due.steps, due.gradients, due.time)
        position.num_events = last + 1
        new_params = position.stepped_at == position.now and position.steps != evaluated
        if new_params and (due.for_evaluation(position) or not position.is_ahead):
            events.append(last)
            evaluated = position.steps
            due.plan(position, evaluations, budget)
    if position.steps != evaluated:
        events.append(position.num_events - 1)
    return events
