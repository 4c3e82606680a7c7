"""The workers and problems of the study."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np

from nowait.core.types import Floats
from nowait.numerics.elementary import exp
from nowait.problems import LeastSquares, NoisyQuadratic
from nowait.speeds import LogNormal

DIMENSION, SMOOTHNESS, CURVATURE = 50, 1.0, 0.02
PRECISION = 1e-6
"""The target is this share of the error at the start."""
JITTER = 0.2
"""Compute times of a worker are lognormal around its median; this is the standard deviation of their logarithms."""
NOISES = (10.0, 1.0, 0.3, 0.1, 0.0)
SPREADS = (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)
STRAGGLERS = (10.0, 100.0, 1_000.0)


@final
@dataclass(frozen=True)
class Cluster:
    """Workers whose medians of seconds per gradient are lognormal, and maybe one straggler."""

    spread: float
    """The standard deviation of the logarithms of the medians."""
    straggler: float = 1.0
    """How many times slower the last worker is; only if the others are equal."""

    def __str__(self) -> str:
        return f"spread {self.spread:g}" if self.straggler == 1.0 else f"straggler × {self.straggler:,g}"

    def medians(self, workers: int, seed: int) -> Floats:
        """Return the median seconds per gradient of each worker; every seed draws other ones."""
        normal = np.round(np.random.default_rng(seed).standard_normal(workers), 9)
        medians: Floats = exp(self.spread * normal)
        medians[-1] *= self.straggler
        return medians

    def speeds(self, workers: int, seed: int) -> LogNormal:
        """Return the speed model for these medians."""
        return LogNormal(self.medians(workers, seed).tolist(), sigma=JITTER)


CLUSTERS = tuple(Cluster(spread) for spread in SPREADS) + tuple(Cluster(0.0, factor) for factor in STRAGGLERS)


@cache
def target() -> float:
    """Return the error to reach on the quadratic."""
    exact = NoisyQuadratic(DIMENSION, SMOOTHNESS, CURVATURE)
    return PRECISION * exact.loss(exact.initial())


def quadratic(noise: float, workers: int) -> NoisyQuadratic:
    """Return the quadratic on which σ²/(M·L·ε) is ``noise`` at the target ε."""
    sigma = math.sqrt(noise * workers * SMOOTHNESS * target())
    return NoisyQuadratic(DIMENSION, SMOOTHNESS, CURVATURE, sigma=sigma)


def gradients_needed(noise: float, workers: int) -> float:
    """Return about how many gradients the target takes with the best stepsize, from above."""
    steps = SMOOTHNESS / CURVATURE * math.log(1 / PRECISION) / 2
    return steps * workers * (0.75 + 0.5 * noise)


@cache
def least_squares(batch_size: int) -> LeastSquares:
    """Return the paper's least squares problem, whose labels have almost no noise."""
    return LeastSquares.random(samples=10_000, dimension=400, noise=1e-5, batch_size=batch_size, seed=42)
