"""Planted mistakes: runs of asynchronous SGD that are wrong in one way, which ``nw.certify`` must find out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from nowait.core import (
    Arrival,
    Constant,
    Method,
    Output,
    RandomIterate,
    Sample,
    Server,
    Stepsize,
    StepsizeWeightedAverage,
    StronglyConvexAverage,
    UniformAverage,
)
from nowait.core.types import Floats, Vector
from nowait.methods import AsynchronousSGD
from nowait.recording import Run
from nowait.studies.certified import VIOLATED, Trial

BOUND, CHECKS, MISSED, NONE = "bound", "checks", "missed", "–"
"""How a row finds a mistake: its bound is violated, a lemma is broken, or not at all; or it cannot have the mistake."""
SMALL, LARGE = 1e-9, 4.0


@final
@dataclass(frozen=True)
class OlderDelays(Stepsize):
    """A mistake: the stepsize for a delay that is one step longer."""

    rule: Stepsize

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return the stepsize of the rule for the delay plus 1."""
        return self.rule(delay + 1, num_workers, step)


@final
@dataclass(slots=True)
class SendsOldParams(Method):
    """A mistake: a worker gets params from before its own gradient is applied."""

    stepsize: Stepsize

    def on_arrival(self, server: Server, arrival: Arrival) -> None:
        """Assign first, then apply."""
        server.assign(arrival.worker)
        server.apply(arrival, self.stepsize.at(arrival, server))


@final
@dataclass
class ShrinkingAverage(Output):
    """A mistake: the weights of Theorem 3.2 with the sign that the paper prints (erratum E20)."""

    mu: float
    mean: Floats = field(init=False, repr=False, compare=False)
    weight: float = field(init=False, repr=False, compare=False)

    def start(self, params: Vector, random: Any) -> None:
        """Reset the average."""
        self.mean, self.weight = np.zeros(len(params)), 0.0

    def on_gradient(self, point: Vector, stepsize: float, stepsize_sum: float) -> None:
        """Add a point with its weight."""
        own = stepsize * math.exp(-self.mu * stepsize_sum)
        self.weight += own
        self.mean = self.mean + (point - self.mean) * (own / self.weight if self.weight else 0.0)

    def result(self, last: Vector) -> Vector:
        """Return the mean."""
        return self.mean


@final
class SomeSamplesLost:
    """A mistake: a quarter of the samples have no gradient."""

    def __init__(self, problem: Any) -> None:
        self._problem = problem
        self.dimension = problem.dimension

    def initial(self) -> Vector:
        """Return the initial params of the problem."""
        initial: Vector = self._problem.initial()
        return initial

    def loss(self, point: Vector) -> float:
        """Return the loss of the problem."""
        return float(self._problem.loss(point))

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return the gradient, or zeros for a quarter of the samples."""
        found: Vector = self._problem.gradient(point, sample)
        return found * 0.0 if sample.key % 4 == 0 else found


@final
@dataclass(frozen=True)
class Mutant:
    """A planted mistake: how it makes a run of a trial. None: this trial cannot have the mistake."""

    name: str
    run: Callable[[Trial, int], Run | None]


def _scaled(factor: float) -> Callable[[Trial, int], Run | None]:
    def run(trial: Trial, seed: int) -> Run | None:
        rule: Any = trial.prescription.stepsize
        return trial.run(seed, method=AsynchronousSGD(replace(rule, gamma=rule.gamma * factor)))

    return run


def _older(trial: Trial, seed: int) -> Run | None:
    rule = trial.prescription.stepsize
    if isinstance(rule, Constant):
        return None
    return trial.run(seed, method=AsynchronousSGD(OlderDelays(rule)))


def _equal_weights(trial: Trial, seed: int) -> Run | None:
    if not isinstance(trial.prescription.output, StepsizeWeightedAverage | StronglyConvexAverage):
        return None
    return trial.run(seed, output=UniformAverage())


def _shrinking_weights(trial: Trial, seed: int) -> Run | None:
    output = trial.prescription.output
    if not isinstance(output, StronglyConvexAverage):
        return None
    return trial.run(seed, output=ShrinkingAverage(output.mu))


def _old_params(trial: Trial, seed: int) -> Run | None:
    return trial.run(seed, method=SendsOldParams(trial.prescription.stepsize))


def _lost_samples(trial: Trial, seed: int) -> Run | None:
    return trial.run(seed, problem=SomeSamplesLost(trial.problem))


def _initial_answer(trial: Trial, seed: int) -> Run | None:
    """Return a run whose answer is x_0, as if the output rule kept the first point."""
    if isinstance(trial.prescription.output, RandomIterate):
        return None
    found = trial.run(seed)
    return replace(found, params=np.asarray(trial.problem.initial(), dtype=found.params.dtype))


MUTANTS = (
    Mutant("stepsizes × 1e-9", _scaled(SMALL)),
    Mutant("stepsizes × 4", _scaled(LARGE)),
    Mutant("delays off by one", _older),
    Mutant("equal weights", _equal_weights),
    Mutant("sign of the exponent", _shrinking_weights),
    Mutant("params before the step", _old_params),
    Mutant("a quarter of the samples lost", _lost_samples),
    Mutant("x_0 as the answer", _initial_answer),
)
"""The planted mistakes."""


def caught_by(trial: Trial, mutant: Mutant, seeds: list[int]) -> str:
    """Return how a row finds a mistake: by its bound, by the checks of lemmas, or not at all."""
    found = []
    for seed in seeds:
        run = mutant.run(trial, seed)
        if run is None:
            return NONE
        found.append(trial.measured(run, seed))
    row = trial.row(found)
    if row.verdict == VIOLATED and not any(math.isnan(one.error) for one in found):
        return BOUND
    return CHECKS if row.lemmas_broken else MISSED
