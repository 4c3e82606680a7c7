"""A quadratic with noisy gradients, all of whose constants are known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, final

import numpy as np

from nowait.core import Sample, checks, sampler
from nowait.core.types import Floats, Vector
from nowait.numerics.compiled import kernels
from nowait.numerics.elementary import cos_of_turns, exp, log, sin_of_turns
from nowait.problems.compiled_data import QUADRATIC, ProblemData
from nowait.problems.shards import SPLITS
from nowait.theory import Constants

NO_SHIFT = np.empty(0)


@final
@dataclass
class NoisyQuadratic:
    """F(x) = ½·Σ λ_i·(x_i − x*_i)², with normal gradient noise of total variance sigma².

    The eigenvalues λ_i are spaced evenly in logarithms from mu to L; x* = (1, …, 1)/√d·distance, so B is
    ``distance``. ``split(workers, zeta=…)`` makes it heterogeneous: the gradient of worker m is shifted by b_m with
    ‖b_m‖ = zeta and Σ b_m = 0, so F remains the mean of the F_m and zeta² is exact.

    >>> NoisyQuadratic(dimension=10, L=2.0, mu=0.5, sigma=0.1).constants()
    Constants(L=2.0, mu=0.5, sigma=0.1, B=1.0, Delta=0.5503..., zeta=0.0)
    """

    dimension: int
    L: float = 1.0
    mu: float = 0.1
    sigma: float = 0.0
    distance: float = 1.0
    zeta: float = 0.0
    workers: int = 1
    eigenvalues: Floats = field(init=False, repr=False, compare=False)
    solution: Floats = field(init=False, repr=False, compare=False)
    shifts: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.dimension = checks.at_least(1, self.dimension, "dimension", "there must be something to train")
        self.L = checks.positive(self.L, "L", "it is the largest eigenvalue")
        self.mu = checks.not_negative(self.mu, "mu", "it is the smallest eigenvalue")
        self.sigma = checks.not_negative(self.sigma, "sigma", "sigma² is the variance of a gradient")
        self.distance = checks.not_negative(self.distance, "distance", "it is the distance from x_0 to x*")
        self.zeta = checks.not_negative(self.zeta, "zeta", "it is how far workers' gradients are from the mean")
        self.workers = checks.at_least(1, self.workers, "workers", "every shift belongs to a worker")
        if self.mu > self.L or (self.dimension == 1 and self.mu != self.L):
            raise ValueError(f"mu must not exceed L (and equal it in one dimension), got mu={self.mu}, L={self.L}")
        self.eigenvalues = _eigenvalues(self.dimension, self.mu, self.L)
        self.solution = np.full(self.dimension, self.distance / np.sqrt(self.dimension))
        self.shifts = self._make_shifts()

    @property
    def num_shards(self) -> int:
        """The number of workers that it is split for; 1 if all workers have the same F."""
        return self.workers if self.zeta else 1

    def initial(self) -> Vector:
        """Return zeros."""
        return np.zeros(self.dimension)

    def loss(self, point: Vector) -> float:
        """Return F at a point."""
        return float(kernels().inner(0.5 * self.eigenvalues, (point - self.solution) ** 2))

    def full_gradient(self, point: Vector) -> Vector:
        """Return ∇F at a point."""
        return self.eigenvalues * (point - self.solution)

    def gradient_of_worker(self, point: Vector, worker: int) -> Vector:
        """Return ∇F_m at a point."""
        own = self.full_gradient(point)
        return own + self.shifts[worker % self.workers] if self.zeta else own

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return ∇F_m plus noise."""
        out = np.empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write ∇F_m plus noise into ``out``."""
        if point.size != self.dimension or out.size != self.dimension:  # the kernel does not check
            raise ValueError(f"point and out must have {self.dimension} entries, got {point.size} and {out.size}")
        shift = self.shifts[sample.worker % self.workers] if self.zeta else NO_SHIFT
        _kernels().quadratic_gradient(
            self.eigenvalues, self.solution, shift, self.noise, np.uint64(sample.key), point, out
        )

    @property
    def noise(self) -> float:
        """The standard deviation of each entry of a gradient."""
        return float(self.sigma / np.sqrt(self.dimension))

    def prepare(self) -> None:
        """Load the compiled gradient, so that forked workers need not."""
        point = self.initial()
        point.flags.writeable = False
        self.gradient(point, sampler(0).sample(0, 0))

    def compiled_data(self) -> ProblemData:
        """Return the data for compiled simulations."""
        return ProblemData(
            QUADRATIC,
            eigenvalues=self.eigenvalues,
            solution=self.solution,
            shifts=self.shifts if self.zeta else np.empty((0, 0)),
            noise=self.noise,
        )

    def minimum(self) -> tuple[Vector, float]:
        """Return x* and F* = 0."""
        return self.solution.copy(), 0.0

    def constants(self) -> Constants:
        """Return the exact constants."""
        return Constants(
            L=self.L,
            mu=self.mu,
            sigma=self.sigma,
            B=self.distance,
            Delta=self.loss(self.initial()),
            zeta=self.zeta,
        )

    def split(self, workers: int, by: str | None = None, zeta: float | None = None) -> NoisyQuadratic:
        """Return the problem with one F_m per worker, where ‖∇F_m − ∇F‖ is ``zeta``.

        The default of ``zeta`` is 1 with ``by="label"`` or ``"sorted"`` (which mean the same here), and otherwise 0:
        the same F for all workers.
        """
        if by is not None:
            checks.one_of(by, SPLITS, "by")
        if zeta is None:
            zeta = 0.0 if by in (None, "iid") else 1.0
        zeta = checks.not_negative(zeta, "zeta", "it is how far workers' gradients are from the mean")
        if by == "iid" and zeta > 0:
            raise ValueError(
                f"by='iid' gives all workers the same F, but zeta={zeta:g} asks for different ones: give one of the two"
            )
        return replace(self, workers=workers, zeta=zeta)

    def _make_shifts(self) -> Floats:
        """Return the vertices of a regular polygon with radius zeta, in the plane of the first two coordinates."""
        shifts = np.zeros((self.workers, self.dimension))
        if self.zeta == 0:
            return shifts
        if self.workers < 2 or (self.dimension == 1 and self.workers % 2):
            raise ValueError(
                f"{self.workers} shifts of length zeta={self.zeta} in dimension {self.dimension} cannot add up to 0: "
                f"take at least two workers (an even number in one dimension)"
            )
        turns = np.arange(self.workers) / self.workers
        shifts[:, 0] = self.zeta * cos_of_turns(turns)
        if self.dimension == 1:
            shifts[:, 0] = self.zeta * (1.0 - 2.0 * (np.arange(self.workers) % 2))
        else:
            shifts[:, 1] = self.zeta * sin_of_turns(turns)
        return shifts


def _eigenvalues(dimension: int, mu: float, largest: float) -> Floats:
    if dimension == 1:
        return np.array([largest])
    if mu > 0:
        return _geometric(mu, largest, dimension)
    return np.concatenate([[0.0], _geometric(largest / dimension, largest, dimension - 1)])


def _geometric(first: float, last: float, count: int) -> Floats:
    """Return a geometric sequence from first to last."""
    numbers: Floats = first * exp(np.arange(count) / max(1, count - 1) * log(last / first))
    numbers[-1] = last
    return numbers


@cache
def _kernels() -> Any:
    from nowait.problems import kernels

    return kernels
