"""The constants of any problem, estimated from its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import Problem, checks
from nowait.core.problem import checked_problem, fill_with_gradient, initial_params, loss_of
from nowait.core.randomness import CounterRandom, Sample, Stream, checked_seed
from nowait.core.types import Floats, Vector
from nowait.theory.constants import Constants

POINTS = 4
"""At so many points of the way down the constants are looked for; each is the largest found."""
FLAT, FLAT_STEP = 1e-9, 0.1
"""Below which share of a gradient its change counts as none, and how far a first step goes then."""
FEW = 4
"""Where a mean is enough, a share of 1/FEW of the samples is taken."""


class Uncertain(float):
    """A number with its standard error and a word on how it was found."""

    error: float
    how: str

    def __new__(cls, value: float, error: float, how: str) -> Uncertain:
        """The number."""
        number = super().__new__(cls, value)
        number.error, number.how = error, how
        return number

    def __repr__(self) -> str:
        return f"{float(self):.4g} ± {self.error:.2g}"


@final
@dataclass(frozen=True)
class Estimate:
    """Estimated constants. Each is a float that also has ``.error``, its standard error, and ``.how``.

    The theorems want bounds that hold everywhere; these are the largest values found at a few points on the way from
    x_0 downhill, so a guarantee made of them is an estimate too. Every number may be too small by more than its error:
    the error says how well the value at those points is known.
    """

    L: Uncertain
    sigma: Uncertain
    G: Uncertain
    B: Uncertain
    Delta: Uncertain
    zeta: Uncertain | None
    """None unless ``workers`` was given."""

    @property
    def constants(self) -> Constants:
        """For ``prescribe``, which also takes the estimate itself. It says nothing of mu.

        A zeta below two of its errors counts as 0: the workers' data are the same as far as can be told.
        """
        zeta = None if self.zeta is None else float(self.zeta) if self.zeta > 2 * self.zeta.error else 0.0
        return Constants(L=self.L, sigma=self.sigma, G=self.G, B=self.B, Delta=self.Delta, zeta=zeta)

    def __str__(self) -> str:
        found = {name: getattr(self, name) for name in ("L", "sigma", "G", "B", "Delta", "zeta")}
        return "\n".join(f"{name:>5} = {value!r}: {value.how}" for name, value in found.items() if value is not None)


def estimate(
    problem: Problem,
    *,
    samples: int = 128,
    iterations: int = 20,
    descent: int = 50,
    lowest: float | None = None,
    workers: int = 1,
    initial: Any = None,
    seed: int = 0,
) -> Estimate:
    """Estimate the constants of any problem with ``gradient(point, sample)`` and ``loss(point)``.

    From x_0 it goes downhill by ``descent`` steps of gradient descent, on the problem's ``full_gradient`` or else on
    the mean of a quarter of ``samples`` gradients. At a few points of that way it looks for L, by ``iterations`` of the
    power method on Hessian-vector products from gradient differences (the same samples at both ends), for sigma² and G
    by sampling, and, if the data differ among ``workers``, for zeta. B and Delta are measured from x_0 to the lowest
    point of the way, or to the problem's own ``minimum()``; ``lowest`` is F* if you know it (or a bound, such as 0).

    >>> import nowait as nw
    >>> found = estimate(nw.problems.NoisyQuadratic(dimension=10, L=2.0, mu=0.1, sigma=0.5))
    >>> bool(abs(found.L - 2.0) < 0.01), bool(abs(found.sigma - 0.5) < 4 * found.sigma.error)
    (True, True)
    """
    start = initial_params(checked_problem(problem), initial)
    survey = _Survey(
        problem,
        start,
        samples=checks.at_least(8, samples, "samples", "a variance needs some"),
        workers=checks.at_least(1, workers, "workers", "somebody has to compute"),
        seed=checked_seed(seed),
    )
    iterations = checks.at_least(1, iterations, "iterations", "the power method needs some")
    path = survey.descend(checks.at_least(0, descent, "descent", "it counts steps"), iterations)
    points = _spread_over(path, POINTS)
    spreads = [survey.spread(point) for point in points]
    B, Delta = _from_start(problem, survey, path, lowest)
    return Estimate(
        L=max(survey.smoothness(point, iterations) for point in points),
        sigma=max(sigma for sigma, _, _ in spreads),
        G=max(longest for _, longest, _ in spreads),
        B=B,
        Delta=Delta,
        zeta=max(apart for _, _, apart in spreads) if workers > 1 else None,
    )


class _Survey:
    """Gradients of a problem at any point, on fixed samples: differences between points are not of the samples."""

    def __init__(self, problem: Any, start: Vector, samples: int, workers: int, seed: int) -> None:
        self._fill = fill_with_gradient(problem)
        stream = Stream(seed, "estimate")
        self._samples = [[stream.sample(worker, job) for job in range(samples)] for worker in range(workers)]
        self._few = [sample for mine in self._samples for sample in mine[: -(-samples // FEW)]]
        self._random = CounterRandom(seed, "estimate directions")
        self._full: Callable[[Vector], Vector] | None = getattr(problem, "full_gradient", None)
        self._name, self._start, self._problem = type(problem).__name__, start, problem
        self._trained = start.size - getattr(problem, "num_statistics", 0)

    def gradients(self, point: Vector, samples: list[Sample]) -> Floats:
        """One row per sample."""
        rows = np.empty((len(samples), point.size), point.dtype)
        frozen = point.copy()
        frozen.flags.writeable = False
        for row, sample in zip(rows, samples, strict=True):
            self._fill(frozen, sample, row)
        rows[:, self._trained :] = 0  # statistics, such as those of batch normalisation, stay as they are
        return self._finite(rows)

    def some(self, point: Vector) -> Floats:
        """∇F in one row where the problem has ``full_gradient``, else a few gradients, one per row."""
        if self._full is not None:
            return self._finite(np.asarray(self._full(point))[None, :])
        return self.gradients(point, self._few)

    def descend(self, steps: int, iterations: int) -> list[Vector]:
        """Gradient descent; its stepsize is 1/L with the L found at its start, halved where the gradient grows.

        Where the Hessian is zero, as with piecewise linear losses, a stepsize by distance, halved where F grows.
        """
        path = [self._start]
        gradient = self.some(self._start).mean(axis=0)
        curvature, length = float(self.smoothness(self._start, iterations)), float(np.linalg.norm(gradient))
        scale = 1 + float(np.linalg.norm(self._start))
        flat = curvature * scale <= FLAT * length
        stepsize = FLAT_STEP * scale / max(length, 1e-300) if flat else 1 / max(curvature, 1e-300)
        for _ in range(steps if length > 0 else 0):
            ahead = (path[-1] - stepsize * gradient).astype(self._start.dtype)
            next_gradient = self.some(ahead).mean(axis=0)
            too_far = np.linalg.norm(next_gradient) > 2 * np.linalg.norm(gradient)
            if too_far or (flat and self.loss(ahead) >= self.loss(path[-1])):
                stepsize /= 2
                continue
            path.append(ahead)
            gradient = next_gradient
        return path

    def loss(self, point: Vector) -> float:
        """F, which must be a number."""
        loss = loss_of(self._problem, point)
        if not math.isfinite(loss):
            raise ValueError(f"{self._name} has a loss of {loss} near x_0: there is nothing to estimate")
        return loss

    def smoothness(self, point: Vector, iterations: int) -> Uncertain:
        """The largest eigenvalue of the Hessian, by magnitude.

        Its error has two parts: how much the last iteration changed it, and how much it differs from sample to sample.
        """
        length = float(np.finfo(point.dtype).eps) ** (1 / 3) * (1 + float(np.linalg.norm(point)))
        direction = self._random.uniforms(point.size) - 0.5
        direction[self._trained :] = 0
        value = change = error = 0.0
        for _ in range(iterations):
            direction /= np.linalg.norm(direction)
            ahead, behind = ((point + side * direction).astype(point.dtype) for side in (length, -length))
            products = (self.some(ahead) - self.some(behind)) / (2 * length)
            product = products.mean(axis=0)
            change, value = abs(float(np.linalg.norm(product)) - value), float(np.linalg.norm(product))
            error = _standard_error(products @ direction)
            if value == 0:
                break
            direction = product
        return Uncertain(value, math.hypot(change, error), "the power method on gradient differences")

    def spread(self, point: Vector) -> tuple[Uncertain, Uncertain, Uncertain]:
        """sigma (of the worker where it is largest), the longest gradient, and how far workers' means are apart."""
        sigmas, lengths, means = [], [], []
        for samples in self._samples:
            rows = self.gradients(point, samples)
            squares = ((rows - rows.mean(axis=0)) ** 2).sum(axis=1) * len(rows) / (len(rows) - 1)
            sigmas.append(_root(float(squares.mean()), _standard_error(squares)))
            lengths.append(float(np.linalg.norm(rows, axis=1).max()))
            means.append(rows.mean(axis=0))
        count, mean = len(self._samples[0]), np.mean(means, axis=0)
        longest = Uncertain(max(lengths), 0.0, f"the longest of {count} gradients at each point: a lower bound")
        chance = max(sigmas) / math.sqrt(count)
        apart = math.sqrt(max(0.0, float(((np.array(means) - mean) ** 2).sum(axis=1).max()) - chance**2))
        return max(sigmas), longest, Uncertain(apart, chance, "the means of workers' gradients, less what chance adds")

    def _finite(self, gradients: Any) -> Floats:
        if not np.isfinite(gradients).all():
            raise ValueError(f"{self._name} has gradients that are not finite, at x_0 or on the way down from it")
        return np.asarray(gradients, dtype=np.float64)


