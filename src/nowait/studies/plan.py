"""``nw.plan``: which method for these workers, by formula and by simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, final

import numpy as np

from nowait.api.different_data import warn_of_different_data
from nowait.api.parts import warn_of_split
from nowait.api.sweep import checked_seeds
from nowait.core import Method, Problem, checks, sampler
from nowait.core.capabilities import Capabilities
from nowait.core.problem import checked_problem, initial_params
from nowait.engines.progress import spinner
from nowait.problems import LeastSquares
from nowait.recording import Trace, name_of
from nowait.speeds import Speeds
from nowait.studies.advice import Advice
from nowait.studies.candidates import Candidate, candidates, own_candidates
from nowait.studies.compare import Compared, compare
from nowait.studies.sources import Source
from nowait.studies.tuner import Make, Tuner
from nowait.studies.units import stepsize_unit
from nowait.theory import Constants, Speedup, estimate, speedup

logger = logging.getLogger("nowait")

GRADIENTS = 20_000
LEAST_ROUNDS = 50
"""Minibatch SGD gets the time for this many rounds, if that is at most ten times the time asked for."""
SEEDS = 3
PATIENCE_SECONDS = 60.0
"""About how long the simulations may take if a gradient is slow."""
SLOW = 1e-3
QUICK_LOOK = {"samples": 16, "iterations": 8, "descent": 10}
"""How constants are estimated if a gradient takes longer than a millisecond."""


@final
@dataclass(frozen=True)
class Effort:
    """How finely stepsizes are tuned."""

    sizes: int = 12
    """Stepsizes tried for every method."""
    refinements: int = 4
    """Finer sweeps to find the time to the target."""
    evaluations: int = 20
    """Evaluations up to the target in runs that measure this time."""


LITTLE_EFFORT = Effort(sizes=6, refinements=1, evaluations=10)


def plan(
    problem: Problem | None = None,
    *,
    seconds_per_gradient: Iterable[float] | None = None,
    speeds: Speeds | None = None,
    trace: Trace | None = None,
    workers: int | None = None,
    probe_seconds: float = 3.0,
    slowdown: Any = None,
    methods: Mapping[str, Method | Make] | None = None,
    target_loss: float | None = None,
    gradients: int | None = None,
    seeds: int | Iterable[int] | None = None,
    seed: int = 0,
    progress: bool | None = None,
    **renamed: Any,
) -> Advice:
    """Predict the gain from asynchrony, the fastest method, and which workers to leave out.

    The speeds come from one of: ``seconds_per_gradient`` of every worker, any ``speeds``, the ``trace`` of a run, or a
    probe of ``probe_seconds`` with ``workers`` processes on this machine (``slowdown`` as in ``nw.train``). The numbers
    of ``nw.theory.speedup`` follow from them. Then methods are simulated on ``problem`` (None: a least squares
    problem), each with its stepsize tuned for the time to ``target_loss`` (None: the lowest loss that all of them
    reach in half of the time, or 99.9 % of the decrease to the lowest found). ``methods`` adds your own, by name:
    functions of the stepsize, or methods that are used as they are, as in ``nw.race``. Asynchronous SGD computes about
    ``gradients`` gradients in the simulated time.

    Stepsizes are tuned with ``seeds``, which are those of ``nw.sweep``; a number n is the n seeds from ``seed`` on, and
    None is 3. Methods are compared with 3 to 24 times as many other seeds, more if times scatter, and the times
    reported are those with as many further seeds. If gradients are slow, the defaults are smaller. The results hold for
    this problem: pass your own. Ctrl-C and SIGTERM raise ``nw.Interrupted``.

    >>> advice = plan(
    ...     seconds_per_gradient=[1.0, 2.0, 4.0, 30.0],
    ...     gradients=3_000,
    ...     seeds=1,
    ...     progress=False,
    ... )
    >>> advice.asynchrony_pays, round(advice.speedup.speedup, 2)
    (True, 13.38)
    """
    checks.no_renamed(renamed, "plan", seconds="seconds_per_gradient")
    progress = checks.flag_or_none(progress, "progress")
    given = {"seconds_per_gradient": seconds_per_gradient, "speeds": speeds, "trace": trace, "workers": workers}
    if gradients is not None:
        gradients = checks.at_least(100, gradients, "gradients", "methods need some to differ")
    if target_loss is not None:
        checks.finite(target_loss, "target_loss", "it is the loss to reach")
    asked_seeds = checked_seeds(SEEDS if seeds is None else seeds, first=seed)
    with spinner("planning: measuring speeds", progress):
        source = _source(given, problem, probe_seconds, slowdown, asked_seeds[0])
    chosen = LeastSquares.random(samples=2_000, dimension=100, noise=0.01, batch_size=8) if problem is None else problem
    capabilities = Capabilities.of(checked_problem(chosen))
    gain = speedup(source.seconds.tolist())
    shards = capabilities.num_shards
    warn_of_split(chosen, gain.workers)
    own = own_candidates(methods, gain.workers)
    warn_of_different_data(chosen, {one.name: one.make(1.0) for one in own}, gain.workers, source.seconds)
    entrants = _entrants(candidates(gain, shards > 1, source.errors), own)
    with spinner("planning: estimating the problem's constants", progress):
        slowness = _seconds_per_gradient(chosen, capabilities)
        found = estimate(chosen, seed=asked_seeds[0], workers=shards, **(QUICK_LOOK if slowness > SLOW else {}))
    seed_list = asked_seeds[:1] if seeds is None and slowness > SLOW else asked_seeds
    effort = LITTLE_EFFORT if slowness > SLOW else Effort()
    count = _gradients(gradients, slowness, len(entrants) * effort.sizes * len(seed_list))
    unit = stepsize_unit(chosen, found, count)
    tuner = Tuner(
        chosen,
        source.speeds,
        unit,
        _budget_seconds(source, gain, count),
        tuple(seed_list),
        effort.sizes,
        evaluations=effort.evaluations,
    )
    compared = compare(tuner, entrants, target_loss, effort.refinements, progress)
    return Advice(
        source=source.words,
        problem=name_of(chosen) if problem is not None else f"{chosen!r}, because no problem was given",
        speedup=gain,
        target_loss=compared.target,
        budget_seconds=tuner.seconds,
        simulated=sorted(compared.simulated, key=lambda one: (one.seconds, one.rank)),
        predicted=_predicted(capabilities, gain, found.constants, compared),
        round_seconds=source.round_seconds,
        own_data=shards > 1,
        speed_errors=source.errors,
    )


def _entrants(usual: list[Candidate], own: list[Candidate]) -> list[Candidate]:
    names = {candidate.name for candidate in usual}
    for candidate in own:
        if candidate.name in names:
            raise ValueError(f"methods has {candidate.name!r}, which the plan simulates anyway: give it another name")
    return [*usual, *own]


def _source(given: dict[str, Any], problem: Problem | None, probe_seconds: float, slowdown: Any, seed: int) -> Source:
    """Return the speeds from the one source that was given."""
    known = {name: value for name, value in given.items() if value is not None}
    if len(known) != 1:
        came = f"got {' and '.join(known)}" if known else "got none"
        raise ValueError(f"give one of seconds_per_gradient=, speeds=, trace= and workers= (a probe); {came}")
    [(name, value)] = known.items()
    if slowdown is not None and name != "workers":
        raise ValueError(f"slowdown= slows the workers of a probe, but {name}= gives their speeds: slow them there")
    if name == "seconds_per_gradient":
        return Source.of_seconds(value)
    if name == "speeds":
        return Source.of_speeds(value, seed)
    if name == "trace":
        return Source.of_trace(value)
    return Source.of_probe(problem, value, probe_seconds, slowdown=slowdown, seed=seed)


def _seconds_per_gradient(problem: Any, capabilities: Capabilities) -> float:
    """Return how long a gradient takes in a simulation; 0 if it is compiled."""
    if capabilities.compiled_data is not None:
        return 0.0
    compute, _ = capabilities.gradient_function()
    point, samples = initial_params(problem), sampler(0)
    out = np.empty_like(point)
    compute(point, samples.sample(0, 0), out)
    began = perf_counter()
    for job in range(1, 6):
        compute(point, samples.sample(0, job), out)
    return (perf_counter() - began) / 5


def _gradients(asked: int | None, each: float, runs: int) -> int:
    """Return the number of gradients to simulate: fewer than usual if they are slow and none was asked for."""
    usual = int(np.clip(PATIENCE_SECONDS / (runs * max(each, 1e-9)), 200, GRADIENTS))
    count = usual if asked is None else asked
    _warn_of_waiting(each * count * runs)
    return count


def _warn_of_waiting(seconds: float) -> None:
    if seconds > 2 * PATIENCE_SECONDS:
        logger.warning(
            "gradients of this problem are slow: the plan may take %.0f minutes; fewer gradients= and seeds=1 help",
            2 * seconds / 60,
        )


def _budget_seconds(source: Source, gain: Speedup, gradients: int) -> float:
    """Return the virtual time for this many gradients of all workers, and for some rounds of minibatch SGD."""
    wanted = gradients / gain.rate
    waiting = max(source.round_seconds, float(gain.seconds.max()))
    return max(wanted, min(LEAST_ROUNDS * waiting, 10 * wanted))


def _predicted(capabilities: Capabilities, gain: Speedup, constants: Constants, compared: Compared) -> dict[str, float]:
    """Return times by the rates of Table 1 if the problem is known to be convex and all workers have the same data."""
    known = Constants() if capabilities.constants is None else capabilities.constants()
    if known.mu is None or capabilities.num_shards > 1 or not constants.L or capabilities.minimum is None:
        return {}
    lowest = min(compared.lowest, capabilities.minimum()[1])
    if compared.target <= lowest or not constants.B:
        return {}
    return gain.times("convex", replace(constants, zeta=None), compared.target - lowest)
