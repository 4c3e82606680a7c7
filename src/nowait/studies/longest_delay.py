"""The paper's main claim: a longest delay that grows a thousandfold does not slow delay-adaptive asynchronous SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.api.simulate import simulate
from nowait.core import Constant, DelayAdaptive, Stepsize
from nowait.core.types import Floats
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.methods import AsynchronousSGD
from nowait.problems import NoisyQuadratic
from nowait.speeds import Fixed
from nowait.theory import prescribe, prescribe_constant

WORKERS = 8
STEPS = 20_000
EVALUATE_EVERY = 10
FACTORS = (1, 3, 10, 30, 100, 300, 1_000)
ADAPTIVE = "delay-adaptive, γ·min(1, M/τ)"
SAME = "constant, the same γ"
SHRUNK = "constant, γ·M/τ_max"


@final
@dataclass(frozen=True, eq=False)
class LongestDelay:
    """Errors and guarantees for a longest delay that grows at a fixed number of workers."""

    workers: int
    """The number of workers, M."""
    steps: int
    """The steps of every run."""
    max_delay: Floats
    """The longest delays, in ascending order."""
    errors: dict[str, Floats]
    """By rule: the largest F(x_k) − F* in the second half of the run."""
    guarantees: dict[str, Floats]
    """Theorem 3.1, and what was known for constant stepsizes."""


def longest_delay(seed: int = 0, progress: bool | None = None) -> LongestDelay:
    """Simulate one fast worker and seven slower and slower ones, on a quadratic with little noise.

    γ = 1/(ML) is stable for equal workers. As τ_max grows, the constant stepsize of the classical theory must shrink;
    if it does not, old gradients increase the error. The delay-adaptive stepsize avoids both.
    """
    problem = NoisyQuadratic(dimension=10, L=1.0, mu=0.01, sigma=0.001)
    delays = WORKERS * np.array(FACTORS, dtype=np.float64)
    rules = [_rules(delay) for delay in delays]
    errors: dict[str, list[float]] = {name: [] for name in rules[0]}
    with Watch() as watch, Progress("simulating", progress) as bar:
        for place, (delay, of_delay) in enumerate(zip(delays.tolist(), rules, strict=True)):
            speeds = Fixed([1.0] + [delay - WORKERS + 1] * (WORKERS - 1))
            for name, rule in of_delay.items():
                errors[name].append(_largest_error(problem, rule, speeds, seed))
                watch.check()
            bar.show((place + 1) / len(delays))
    constants = problem.constants()
    known = prescribe("convex", constants, workers=WORKERS, steps=STEPS).guarantee
    before = [
        prescribe_constant("convex", constants, workers=WORKERS, steps=STEPS, max_delay=delay).guarantee
        for delay in delays.tolist()
    ]
    return LongestDelay(
        WORKERS,
        STEPS,
        delays,
        {name: np.array(values) for name, values in errors.items()},
        {
            "Theorem 3.1, delay-adaptive": np.full(len(delays), float(known.sharpened or known)),
            "constant stepsize, by τ_max": np.array([float(bound) for bound in before]),
        },
    )


def _rules(max_delay: float) -> dict[str, Stepsize]:
    size = 1.0 / WORKERS
    return {
        ADAPTIVE: DelayAdaptive(size),
        SAME: Constant(size),
        SHRUNK: Constant(size * WORKERS / max_delay),
    }


def _largest_error(problem: NoisyQuadratic, rule: Stepsize, speeds: Fixed, seed: int) -> float:
    method = AsynchronousSGD(rule)
    run = simulate(problem, method, speeds, steps=STEPS, evaluate_every=EVALUATE_EVERY, seed=seed, progress=False)
    return float(run.history.loss[run.history.step >= STEPS // 2].max())