def _root(variance: float, error: float) -> Uncertain:
    sigma = math.sqrt(variance)
    return Uncertain(sigma, error / (2 * sigma) if sigma else 0.0, "sampled at each point")


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _spread_over(path: list[Vector], count: int) -> list[Vector]:
    """The first, the last and some between."""
    places = sorted({round(place) for place in np.linspace(0, len(path) - 1, count)})
    return [path[place] for place in places]


def _from_start(problem: Any, survey: _Survey, path: list[Vector], lowest: float | None) -> tuple[Uncertain, Uncertain]:
    """B and Delta. Their error, if no minimum is known, is what the last quarter of the way added."""
    some = _spread_over(path, 4 * POINTS)
    losses = [survey.loss(point) for point in some]
    least, how = min(losses), "down to the lowest point found: a lower bound"
    solution, before = some[losses.index(least)], 3 * len(some) // 4 - 1
    moved, fell = float(np.linalg.norm(solution - some[before])), max(0.0, losses[before] - least)
    if hasattr(problem, "minimum"):
        (solution, least), how, moved, fell = problem.minimum(), "down to problem.minimum()", 0.0, 0.0
    B = Uncertain(float(np.linalg.norm(np.asarray(solution) - path[0])), moved, how)
    if lowest is None:
        return B, Uncertain(max(0.0, losses[0] - least), fell, how)
    lowest = checks.finite(lowest, "lowest", "it is F*, or a bound below it")
    if lowest > min(losses):
        raise ValueError(f"lowest={lowest:g} is no lower bound of the loss: {min(losses):g} was found")
    return B, Uncertain(losses[0] - lowest, 0.0, "down to the lowest= given")
