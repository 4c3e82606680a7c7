"""The quadratic of Nesterov's lower bound, which papers on time complexity simulate, with three kinds of noise.

F(x) = ½·xᵀAx − bᵀx with A = ¼·tridiag(−1, 2, −1) and b = ¼·(−1, 0, …, 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any, final

import numpy as np

from nowait.core import Sample, checks
from nowait.core.types import Floats, Vector
from nowait.numerics.compiled import kernels
from nowait.numerics.elementary import cos_of_turns, sin_of_turns
from nowait.problems.compiled_data import QUADRATIC, ProblemData

NO_SHIFT = np.empty(0)


@final
@dataclass
class TridiagonalQuadratic:
    """The quadratic with normal noise of standard deviation ``noise`` in every entry of a gradient.

    Params are coordinates in the basis of A's eigenvectors, where F is a sum of squares and the noise has the same
    distribution: so runs are compiled. The start is 0, or ``start`` times the first unit vector of the usual basis.
    """

    dimension: int
    noise: float = 0.0
    start: float = 0.0
    eigenvalues: Floats = field(init=False, repr=False, compare=False)
    solution: Floats = field(init=False, repr=False, compare=False)
    first: Floats = field(init=False, repr=False, compare=False)
    """The first unit vector, in this basis."""

    def __post_init__(self) -> None:
        self.dimension = checks.at_least(1, self.dimension, "dimension", "there must be something to train")
        self.noise = checks.not_negative(self.noise, "noise", "it is a standard deviation")
        half_turns = np.arange(1, self.dimension + 1) / (2 * (self.dimension + 1))
        self.eigenvalues = 0.5 * (1.0 - cos_of_turns(half_turns))
        self.first = math.sqrt(2.0 / (self.dimension + 1)) * sin_of_turns(half_turns)
        self.solution = -0.25 * self.first / self.eigenvalues

    def initial(self) -> Vector:
        """Return the start."""
        return self.start * self.first

    def loss(self, point: Vector) -> float:
        """Return F − F*."""
        return float(kernels().inner(0.5 * self.eigenvalues, (point - self.solution) ** 2))

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return ∇F plus noise."""
        out = np.empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write ∇F plus noise into ``out``."""
        _kernels().quadratic_gradient(
            self.eigenvalues, self.solution, NO_SHIFT, self.noise, np.uint64(sample.key), point, out
        )

    def compiled_data(self) -> ProblemData:
        """Return the data for compiled simulations."""
        return ProblemData(QUADRATIC, eigenvalues=self.eigenvalues, solution=self.solution, noise=self.noise)

    def minimum(self) -> tuple[Vector, float]:
        """Return x* and 0, because the loss is F − F*."""
        return self.solution.copy(), 0.0


@final
@dataclass
class SharedNoiseQuadratic:
    """The quadratic whose gradient noise is one normal number, added to every entry.

    So the noise points along (1, …, 1), where F is flat, and matters less than as much independent noise. Params are
    coordinates in the basis of A's eigenvectors.
    """

    dimension: int
    noise: float
    exact: TridiagonalQuadratic = field(init=False, repr=False, compare=False)
    ones: Floats = field(init=False, repr=False, compare=False)
    """The vector (1, …, 1) in this basis."""

    def __post_init__(self) -> None:
        self.exact = TridiagonalQuadratic(self.dimension)
        self.noise = checks.not_negative(self.noise, "noise", "it is a standard deviation")
        numbers = np.arange(1, self.dimension + 1)
        quarter_turns = numbers / (4 * (self.dimension + 1))
        sums = cos_of_turns(quarter_turns) / sin_of_turns(quarter_turns)  # Σ_j sin(jkπ/(d + 1)) for odd k, else 0
        self.ones = np.where(numbers % 2 == 1, math.sqrt(2.0 / (self.dimension + 1)) * sums, 0.0)

    def initial(self) -> Vector:
        """Return the start, 0."""
        return self.exact.initial()

    def loss(self, point: Vector) -> float:
        """Return F − F*."""
        return self.exact.loss(point)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return ∇F plus one normal number in every entry."""
        gradient: Vector = self.exact.eigenvalues * (point - self.exact.solution)
        gradient += (self.noise * float(sample.normals(1)[0])) * self.ones
        return gradient

    def minimum(self) -> tuple[Vector, float]:
        """Return x* and 0, because the loss is F − F*."""
        return self.exact.minimum()


@final
@dataclass
class ProgressQuadratic:
    """The quadratic with the noise of the lower bound for stochastic gradients (Arjevani et al. 2019).

    Behind the last entry of x that is not 0, entries of a gradient are multiplied by 1/``probability`` with this
    probability, and by 0 otherwise. So progress to the next entry has to be waited for. The start is ``start`` times
    the first unit vector.
    """

    dimension: int
    probability: float
    start: float = 1.0

    def __post_init__(self) -> None:
        self.dimension = checks.at_least(2, self.dimension, "dimension", "the noise needs entries behind the first")
        if not 0 < self.probability <= 1:
            raise ValueError(f"probability must be above 0 and at most 1, got {self.probability}")

    def initial(self) -> Vector:
        """Return the start."""
        point = np.zeros(self.dimension)
        point[0] = self.start
        return point

    def loss(self, point: Vector) -> float:
        """Return F − F*."""
        lowest = -self.dimension / (8 * (self.dimension + 1))
        return float(kernels().inner(0.5 * self._times_matrix(point), point)) + 0.25 * float(point[0]) - lowest

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return ∇F, whose entries behind the last one that is not 0 are noisy."""
        gradient = self._times_matrix(point)
        gradient[0] += 0.25
        reached = np.flatnonzero(point)
        behind = int(reached[-1]) + 1 if len(reached) else 0
        gradient[behind:] *= (sample.uniforms(1)[0] < self.probability) / self.probability
        return gradient

    def minimum(self) -> tuple[Vector, float]:
        """Return x* and 0, because the loss is F − F*."""
        places = np.arange(1, self.dimension + 1)
        return places / (self.dimension + 1) - 1.0, 0.0

    def _times_matrix(self, point: Vector) -> Vector:
        product: Vector = 0.5 * point
        product[1:] -= 0.25 * point[:-1]
        product[:-1] -= 0.25 * point[1:]
        return product


@cache
def _kernels() -> Any:
    from nowait.problems import kernels as compiled_kernels

    return compiled_kernels
