"""The phase diagram: which method reaches a target first, by noise, spread of speeds, and number of workers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, final

import numpy as np

from nowait import methods
from nowait.api.simulate import simulate
from nowait.core import Constant, DelayAdaptive
from nowait.problems import NoisyQuadratic
from nowait.studies.bench.contenders import UPDATES, Contender, single, varied
from nowait.studies.bench.measuring import measured_seconds
from nowait.studies.bench.phase_grid import PhasePoint
from nowait.studies.bench.tuning import Score, Trial, Tuning
from nowait.studies.quiet import quiet

TUNING = Tuning(grid=18, rounds=3)
TUNING_SEEDS, SEEDS = (101, 102), (1, 2, 3)
EVALUATE_SECONDS = 0.5
TARGET = 0.01
"""The loss to reach, relative to that at the start."""
DIMENSION, MU = 20, 0.1
UNIT = 3.0
"""The middle of the stepsizes of methods with fresh gradients; L is 1."""


@final
@dataclass(frozen=True)
class PhaseEntry:
    """The median time of every method at a point; None if it did not reach the target."""

    point: PhasePoint
    heterogeneity: float
    seconds: dict[str, float | None]

    @property
    def winner(self) -> str | None:
        """The method with the shortest median time; None if none reached the target."""
        reached = {name: time for name, time in self.seconds.items() if time is not None}
        return min(reached, key=lambda name: reached[name]) if reached else None

    def lead(self) -> float:
        """Return the time of the second method over that of the first; infinity if only one reached the target."""
        times = sorted(math.inf if time is None else time for time in self.seconds.values())
        return times[1] / times[0] if len(times) > 1 and times[0] < math.inf else math.inf

    def as_dictionary(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> PhaseEntry:
        """Return the entry from JSON values."""
        return cls(PhasePoint(**values["point"]), values["heterogeneity"], values["seconds"])


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


def phase_entry(point: PhasePoint) -> PhaseEntry:
    """Tune every method at a point, and return their median times."""
    found = {name: _median(point, contender) for name, contender in phase_contenders(point.workers).items()}
    return PhaseEntry(point, round(point.heterogeneity(), 4), found)


def _median(point: PhasePoint, contender: Contender) -> float | None:
    def measure(trial: Trial, limit: float) -> Score:
        times = [_seconds(point, contender, trial, seed, limit) for seed in TUNING_SEEDS]
        return Score(missed=max(times) == math.inf, worst=max(times))

    best, _ = TUNING.best(contender, UNIT, point.workers, measure)
    median = float(np.median([_seconds(point, contender, best, seed) for seed in SEEDS]))
    return round(median, 4) if median < math.inf else None


def _seconds(point: PhasePoint, contender: Contender, trial: Trial, seed: int, limit: float = math.inf) -> float:
    problem, speeds = _parts(point)
    target = TARGET * problem.loss(problem.initial())
    with quiet():
        run = simulate(
            problem,
            contender.choices[trial.choice](trial.stepsize),
            speeds,
            seconds=min(limit, seconds_of(point)),
            target_loss=target,
            evaluate_seconds=EVALUATE_SECONDS,
            update=UPDATES[trial.update],
            seed=seed,
            trace="none",
            progress=False,
        )
    found = measured_seconds(run, target)
    return math.inf if found is None else found


@cache
def _parts(point: PhasePoint) -> tuple[NoisyQuadratic, Any]:
    return quadratic(point.noise), point.speeds()
