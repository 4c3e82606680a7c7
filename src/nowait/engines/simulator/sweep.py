"""Sweeps: one plan for every seed, executed for all stepsizes at once, on all cores."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.problem import loss_of
from nowait.core.types import Floats
from nowait.engines.progress import Progress
from nowait.engines.results import is_reasonable
from nowait.engines.simulator.compiled import NO_COMPILED_GRADIENT
from nowait.engines.simulator.execution import Execution
from nowait.engines.simulator.plan import NotPlannable
from nowait.engines.simulator.sweep_plans import EvaluatedPlan, Planning, SweepParts
from nowait.recording import SweepRun

RUNS_TOGETHER = 32
"""How many runs a thread executes together: the rows of the data are read from memory once for all of them. Losses of
one point at a time are limited by the bandwidth of the memory, which all cores share."""
EVENTS_TOGETHER = 1 << 20
"""Seeds are only executed together if their plans have no more events than this in total: a plan takes memory."""

Keep = Callable[[int, Floats, list[SweepRun]], None]
"""Receives the complete runs of a seed and their stepsizes; called from any thread, one call at a time."""


def sweep_compiled(
    parts: SweepParts, stepsizes: Floats, seeds: list[int], threads: int | None, bar: Progress, keep: Keep
) -> None:
    """Make all runs and pass them to ``keep`` when complete. ``NotPlannable`` if the method reads vectors."""
    if parts.data is None:
        raise NotPlannable(NO_COMPILED_GRADIENT)
    cores = threads or num_cores()
    events = parts.budget.steps or parts.budget.gradients or EVENTS_TOGETHER
    work = _Work(parts, stepsizes, bar, len(seeds), keep)
    with ThreadPoolExecutor(cores) as pool, ThreadPoolExecutor(cores) as planning_pool:
        try:
            if work.planning.plans_scale(stepsizes, seeds[0]):
                blocks, groups = shares_of(stepsizes, seeds, cores, events)
                made = planning_pool.map(lambda group: work.of_seeds(group, blocks, pool), groups)
            else:
                runs = [(size, seed) for seed in seeds for size in stepsizes.tolist()]
                _, some_runs = shares_of(np.ones(1), list(range(len(runs))), cores, events)
                made = pool.map(lambda places: work.with_own_plans([runs[place] for place in places]), some_runs)
            for _ in made:
                pass
        except BaseException:  # e.g. Ctrl-C: do not wait for the runs that have not started
            work.stop()
            planning_pool.shutdown(wait=False, cancel_futures=True)
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shares_of(
    stepsizes: Floats, seeds: list[int], cores: int, events: int
) -> tuple[list[NDArray[np.intp]], list[list[int]]]:
    """Return blocks of stepsizes and groups of seeds: a thread executes one block for all seeds of a group.

    About ``RUNS_TOGETHER`` runs are executed together, or fewer if there are not enough for all cores, and every core
    gets the same number. ``events`` is about the number of events of a plan.
    """
    runs = len(stepsizes) * len(seeds)
    rounds = math.ceil(runs / (cores * RUNS_TOGETHER))
    together = math.ceil(runs / (cores * rounds))
    blocks = np.array_split(np.arange(len(stepsizes)), math.ceil(len(stepsizes) / together))
    at_once = max(1, min(together // len(stepsizes), EVENTS_TOGETHER // events))
    groups = np.array_split(np.array(seeds), math.ceil(len(seeds) / at_once))
    return blocks, [group.tolist() for group in groups]


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
        self.planning = Planning(parts)

    def stop(self) -> None:
        """Stop planning and executing."""
        self.planning.stop()

    def of_seeds(self, seeds: list[int], blocks: list[NDArray[Any]], pool: ThreadPoolExecutor) -> None:
        """Make the runs of some seeds from one plan each, a block of stepsizes in each thread."""
        plans = [self.planning.plan(float(self._stepsizes[0]), seed) for seed in seeds]
        factors = self._stepsizes / self._stepsizes[0]
        results = list(pool.map(lambda block: self._execute(plans, factors[block]), blocks))
        for plan, *losses in zip(plans, *results, strict=True):
            self._finished(plan, self._stepsizes, np.concatenate(losses))

    def with_own_plans(self, runs: list[tuple[float, int]]) -> None:
        """Make some runs, given by stepsize and seed, from a plan for each."""
        plans = [self.planning.plan(size, seed) for size, seed in runs]
        for (size, _), plan, losses in zip(runs, plans, self._execute(plans, np.ones(1)), strict=True):
            self._finished(plan, np.array([size]), losses)

    def _finished(self, plan: EvaluatedPlan, sizes: Floats, losses: Floats) -> None:
        step, gradients, time = plan.moments()
        with self._keeping:
            self.planning.check()
            self._keep(plan.seed, sizes, [SweepRun(row, step, gradients, time) for row in losses])

    def _execute(self, plans: list[EvaluatedPlan], factors: Floats) -> list[Floats]:
        """Return the losses at the start and at every evaluation, [run, evaluation], for each plan.

        All runs go from evaluation to evaluation together, because their losses need one pass over the data.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            curves = [_Curves(self._parts, plan, factors) for plan in plans]
            for place in range(1, max(len(plan.events) for plan in plans) + 1):
                running = [curve for curve in curves if curve.run_to(place)]
                if self.planning.stopped or not running:
                    break
                losses = np.asarray(losses_at(self._parts, np.concatenate([curve.points for curve in running])))
                ends = np.cumsum([len(curve.points) for curve in running])
                for curve, some in zip(running, np.split(losses, ends[:-1]), strict=True):
                    curve.record(place, some)
                self._progress(sum(len(factors) / len(curve.plan.events) for curve in running))
        return [curve.losses for curve in curves]

    def _progress(self, runs: float) -> None:
        self._done += runs
        self._bar.show(min(1.0, self._done / self._to_do))


