"""Sweeps: one plan for every seed, executed for all stepsizes at once, on all cores."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from nowait.engines.results import is_reasonable
from nowait.engines.simulator.blueprint import Blueprint
from nowait.engines.simulator.compiled import NO_COMPILED_GRADIENT
from nowait.engines.simulator.execution import Execution
from nowait.engines.simulator.plan import ADD, APPLY, MERGE, STEP, NotPlannable, Plan
from nowait.engines.simulator.playback import PlanPosition
from nowait.problems.compiled_data import ProblemData
from nowait.recording import SweepRun
from nowait.speeds import Faults, Speeds

EVENTS_COMPARED = 2_000
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

    def blueprint(self, stepsize: float, seed: int) -> Blueprint:
        """Return the blueprint of the run with this stepsize and seed."""
        method = checks.instance(self.make(stepsize), Method, "method", "nw.AsynchronousSGD(nw.DelayAdaptive(0.01))")
        workers = self.faults.present_at_start(self.speeds.num_workers)
        return Blueprint(method, workers, self.speeds, self.faults, seed)


Keep = Callable[[int, Floats, list[SweepRun]], None]
"""Receives the complete runs of a seed and their stepsizes; called from any thread, one call at a time."""


def sweep_compiled(
    parts: SweepParts, stepsizes: Floats, seeds: list[int], threads: int | None, bar: Progress, keep: Keep
) -> None:
    """Make all runs and pass them to ``keep`` when complete. ``NotPlannable`` if the method reads vectors."""
    if parts.data is None:
        raise NotPlannable(NO_COMPILED_GRADIENT)
    cores = threads or num_cores()
    scales = _plans_scale(parts, stepsizes, seeds[0])
    work = _Work(parts, stepsizes, bar, len(seeds), keep)
    if not scales:
        for seed in seeds:
            work.of_seed_with_own_plans(seed)
        return
    at_once = min(cores, len(seeds))
    blocks = np.array_split(np.arange(len(stepsizes)), min(len(stepsizes), max(1, cores // at_once)))
    with ThreadPoolExecutor(cores) as pool, ThreadPoolExecutor(at_once) as seed_pool:
        try:
            for _ in seed_pool.map(lambda seed: work.of_seed(seed, blocks, pool), seeds):
                pass
        except BaseException:  # e.g. Ctrl-C: do not wait for the runs that have not started
            work.stop()
            seed_pool.shutdown(wait=False, cancel_futures=True)
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _plans_scale(parts: SweepParts, stepsizes: Floats, seed: int) -> bool:
    """Return whether the plans for all stepsizes differ only in a factor of their stepsizes.

    All stepsizes are compared over the first events; the smallest and the largest over the whole run.
    """
    quiet, unit = Progress("", shown=False), float(stepsizes[0])

    def plan(size: float, most_events: float) -> Plan:
        return parts.blueprint(size, seed).plan(parts.budget, quiet, most_events=most_events)

    first = plan(unit, EVENTS_COMPARED)
    if not all(_is_scaled(plan(size, EVENTS_COMPARED), first, size / unit) for size in stepsizes[1:].tolist()):
        return False
    if len(first.moments) < EVENTS_COMPARED or len(stepsizes) == 1:
        return True
    whole = plan(unit, math.inf)
    extremes = {float(stepsizes.min()), float(stepsizes.max())} - {unit}
    return all(_is_scaled(plan(size, math.inf), whole, size / unit) for size in extremes)


def _is_scaled(plan: Plan, unit: Plan, factor: float) -> bool:
    """Return whether the instructions are the same, with stepsizes ``factor`` times as large."""
    if not np.array_equal(plan.codes, unit.codes) or len(plan.numbers) != len(unit.numbers):
        return False
    columns = [name for name in plan.arrivals.dtype.names or () if name != "stepsize"]
    same = all(np.array_equal(plan.arrivals[name], unit.arrivals[name]) for name in columns)
    expected = np.where(_are_stepsizes(plan.codes), factor, 1.0) * unit.numbers
    return same and bool(np.allclose(plan.numbers, expected, rtol=1e-12, atol=0.0))


def _are_stepsizes(codes: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return a mask of those numbers of a plan that are stepsizes."""
    marks = np.zeros((len(codes), 2), np.int8)  # by instruction: 1 for a stepsize, 2 for another number
    marks[(codes == APPLY) | (codes == STEP), 0] = 1
    marks[codes == STEP, 1] = 2
    marks[(codes == ADD) | (codes == MERGE), 0] = 2
    numbers = marks[marks > 0]
    return np.asarray(numbers == 1)


