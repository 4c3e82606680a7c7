"""``nw.plan``: which method for these workers, by formula and by simulation."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from nowait.core import Problem, checks, sampler
from nowait.core.problem import checked_problem, gradient_function, initial_params
from nowait.core.randomness import checked_seed
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.problems import LeastSquares
from nowait.recording import Sweep, Trace, name_of
from nowait.speeds import Speeds
from nowait.studies.advice import Advice
from nowait.studies.candidates import candidates
from nowait.studies.quiet import quiet
from nowait.studies.sources import Source
from nowait.studies.track import Effort, Track
from nowait.studies.units import stepsize_unit
from nowait.theory import Constants, Speedup, estimate, speedup

logger = logging.getLogger("nowait")

GRADIENTS = 20_000
LEAST_ROUNDS = 50
"""Minibatch SGD gets the time for so many rounds, if that is not more than ten times the gradients asked for."""
SEEDS = 3
PATIENCE_SECONDS = 60.0
"""About how long the simulations may take where a gradient is slow."""
SLOW = 1e-3
QUICK_LOOK = {"samples": 16, "iterations": 8, "descent": 10}
"""How a problem is estimated whose gradients take longer than a millisecond."""
LITTLE_EFFORT = Effort(sizes=6, moves=2, refinements=1)
FAR_ENOUGH = 1e-3
"""A target need not be closer to the lowest loss than this share of the way."""


def plan(
    problem: Problem | None = None,
    *,
    seconds: Iterable[float] | None = None,
    speeds: Speeds | None = None,
    trace: Trace | None = None,
    workers: int | None = None,
    probe_seconds: float = 3.0,
    slowdown: Any = None,
    target_loss: float | None = None,
    gradients: int | None = None,
    seeds: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Advice:
    """What asynchrony would gain, which method is fastest, and which workers to leave out.

    The speeds come from one of: ``seconds`` per gradient of every worker, any ``speeds``, the ``trace`` of a run, or a
    probe of ``probe_seconds`` with so many ``workers`` on this machine (``slowdown`` as in ``nw.train``). From them
    follow the numbers of ``nw.theory.speedup``. Then the methods are simulated on ``problem`` (None: a least squares
    problem), each with its stepsize tuned for the time to ``target_loss`` (None: the lowest loss that all of them
    reach, or 99.9 % of the way to the lowest found). Asynchronous SGD makes about ``gradients`` of them in the time
    simulated, with ``seeds`` seeds (None: 3); fewer of both if gradients are slow. What is said of the methods holds
    for this problem: give your own. Ctrl-C and SIGTERM raise ``nw.Interrupted``.

    >>> advice = plan(seconds=[1.0, 1.0, 1.0, 30.0], gradients=3_000, seeds=1, progress=False)
    >>> advice.asynchrony_pays, round(advice.speedup.speedup, 2)
    (True, 22.75)
    """
    given = {"seconds": seconds, "speeds": speeds, "trace": trace, "workers": workers}
    source = _source(given, problem, probe_seconds, slowdown, checked_seed(seed))
    chosen = LeastSquares.random(samples=2_000, dimension=100, noise=0.01, batch_size=8) if problem is None else problem
    checked_problem(chosen)
    gain = speedup(source.seconds.tolist())
    shards = getattr(chosen, "num_shards", 1)
    if shards not in (1, gain.workers):
        raise ValueError(f"the problem is split for {shards} workers, but the speeds are those of {gain.workers}")
    entrants = candidates(gain, heterogeneous=shards > 1)
    slowness = _seconds_per_gradient(chosen)
    found = estimate(chosen, seed=seed, workers=shards, **(QUICK_LOOK if slowness > SLOW else {}))
    seed_list = range(seed, seed + _num_seeds(seeds, slowness))
    effort = LITTLE_EFFORT if slowness > SLOW else Effort()
    count = _gradients(gradients, slowness, len(entrants) * effort.sizes * len(seed_list))
    unit = stepsize_unit(chosen, found, count)
    track = Track(chosen, source.speeds, unit, _budget_seconds(gain, count), seed_list, effort)
    tuned = []
    with Watch() as watch, Progress("simulating", progress) as bar, quiet():
        for candidate in entrants:
            tuned.append(track.tuned(candidate))
            watch.check()
            bar.show(len(tuned) / (len(entrants) + 1))
        target = _target(tuned, target_loss)
        simulated = [
            track.reached(candidate, result, target) for candidate, result in zip(entrants, tuned, strict=True)
        ]
    return Advice(
        source=source.words,
        problem=name_of(chosen) if problem is not None else f"{chosen!r}, for want of your own",
        speedup=gain,
        target_loss=target,
        budget_seconds=track.seconds,
        simulated=sorted(simulated, key=lambda one: one.seconds),
        predicted=_predicted(chosen, gain, found.constants, target, tuned),
        round_seconds=source.round_seconds,
        own_data=shards > 1,
    )


def _source(given: dict[str, Any], problem: Problem | None, probe_seconds: float, slowdown: Any, seed: int) -> Source:
    """The speeds from the one source that was given."""
    known = {name: value for name, value in given.items() if value is not None}
    if len(known) != 1:
        came = f"got {' and '.join(known)}" if known else "got none"
        raise ValueError(f"give the speeds by one of seconds=, speeds=, trace= and workers= (a probe); {came}")
    [(name, value)] = known.items()
    if name == "seconds":
        return Source.of_seconds(value)
    if name == "speeds":
        return Source.of_speeds(value, seed)
    if name == "trace":
        return Source.of_trace(value)
    return Source.of_probe(problem, value, probe_seconds, slowdown=slowdown, seed=seed)


def _seconds_per_gradient(problem: Any) -> float:
    """How long a gradient takes in a simulation; next to nothing where it is compiled."""
    if hasattr(problem, "compiled_data"):
        return 0.0
    compute, _ = gradient_function(problem)
    point, samples = initial_params(problem), sampler(0)
    out = np.empty_like(point)
    compute(point, samples.sample(0, 0), out)
    began = perf_counter()
    for job in range(1, 6):
        compute(point, samples.sample(0, job), out)
    return (perf_counter() - began) / 5


def _num_seeds(asked: int | None, each: float) -> int:
    """Those asked for, or fewer than usual where a gradient is slow."""
    if asked is not None:
        return checks.at_least(1, asked, "seeds", "there must be a run")
    return 1 if each > SLOW else SEEDS


def _gradients(asked: int | None, each: float, runs: int) -> int:
    """How many: those asked for, or fewer than usual where a gradient is slow; said, if it takes long nevertheless."""
    if asked is not None:
        count = checks.at_least(100, asked, "gradients", "methods need some to differ")
    else:
        count = int(np.clip(PATIENCE_SECONDS / (runs * max(each, 1e-9)), 200, GRADIENTS))
    _warn_of_waiting(each * count * runs)
    return count


def _warn_of_waiting(seconds: float) -> None:
    if seconds > 2 * PATIENCE_SECONDS:
        logger.warning(
            "gradients of this problem are slow: the plan may take %.0f minutes; fewer gradients= and seeds=1 help",
            2 * seconds / 60,
        )


def _budget_seconds(gain: Speedup, gradients: int) -> float:
    """The virtual time: for so many gradients of all workers, but for some rounds of minibatch SGD too."""
    wanted = gradients / gain.rate
    return max(wanted, min(LEAST_ROUNDS * float(gain.seconds.max()), 10 * wanted))


def _target(tuned: list[Sweep], asked: float | None) -> float:
    """The loss to reach: the one asked for, or the lowest that every method reaches with all seeds.

    Methods that make no progress in the time simulated, such as a minibatch that waits for ever, have no say.
    """
    start = float(tuned[0].curves[0, 0, 0])
    if not math.isfinite(start):
        raise ValueError(f"the loss at the start is {start}: there is nothing to plan for")
    if asked is not None:
        target = checks.finite(asked, "target_loss", "it is the loss to reach")
        if target >= start:
            raise ValueError(f"target_loss={target:g} is reached already: the loss at the start is {start:g}")
        return target
    reached = [float(np.where(result.diverged, np.inf, result.lowest).max(axis=1).min()) for result in tuned]
    lowest = _lowest(tuned)
    enough = lowest + FAR_ENOUGH * (start - lowest)
    some = [loss for loss in reached if loss < start - FAR_ENOUGH * (start - lowest)]
    if not some:
        raise ValueError(f"no method gets below the loss at the start, {start:g}: is it the minimum already?")
    return max(*some, enough)


def _lowest(tuned: list[Sweep]) -> float:
    """The lowest loss of all runs."""
    return min(float(np.where(np.isfinite(result.curves), result.curves, np.inf).min()) for result in tuned)


def _predicted(
    problem: Any, gain: Speedup, constants: Constants, target: float, tuned: list[Sweep]
) -> dict[str, float]:
    """Times by the rates of the paper's Table 1, where the problem is known to be convex and all have the same data."""
    known = problem.constants() if hasattr(problem, "constants") else Constants()
    if known.mu is None or getattr(problem, "num_shards", 1) > 1 or not constants.L:
        return {}
    lowest = min(_lowest(tuned), problem.minimum()[1])
    if target <= lowest or not constants.B:
        return {}
    return gain.times("convex", replace(constants, zeta=None), target - lowest)