@final
class _Curves:
    """The losses of the runs of one plan while they are executed; infinite after a run has diverged."""

    def __init__(self, parts: SweepParts, plan: EvaluatedPlan, factors: Floats) -> None:
        assert parts.data is not None
        self.plan = plan
        self._execution = Execution(
            parts.data, plan.plan, plan.seed, parts.initial, np.ascontiguousarray(factors), None
        )
        self._first_loss = parts.initial_loss
        self.losses = np.full((len(factors), len(plan.events) + 1), math.inf)
        """[run, evaluation]"""
        self.losses[:, 0] = parts.initial_loss

    def run_to(self, place: int) -> bool:
        """Execute the runs up to an evaluation. Returns False if there is none, or no run whose loss is needed."""
        execution = self._execution
        if place > len(self.plan.events) or not execution.alive.any():
            return False
        execution.run_to(self.plan.plan.moments.codes_after(self.plan.events[place - 1]))
        execution.alive &= execution.finite()
        return bool(execution.alive.any())

    @property
    def points(self) -> Any:
        """The params of the runs that have not diverged."""
        return self._execution.points[self._execution.alive]

    def record(self, place: int, losses: Floats) -> None:
        """Record the losses of ``points``."""
        alive = self._execution.alive
        reasonable = [is_reasonable(loss, self._first_loss) for loss in losses.tolist()]
        runs = np.flatnonzero(alive)[reasonable]
        self.losses[runs, place] = losses[reasonable]
        alive[:] = False
        alive[runs] = True


def losses_at(parts: SweepParts, points: Any) -> Any:
    """Return the loss of every row of ``points``."""
    together = parts.capabilities.losses_at
    if together is not None and len(points) > 1:
        return together(points)
    return [loss_of(parts.problem, point) for point in points]


__all__ = ["Keep", "NotPlannable", "SweepParts", "sweep_compiled"]
