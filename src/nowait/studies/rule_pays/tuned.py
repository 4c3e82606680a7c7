"""The two stepsize rules with tuned stepsizes: time to a target, and losses after the same time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core import Constant, DelayAdaptive
from nowait.core.types import Floats
from nowait.methods import AsynchronousSGD
from nowait.recording import Sweep
from nowait.studies.candidates import Candidate
from nowait.studies.quiet import quiet
from nowait.studies.rule_pays.settings import (
    SMOOTHNESS,
    Cluster,
    gradients_needed,
    least_squares,
    quadratic,
    target,
)
from nowait.studies.target import FINER, Chosen, FreshSeeds, choose_stepsize, measured
from nowait.studies.tuner import Make, Tuner, best_of
from nowait.theory import speedup

RULES: tuple[Make, Make] = (
    lambda size: AsynchronousSGD(Constant(size)),
    lambda size: AsynchronousSGD(DelayAdaptive(size)),
)
"""Constant and delay-adaptive."""
SIZES, REFINEMENTS, TUNING_SEEDS, TIMING_SEEDS = 12, 3, 3, 6
FIRST_TIMING_SEED = 1_000
SEEDS_OF_A_CLUSTER = 10_000
"""Each cluster has its own seeds, from its number times this on."""
BATCHES, WIDE, GRADIENTS = (1, 8, 64), (0.4, 1.2, 2.0), 30_000
"""The batch sizes and spreads for which errors after the same time are compared, and the gradients in this time."""
HORIZON, EVALUATIONS = 4.0, 200
"""To see if a loss stays below the target, runs last this many times as long as reaching it takes, with so many
evaluations."""
SMALLER = 2.0 ** np.linspace(-2.0, 0.25, 10)
"""Staying below the target takes stepsizes that are smaller by these factors than those that reach it first."""
MOST_NOISE_TO_STAY = 0.1
"""With more noise, losses stay below the target only by chance, or with stepsizes that take much longer."""
LAST = 0.1
"""The error at the end is the median over this last part of a run."""


@final
@dataclass(frozen=True)
class Ratio:
    """What the constant stepsize needs divided by what the delay-adaptive one needs: above 1, the rule pays."""

    cluster: str
    problem: str
    each: tuple[float, ...]
    """One value for each of several clusters of this kind."""

    @property
    def middle(self) -> float:
        """The geometric mean."""
        return float(np.exp(np.mean(np.log(self.each))))

    @property
    def low(self) -> float:
        """The lowest value."""
        return min(self.each)

    @property
    def high(self) -> float:
        """The highest value."""
        return max(self.each)


def time_ratio(cluster: Cluster, noise: float, workers: int, seed: int) -> float:
    """Return the time to the target with the constant stepsize over that with the delay-adaptive one.

    Both stepsizes are tuned for this time with some seeds, and the times are means over others.
    """
    tuner = _tuner(cluster, noise, workers, seed)
    with quiet():
        constant, adaptive = (_seconds(tuner, make, fresh_seeds(seed)) for make in RULES)
    return constant / adaptive


def stay_ratio(cluster: Cluster, noise: float, workers: int, seed: int) -> float:
    """Return the same for the time from which the loss stays below the target.

    Until the end of runs that last several times as long as it takes to reach the target. A run that does not stay
    below it counts with its whole length.
    """
    tuner = _tuner(cluster, noise, workers, seed)
    with quiet():
        reached = [_chosen(tuner, make) for make in RULES]
        horizon = HORIZON * max(one.seconds for one in reached)
        constant, adaptive = (_stays_from(tuner, one, horizon, fresh_seeds(seed)) for one in reached)
    return constant / adaptive


def _tuner(cluster: Cluster, noise: float, workers: int, seed: int) -> Tuner:
    """Return the tuner for the quadratic with this noise."""
    rate = speedup(cluster.medians(workers, seed).tolist()).rate
    seconds = gradients_needed(noise, workers) / rate
    given = (quadratic(noise, workers), cluster.speeds(workers, seed), 1 / SMOOTHNESS, seconds)
    return Tuner(*given, _seeds(seed, 0, TUNING_SEEDS), SIZES)


def loss_ratio(cluster: Cluster, batch_size: int, workers: int, seed: int) -> float:
    """Return the error after the same time with the constant stepsize over that with the delay-adaptive one.

    On the paper's least squares. Both stepsizes are tuned for this error with some seeds, and it is measured with
    others.
    """
    problem, speeds = least_squares(batch_size), cluster.speeds(workers, seed)
    smoothness, lowest = problem.constants().L, problem.minimum()[1]
    assert smoothness is not None
    seconds = GRADIENTS / speedup(cluster.medians(workers, seed).tolist()).rate
    tuner = Tuner(problem, speeds, 1 / smoothness, seconds, _seeds(seed, 0, 1), SIZES)
    with quiet():
        constant, adaptive = (_error(tuner, make, lowest, seed) for make in RULES)
    return constant / adaptive


def _chosen(tuner: Tuner, make: Make) -> Chosen:
    """Return the stepsize that reaches the target first."""
    candidate = Candidate("", make, tuple(range(tuner.speeds.num_workers)))
    chosen = choose_stepsize(tuner, candidate, tuner.tune(make), target(), REFINEMENTS)
    if not math.isfinite(chosen.seconds):
        raise RuntimeError(f"{make(chosen.stepsize)!r} did not reach the target: the simulated time is too short")
    return chosen


def _seconds(tuner: Tuner, make: Make, seeds: tuple[int, ...]) -> float:
    """Return the mean time to the target with a tuned stepsize."""
    return measured(tuner, _chosen(tuner, make), target(), FreshSeeds((), seeds)).seconds


def _stays_from(tuner: Tuner, reached: Chosen, horizon: float, seeds: tuple[int, ...]) -> float:
    """Return the mean time from which losses stay below the target, with the best of several stepsizes."""
    every = max(1, int(reached.steps * horizon / reached.seconds / EVALUATIONS))

    def times(sizes: Floats, seeds: tuple[int, ...]) -> Floats:
        one = reached.candidate
        swept = tuner.sweep(one.make, sizes, horizon, one.workers, seeds=seeds, evaluate_every=every)
        return np.array([[_last_above(*run) for run in zip(*both, strict=True)] for both in _curves(swept)])

    sizes = reached.stepsize * SMALLER
    best = sizes[[int(np.argmin(times(sizes, tuner.seeds).mean(axis=1)))]]
    return float(times(best, seeds).mean())


def _curves(swept: Sweep) -> Iterable[tuple[Floats, Floats]]:
    """Return times and losses of every stepsize: [seed, evaluation]."""
    return zip(swept.time, swept.curves, strict=True)


def _last_above(times: Floats, losses: Floats) -> float:
    """Return the time of the last evaluation above the target, or of a loss that is not finite."""
    known = ~np.isnan(times)
    above = np.flatnonzero(~(losses[known] <= target()))
    return float(times[known][above[-1]]) if len(above) else 0.0


def _error(tuner: Tuner, make: Make, lowest: float, seed: int) -> float:
    """Return the error at the end with a tuned stepsize."""
    everybody = range(tuner.speeds.num_workers)
    around = best_of(tuner.tune(make)) * FINER
    finer = tuner.sweep(make, around, tuner.seconds, everybody, seeds=_seeds(seed, 1, TUNING_SEEDS))
    best = around[int(np.argmin(_errors_at_end(finer, lowest)))]
    fresh = fresh_seeds(seed)
    return float(_errors_at_end(tuner.sweep(make, [best], tuner.seconds, everybody, seeds=fresh), lowest)[0])


def _errors_at_end(swept: Sweep, lowest: float) -> Floats:
    """Return the error at the end for every stepsize: the geometric mean over the seeds; ∞ if one diverged."""
    errors = np.array([[_at_end(curve) - lowest for curve in of_size] for of_size in swept.curves])
    means: Floats = np.exp(np.log(np.maximum(errors, np.finfo(float).tiny)).mean(axis=1))
    return np.where(swept.diverged.any(axis=1), math.inf, means)


def _at_end(losses: Floats) -> float:
    """Return the median over the last part of a run, whose losses have NaN behind them if others are longer."""
    known = losses[~np.isnan(losses)]
    return float(np.median(known[-max(1, int(LAST * len(known))) :]))


def fresh_seeds(cluster: int) -> tuple[int, ...]:
    """Return the seeds with which a cluster is measured, and nothing is tuned."""
    return _seeds(cluster, FIRST_TIMING_SEED, TIMING_SEEDS)


def _seeds(cluster: int, first: int, count: int) -> tuple[int, ...]:
    begin = SEEDS_OF_A_CLUSTER * cluster + first
    return tuple(range(begin, begin + count))
