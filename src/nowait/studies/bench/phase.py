"""The phase diagram: which method reaches a target first, by noise, spread of speeds, and number of workers."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from nowait import methods
from nowait.core import Constant, DelayAdaptive
from nowait.problems import NoisyQuadratic
from nowait.recording import Run
from nowait.studies.bench.contenders import UPDATES, Contender, single, space_facts, varied
from nowait.studies.bench.phase_grid import JITTER, PhasePoint
from nowait.studies.bench.records import PhaseEntry, Trial
from nowait.studies.bench.running import evaluated_seconds, exact_seconds, run_to_target
from nowait.studies.bench.tuning import RANGE, Score, Tuning

TUNING = Tuning(grid=18, rounds=3)
TUNING_SEEDS, SEEDS = (101, 102), (1, 2, 3)
EVALUATE_SECONDS = 0.5
TARGET = 0.01
"""The loss to reach, relative to that at the start."""
DIMENSION, MU = 20, 0.1
UNIT = 3.0
"""The middle of the stepsizes of methods with fresh gradients; L is 1."""


def phase_contenders(workers: int) -> dict[str, Contender]:
    """Return the methods of the phase diagram: one of each kind, with parameters for a number of workers."""
    shares = sorted({max(1, round(share * workers)) for share in (0.5, 0.8, 0.9)})
    several = tuple(max(1, round(factor * workers)) for factor in (0.5, 1, 4))
    return {
        "MinibatchSGD": single(lambda size: methods.MinibatchSGD(Constant(size))),
        "MSynchronousSGD": varied("m", tuple(shares), lambda size, m: methods.MSynchronousSGD(Constant(size), m)),
        "RennalaSGD": varied("batch", several, lambda size, n: methods.RennalaSGD(Constant(size), n)),
        "RingmasterASGD": varied("max_delay", several, lambda size, n: methods.RingmasterASGD(Constant(size), n)),
        "AsynchronousSGD, adaptive": single(lambda size: methods.AsynchronousSGD(DelayAdaptive(size))),
        "AsynchronousSGD, constant": single(lambda size: methods.AsynchronousSGD(Constant(size))),
    }


@cache
def quadratic(noise: float) -> NoisyQuadratic:
    """Return the problem: a quadratic with a condition number of 10."""
    start = NoisyQuadratic(dimension=DIMENSION, mu=MU)
    norm = float(np.linalg.norm(start.full_gradient(start.initial())))
    return NoisyQuadratic(dimension=DIMENSION, mu=MU, sigma=float(f"{norm * math.sqrt(noise):.6g}"))


def seconds_of(point: PhasePoint) -> float:
    """Return the time in which the target has to be reached: longer with few workers, who compute fewer gradients."""
    return max(200.0, 4_000.0 / point.workers)


def phase_facts() -> dict[str, Any]:
    """Return everything that decides the phase diagram, but for its points: for the digest of a suite."""
    contenders = phase_contenders(10)
    return {
        "problem": [DIMENSION, MU, TARGET, EVALUATE_SECONDS, seconds_of(PhasePoint(10, 1.0)), JITTER],
        "tuning": [TUNING.grid, TUNING.rounds, RANGE, UNIT, TUNING_SEEDS, SEEDS],
        "contenders": {name: space_facts(contender) for name, contender in contenders.items()},
    }


def phase_entry(point: PhasePoint) -> PhaseEntry:
    """Tune every method at a point, and return their median times."""
    found = {name: _median(point, contender) for name, contender in phase_contenders(point.workers).items()}
    return PhaseEntry(point, round(point.heterogeneity(), 4), found)


def _median(point: PhasePoint, contender: Contender) -> float | None:
    problem, speeds = _parts(point)
    target = TARGET * problem.loss(problem.initial())

    def run(trial: Trial, seed: int, limit: float = math.inf) -> Run:
        return run_to_target(
            problem,
            contender.choices[trial.choice](trial.stepsize),
            speeds,
            target_loss=target,
            seconds=min(limit, seconds_of(point)),
            evaluate_seconds=EVALUATE_SECONDS,
            update=UPDATES[trial.update],
            seed=seed,
            trace="none",
        )

    def measure(trial: Trial, limit: float) -> Score:
        times = [_or_infinity(evaluated_seconds(run(trial, seed, limit), target)) for seed in TUNING_SEEDS]
        return Score(missed=max(times) == math.inf, worst=max(times))

    def exact(trial: Trial, seed: int) -> float:
        method, update = contender.choices[trial.choice](trial.stepsize), UPDATES[trial.update]
        return _or_infinity(exact_seconds(run(trial, seed), target, problem, method, speeds, update=update, seed=seed))

    best, _ = TUNING.best(contender, UNIT, point.workers, measure)
    median = float(np.median([exact(best, seed) for seed in SEEDS]))
    return round(median, 4) if median < math.inf else None


def _or_infinity(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


@cache
def _parts(point: PhasePoint) -> tuple[NoisyQuadratic, Any]:
    return quadratic(point.noise), point.speeds()
