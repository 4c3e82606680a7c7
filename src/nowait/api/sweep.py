"""``nw.sweep``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from nowait.api.parts import make_parts, warn_of_split
from nowait.core import Method, checks
from nowait.core.problem import check_initial_loss, checked_problem, initial_params
from nowait.core.randomness import checked_seed
from nowait.core.types import Floats
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.progress import Progress
from nowait.engines.simulator import simulate
from nowait.engines.simulator.compiled import data_of
from nowait.engines.simulator.sweep import Curves, NotPlannable, SweepParts, sweep_compiled
from nowait.recording import Run, Sweep
from nowait.speeds import Faults, Speeds

logger = logging.getLogger("nowait")

EVALUATIONS = 20
"""How many evaluations the runs of a sweep get when the user does not say."""
Make = Callable[[float], Method]


def sweep(
    problem: Any,
    method: Method | Make,
    speeds: Speeds,
    *,
    stepsizes: Iterable[float],
    seeds: Iterable[int] = (0,),
    steps: int | None = None,
    gradients: int | None = None,
    seconds: float | None = None,
    evaluate_every: int | None = None,
    initial: Any = None,
    faults: Faults | None = None,
    threads: int | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> Sweep:
    """Simulate a method with every stepsize and every seed: the losses, and which stepsize is best.

    ``method`` is a method, whose stepsize rule gets each of the sizes in turn (``DelayAdaptive(0.1)`` becomes
    ``DelayAdaptive(size)``), or a function that makes one: ``lambda size: nw.AsynchronousSGD(nw.Constant(size))``. The
    runs end as those of ``nw.simulate`` do; a run that diverges is a result, not an error. The loss is evaluated every
    ``evaluate_every`` steps; None spreads about twenty evaluations over the budget. All cores are used unless
    ``threads`` says how many. What cannot be compiled (see ``nw.simulate``) is run one by one.

    >>> import nowait as nw
    >>> problem = nw.problems.LeastSquares.random(samples=200, dimension=10, seed=0)
    >>> result = nw.sweep(problem, nw.AsynchronousSGD(nw.DelayAdaptive(1.0)), nw.speeds.Exponential(1.0, workers=8),
    ...                   stepsizes=[0.01, 0.1, 1.0, 10.0], seeds=range(3), steps=2_000)
    >>> result.best, result.diverged.any(axis=1).tolist()
    (1.0, [False, False, False, True])
    """
    if device != "cpu":
        raise ValueError(f"device must be 'cpu', got {device!r}: there is no other way to sweep yet")
    sizes, seed_list = _checked_sizes(stepsizes), checked_seeds(seeds)
    make = maker(method)
    checks.instance(make(float(sizes[0])), Method, "method", "nw.AsynchronousSGD(nw.DelayAdaptive(0.01))")
    checks.instance(speeds, Speeds, "speeds", "nw.speeds.Fixed([1.0, 1.0, 10.0])")
    faults = Faults([]) if faults is None else checks.instance(faults, Faults, "faults", "nw.speeds.Faults([...])")
    faults.check_leavers(speeds.num_workers)
    if threads is not None:
        threads = checks.at_least(1, threads, "threads", "somebody has to compute")
    params = initial_params(checked_problem(problem), initial)
    check_initial_loss(problem, params)
    budget = Budget(steps, gradients, seconds)
    evaluations = EvaluationPlan.of(evaluate_every, budget, EVALUATIONS)
    warn_of_split(problem, speeds.num_workers)
    parts = SweepParts(problem, data_of(problem), make, speeds, faults, budget, evaluations, params)
    with Progress("sweeping", progress) as bar:
        try:
            result = _result(sizes, seed_list, sweep_compiled(parts, sizes, seed_list, threads, bar), "compiled")
        except NotPlannable:
            curves = [
                _one_by_one(parts, sizes, seed, bar, place / len(seed_list)) for place, seed in enumerate(seed_list)
            ]
            result = _result(sizes, seed_list, curves, "reference")
    if result.advice:
        logger.warning(result.advice)
    return result


def maker(method: Method | Make) -> Make:
    """A function that makes the method with a stepsize."""
    if not isinstance(method, Method):
        if callable(method) and not isinstance(method, type):
            return method
        raise TypeError(f"method must be a method or a function of the stepsize that makes one, got {method!r}")
    rule = getattr(method, "stepsize", None)
    if rule is None or not dataclasses.is_dataclass(method):
        raise TypeError(
            f"{type(method).__name__} has no stepsize to sweep over: pass a function of the stepsize that makes it"
        )
    return lambda size: dataclasses.replace(method, stepsize=rule.with_size(size))


def _one_by_one(parts: SweepParts, sizes: Floats, seed: int, bar: Progress, done: float) -> Curves:
    """The runs of a seed, the reference way; ``done`` is the share of the sweep that is behind."""
    runs = []
    for size in sizes.tolist():
        run_parts = make_parts(
            parts.problem,
            parts.make(size),
            parts.faults.present_at_start(parts.speeds.num_workers),
            parts.budget,
            evaluate_every=None,
            update=None,
            output=None,
            callbacks=(),
            initial=parts.initial,
            seed=seed,
        )
        run_parts.evaluations, run_parts.quiet = parts.evaluations, True
        runs.append(simulate(run_parts, parts.speeds.clock(seed), parts.faults, seed, progress=False))
        bar.show(done)
    rows = []
    for run in runs:
        losses = run.history.loss.copy()
        if run.stats.diverged:
            losses[-1] = np.inf
        rows.append([losses, *(column.astype(np.float64) for column in _moments_of(run))])
    curves = Curves.of(rows)
    return dataclasses.replace(curves, losses=_infinite_after_divergence(curves.losses))


def _moments_of(run: Run) -> tuple[Any, Any, Any]:
    return run.history.step, run.history.gradients, run.history.time


def _infinite_after_divergence(losses: Floats) -> Floats:
    """A run that diverged has infinite losses to the end."""
    diverged = np.isinf(losses).any(axis=1, keepdims=True)
    losses[diverged & np.isnan(losses)] = np.inf
    return losses


def _result(sizes: Floats, seeds: list[int], curves: list[Curves], way: str) -> Sweep:
    length = max(one.losses.shape[1] for one in curves)
    tables = [np.full((len(sizes), len(seeds), length), np.nan) for _ in range(4)]
    for place, one in enumerate(curves):
        for table, values in zip(tables, (one.losses, one.step, one.gradients, one.time), strict=True):
            table[:, place, : values.shape[1]] = values
    diverged = np.asarray(np.isinf(tables[0]).any(axis=2))
    losses, step, gradients, time = tables
    return Sweep(sizes, np.array(seeds, dtype=np.int64), losses, step, gradients, time, diverged, way)


def _checked_sizes(stepsizes: Iterable[float]) -> Floats:
    sizes = [
        checks.positive(size, f"stepsizes[{place}]", "params would not move")
        for place, size in enumerate(_listed(stepsizes, "stepsizes"))
    ]
    if len(set(sizes)) < len(sizes):
        raise ValueError("stepsizes has one of them twice")
    return np.array(sizes)


def checked_seeds(seeds: Iterable[int]) -> list[int]:
    """Seeds as a list, each once."""
    checked = [checked_seed(seed) for seed in _listed(seeds, "seeds")]
    if len(set(checked)) < len(checked):
        raise ValueError("seeds has one of them twice: it would count twice")
    if max(checked) >= 1 << 63:
        raise ValueError(f"seeds must be below 2**63, got {max(checked)}")
    return checked


def _listed(values: Any, name: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of numbers, got {values!r}")
    listed = list(values)
    if not listed:
        raise ValueError(f"{name} is empty: give at least one")
    return listed