class _StoppedError(Exception):
    """The sweep was stopped by its caller."""


@final
class _Work:
    def __init__(self, parts: SweepParts, stepsizes: Floats, bar: Progress, num_seeds: int, keep: Keep) -> None:
        self._parts = parts
        self._keep = keep
        self._keeping = Lock()
        self._stepsizes = stepsizes
        self._bar = bar
        self._to_do = num_seeds * len(stepsizes)
        self._done = 0.0
        self._stopped = False
        self._planning = Lock()
        """One plan at a time: a function may return the same method object again and again."""
        self._blueprint: Blueprint | None = None

    def stop(self) -> None:
        """Stop planning and executing."""
        self._stopped = True
        if self._blueprint is not None:
            self._blueprint.stop()

    def _plan(self, stepsize: float, seed: int) -> Plan:
        with self._planning:
            self._check_that_it_goes_on()
            self._blueprint = self._parts.blueprint(stepsize, seed)
            return self._blueprint.plan(self._parts.budget, Progress("", shown=False))

    def of_seed(self, seed: int, blocks: list[NDArray[Any]], pool: ThreadPoolExecutor) -> None:
        """Make the runs of a seed from one plan, a block of stepsizes in each thread."""
        plan = self._plan(float(self._stepsizes[0]), seed)
        events = evaluation_events(plan, self._parts.evaluations, self._parts.budget)
        factors = self._stepsizes / self._stepsizes[0]
        results = pool.map(lambda block: self._execute(plan, events, seed, factors[block]), blocks)
        losses = np.concatenate(list(results))
        self._finished(seed, self._stepsizes, plan, events, losses)

    def of_seed_with_own_plans(self, seed: int) -> None:
        """Make the runs of a seed with a plan for every stepsize."""
        for size in self._stepsizes:
            plan = self._plan(float(size), seed)
            events = evaluation_events(plan, self._parts.evaluations, self._parts.budget)
            losses = self._execute(plan, events, seed, np.ones(1))
            self._finished(seed, np.array([size]), plan, events, losses)

    def _finished(self, seed: int, sizes: Floats, plan: Plan, events: list[int], losses: Floats) -> None:
        step, gradients, time = _moments(plan, events)
        with self._keeping:
            self._check_that_it_goes_on()
            self._keep(seed, sizes, [SweepRun(row, step, gradients, time) for row in losses])

    def _check_that_it_goes_on(self) -> None:
        """Raise after ``stop``: curves that it cut short must not be kept, since they look like runs that diverged."""
        if self._stopped:
            raise _StoppedError

    def _execute(self, plan: Plan, events: list[int], seed: int, factors: Floats) -> Floats:
        """Return the losses at the start and after these events, [run, evaluation]."""
        parts = self._parts
        with np.errstate(over="ignore", invalid="ignore"):
            assert parts.data is not None
            execution = Execution(parts.data, plan, seed, parts.initial, np.ascontiguousarray(factors), None)
            losses = np.full((len(factors), len(events) + 1), math.inf)
            losses[:, 0] = loss_of(parts.problem, parts.initial)
            for place, event in enumerate(events, start=1):
                execution.run_to(plan.moments.codes_after(event))
                execution.alive &= execution.finite()
                alive = np.flatnonzero(execution.alive)
                losses[alive, place] = losses_at(parts, execution.points[alive])
                for run in alive:
                    execution.alive[run] = is_reasonable(float(losses[run, place]), float(losses[run, 0]))
                losses[~execution.alive, place] = math.inf
                self._progress(len(factors) / len(events))
                if self._stopped or not execution.alive.any():
                    break
        return losses

    def _progress(self, runs: float) -> None:
        self._done += runs
        self._bar.show(min(1.0, self._done / self._to_do))


def losses_at(parts: SweepParts, points: Any) -> Any:
    """Return the loss of every row of ``points``."""
    together = parts.capabilities.losses_at
    if together is not None and len(points) > 1:
        return together(points)
    return [loss_of(parts.problem, point) for point in points]


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


def _moments(plan: Plan, events: list[int]) -> list[Floats]:
    """Return the steps, gradients and times at the start and after these events."""
    moments = plan.moments
    return [
        np.array([0.0, *(moments.steps_after(event) for event in events)]),
        np.array([0.0, *(float(moments.gradients[event]) for event in events)]),
        np.array([0.0, *(moments.stepped_at(event) for event in events)]),
    ]


__all__ = ["Keep", "NotPlannable", "SweepParts", "sweep_compiled"]
