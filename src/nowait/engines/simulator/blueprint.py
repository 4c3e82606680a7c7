"""Makes the plans of a run, by compiled code or by the method itself."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import final

from nowait.core import ApplyAtOnce, LastIterate, Method, Output
from nowait.core.randomness import CounterRandom
from nowait.core.schedule import speaks_for
from nowait.core.types import Floats, Integers
from nowait.engines.budget import Budget
from nowait.engines.progress import Progress
from nowait.engines.simulator.plan import NotPlannable, Plan
from nowait.engines.simulator.planner import Planner
from nowait.engines.simulator.schedule import scheduled_plan, stepsizes_of
from nowait.speeds import Faults, Speeds
from nowait.speeds.formula import FIXED, RECORDED, Formula

METHOD_BEHAVIOUR = ("start", "on_arrival", "on_timer", "on_join", "on_leave", "on_reissue", "pending_stepsize")
"""The methods of ``Method`` that ``Method.schedule`` describes."""
SPEEDS_BEHAVIOUR = ("timing", "clock")
"""The methods of ``Speeds`` that ``Speeds.formula`` describes."""

FEW_CHECKED = 4
"""How many stepsizes of a rule are checked, if 64 of another rule of its type have been."""


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
        """Whether plans are made by compiled code."""
        return self._declared is not None and self._formula is not None

    def arrivals_key(self) -> Hashable:
        """Return a key: blueprints of the same method and stepsize with equal keys have equal plans."""
        formula = self._formula
        if self._declared is None or formula is None or formula.kind not in (FIXED, RECORDED):
            return self.seed
        arrays = (formula.first, formula.down, formula.up, formula.times, formula.offsets)
        return formula.kind, *(array.tobytes() for array in arrays)

    def stop(self) -> None:
        """Stop planning after the current event; later plans are empty until ``allow`` is called."""
        self._stopped = True
        if self._planner is not None:
            self._planner.stopped = True

    def allow(self) -> None:
        """Allow plans again after ``stop``."""
        self._stopped = False

    def plan(
        self, budget: Budget, bar: Progress, *, most_events: float = math.inf, weigh_in_flight: bool = True
    ) -> Plan:
        """Return the plan of the whole budget, or of its first ``most_events`` events."""
        try:
            return self.scheduled_plan(budget, most_events=most_events, weigh_in_flight=weigh_in_flight)
        except NotPlannable:
            return self._planned_by_the_method(budget, bar, most_events, weigh_in_flight)

    def scheduled_plan(self, budget: Budget, *, most_events: float = math.inf, weigh_in_flight: bool = True) -> Plan:
        """Return the plan made by compiled code only, without the method. ``NotPlannable`` if that is impossible."""
        declared, formula = self._declared, self._formula
        if declared is None or formula is None:
            raise NotPlannable("the method or the speeds declare nothing")
        return scheduled_plan(
            declared,
            formula,
            self.workers,
            budget,
            averaging=self.averaging,
            weigh_in_flight=weigh_in_flight,
            most_events=most_events,
            should_continue=lambda: not self._stopped,
        )

    def stepsizes_like(self, other: Blueprint, delays: Integers, steps: Integers) -> Floats | None:
        """Return the stepsizes of these steps, if the plans of ``other`` differ from those of this one in nothing else.

        None if other things may differ. Both must have the same speeds, workers and seed.
        """
        mine, theirs = self._declared, other._declared
        if mine is None or theirs is None or not self.is_scheduled or mine.max_delay != theirs.max_delay:
            return None
        if type(mine.stepsize) is not type(theirs.stepsize):
            return None
        try:
            return stepsizes_of(mine.stepsize, delays, len(self.workers), steps, FEW_CHECKED)
        except NotPlannable:
            return None

    def _planned_by_the_method(self, budget: Budget, bar: Progress, most_events: float, weigh_in_flight: bool) -> Plan:
        clock = self._speeds.clock(self.seed)
        planner = self._planner = Planner(
            self.method, self.workers, clock, self._faults, budget, seed=self.seed, averaging=self.averaging
        )
        planner.stopped = self._stopped
        try:
            return planner.plan(bar, most_events, weigh_in_flight=weigh_in_flight)
        except Exception as error:  # with the server the method fails too, and its error is raised
            raise NotPlannable(f"the method raised {type(error).__name__}: {error}") from error

    def shares(self, plan: Plan) -> Floats | None:
        """Return the share of every iterate in the output; None if the output is the last iterate."""
        if plan.uses is None:
            return None
        shares = self.output.shares(plan.uses, CounterRandom(self.seed, "output"))
        if shares is None:
            raise NotPlannable(f"the output {type(self.output).__name__} cannot be computed from a plan")
        return shares
