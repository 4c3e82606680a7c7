"""Both stepsize rules with the stepsizes that theory prescribes, while one straggler becomes slower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.core.problem import loss_of
from nowait.methods import AsynchronousSGD
from nowait.problems import LogisticRegression, NoisyQuadratic
from nowait.speeds import Fixed
from nowait.studies.rule_pays.settings import least_squares
from nowait.theory import Constants, Prescription, estimate, prescribe, prescribe_constant, speedup

FACTORS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
STEPS = 80_000
BATCH = 64


@final
@dataclass(frozen=True)
class Prescribed:
    """The errors on one problem with prescribed stepsizes, for one straggler."""

    problem: str
    """The name of the problem."""
    factor: float
    """How many times slower the straggler is than the other workers."""
    adaptive: float
    """With the delay-adaptive stepsize of Theorem 3.1: F − F* of its answer, divided by F(x_0) − F*."""
    constant: float
    """With the constant stepsize that the longest delay τ_max allows: the same quotient."""


@cache
def _quadratic() -> tuple[NoisyQuadratic, Constants]:
    problem = NoisyQuadratic(dimension=10, L=1.0, mu=0.01, sigma=0.001)
    return problem, problem.constants()


@cache
def _least_squares() -> tuple[Any, Constants]:
    problem = least_squares(BATCH)
    return problem, estimate(problem).constants


@cache
def _logistic() -> tuple[LogisticRegression, Constants]:
    random = np.random.default_rng(0)
    rows = random.standard_normal((2_000, 50))
    labels = np.sign(rows @ random.standard_normal(50) + random.standard_normal(2_000))
    problem = LogisticRegression(rows, labels, l2=1e-3, batch_size=BATCH)
    return problem, estimate(problem).constants


PROBLEMS: dict[str, Callable[[], tuple[Any, Constants]]] = {
    "quadratic": _quadratic,
    "logistic regression": _logistic,
    "least squares": _least_squares,
}


def prescribed_errors(name: str, factor: float, workers: int, steps: int) -> Prescribed:
    """Return the errors with both stepsizes after ``steps`` steps."""
    problem, constants = PROBLEMS[name]()
    seconds = [1.0] * (workers - 1) + [factor]
    adaptive = prescribe("convex", constants, workers=workers, steps=steps)
    constant = prescribe_constant(
        "convex", constants, workers=workers, steps=steps, max_delay=speedup(seconds).max_delay
    )
    return Prescribed(name, factor, _error(problem, adaptive, seconds), _error(problem, constant, seconds))


def _error(problem: Any, prescription: Prescription, seconds: list[float]) -> float:
    """Return the error of one run, relative to that of the initial point."""
    run = simulate(
        problem,
        AsynchronousSGD(prescription.stepsize),
        Fixed(seconds),
        steps=prescription.steps,
        evaluate_every=prescription.steps,
        output=prescription.output,
        progress=False,
    )
    lowest = problem.minimum()[1]
    return float((loss_of(problem, run.params) - lowest) / (problem.loss(problem.initial()) - lowest))
