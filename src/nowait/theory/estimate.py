"""Estimates of a problem's constants from its gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import Problem, checks
from nowait.core.capabilities import Capabilities
from nowait.core.problem import checked_problem, initial_params, loss_of
from nowait.core.randomness import CounterRandom, Sample, Stream, checked_seed
from nowait.core.types import Floats, Vector
from nowait.theory.constants import Constants

POINTS = 4
"""Number of points on the descent path at which constants are estimated; the largest values are returned."""
FLAT, FLAT_STEP = 1e-9, 0.1
"""Relative change of a gradient below which the loss counts as linear, and the relative length of a first step then."""
FEW = 4
"""Where a mean is enough, only 1/FEW of the samples are used."""


SECOND_MOMENT = "the root of E‖∇f‖² at each point: enough if delays do not depend on the samples"


class Uncertain(float):
    """A number with its standard error and a note on how it was estimated."""

    error: float
    """The standard error."""
    how: str
    """How it was estimated."""

    def __new__(cls, value: float, error: float, how: str) -> Uncertain:
        """Create the number."""
        number = super().__new__(cls, value)
        number.error, number.how = error, how
        return number

    def __repr__(self) -> str:
        return f"{float(self):.4g} ± {self.error:.2g}"


@final
@dataclass(frozen=True)
class Estimate:
    """Estimated constants. Each is a float that also has ``.error``, its standard error, and ``.how``.

    The theorems need bounds that hold everywhere. These are the largest values found at a few points on a descent path
    from x_0, so a guarantee computed from them is an estimate too. Every number may be too small by more than its
    error: the error refers to the value at those points only.
    """

    L: Uncertain
    """The smoothness of F."""
    sigma: Uncertain
    """σ, the standard deviation of a stochastic gradient."""
    G: Uncertain
    """The root of the largest E‖∇f‖² at one of the points, which is what Theorems 1 and 2 need."""
    B: Uncertain
    """The distance from x_0 to the minimum."""
    Delta: Uncertain
    """Δ = F(x_0) − F*."""
    zeta: Uncertain | None
    """None unless ``workers`` was given."""

    @property
    def constants(self) -> Constants:
        """Return the estimates as ``Constants``, without mu. ``prescribe`` also accepts the estimate itself.

        A zeta below twice its error is returned as 0: no difference between the workers' data was detected.
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

    It runs ``descent`` steps of gradient descent from x_0, with the problem's ``full_gradient``, or with the mean of a
    quarter of ``samples`` gradients if there is none. At a few points of the path it estimates L, by ``iterations`` of
    the power method on Hessian-vector products from gradient differences (with the same samples at both ends), sigma²
    and G² ≥ E‖∇f‖² by sampling, and, if ``workers`` is above 1, zeta from the differences between workers' gradients
    (exact ones, if the problem has ``gradient_of_worker``). B and Delta are measured from x_0 to the lowest point of
    the path, or to the problem's own ``minimum()``. ``initial`` is x_0 if it is not that of the
    problem; ``seed`` determines the samples. ``lowest`` is F* if you know it (or a lower bound, such as 0).

    >>> import nowait as nw
    >>> found = estimate(nw.problems.NoisyQuadratic(dimension=10, L=2.0, mu=0.1, sigma=0.5))
    >>> (
    ...     bool(abs(found.L - 2.0) < 0.01),
    ...     bool(abs(found.sigma - 0.5) < 4 * found.sigma.error),
    ... )
    (True, True)
    """
    start = initial_params(checked_problem(problem), initial)
    survey = _Survey(
        problem,
        start,
        samples=checks.at_least(8, samples, "samples", "a variance cannot be estimated from fewer"),
        workers=checks.at_least(1, workers, "workers", "gradients are sampled for each worker"),
        seed=checked_seed(seed),
    )
    iterations = checks.at_least(1, iterations, "iterations", "the power method needs at least one")
    path = survey.descend(checks.at_least(0, descent, "descent", "it is a number of steps"), iterations)
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


def sigma_at(problem: Problem, point: Vector, samples: int = 64, seed: int = 0) -> Uncertain:
    """Estimate the standard deviation σ of a stochastic gradient at one point."""
    return _Survey(problem, point, samples, workers=1, seed=seed).spread(point)[0]


class _Survey:
    """Computes gradients on fixed samples, so that differences between points do not come from sampling."""

    def __init__(self, problem: Any, start: Vector, samples: int, workers: int, seed: int) -> None:
        capabilities = Capabilities.of(problem)
        self._fill = capabilities.fill_with_gradient()
        stream = Stream(seed, "estimate")
        self._samples = [[stream.sample(worker, job) for job in range(samples)] for worker in range(workers)]
        self._few = [sample for mine in self._samples for sample in mine[: -(-samples // FEW)]]
        self._random = CounterRandom(seed, "estimate directions")
        self._full = capabilities.full_gradient
        self._of_worker = capabilities.gradient_of_worker
        self._name, self._start, self._problem = type(problem).__name__, start, problem
        self._trained = start.size - capabilities.num_statistics

    def gradients(self, point: Vector, samples: list[Sample]) -> Floats:
        """Return the gradients at a point, one row per sample."""
        rows = np.empty((len(samples), point.size), point.dtype)
        frozen = point.copy()
        frozen.flags.writeable = False
        for row, sample in zip(rows, samples, strict=True):
            self._fill(frozen, sample, row)
        rows[:, self._trained :] = 0  # statistics, such as those of batch normalisation, are not trained
        return self._finite(rows)

    def some(self, point: Vector) -> Floats:
        """Return ∇F as one row if the problem has ``full_gradient``, else a few gradients, one per row."""
        if self._full is not None:
            return self._finite(np.asarray(self._full(point))[None, :])
        return self.gradients(point, self._few)

    def descend(self, steps: int, iterations: int) -> list[Vector]:
        """Run gradient descent and return its iterates; the stepsize is 1/L at x_0, halved where the gradient grows.

        Where the Hessian is zero, as for piecewise linear losses, the stepsize is set by a distance instead, and halved
        where F grows.
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
        """Return F at a point; raise ValueError if it is not finite."""
        loss = loss_of(self._problem, point)
        if not math.isfinite(loss):
            raise ValueError(f"{self._name} has a loss of {loss} near x_0: choose an initial point with a finite loss")
        return loss

    def smoothness(self, point: Vector, iterations: int) -> Uncertain:
        """Estimate the largest eigenvalue of the Hessian, by magnitude.

        Its error has two parts: the change in the last iteration, and the standard error over the samples.
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
        """Return sigma and G (the largest over workers), and zeta, at a point."""
        sigmas, lengths, means = [], [], []
        for samples in self._samples:
            rows = self.gradients(point, samples)
            squares = ((rows - rows.mean(axis=0)) ** 2).sum(axis=1) * len(rows) / (len(rows) - 1)
            sigmas.append(_root(squares, "sampled at each point"))
            lengths.append(_root((rows**2).sum(axis=1), SECOND_MOMENT))
            means.append(rows.mean(axis=0))
        if self._of_worker is not None:
            return max(sigmas), max(lengths), self._exact_distance(point)
        return max(sigmas), max(lengths), _distance(means, float(max(sigmas)) / math.sqrt(len(self._samples[0])))

    def _exact_distance(self, point: Vector) -> Uncertain:
        """Return the largest ‖∇F_m − ∇F‖ from the workers' exact gradients."""
        assert self._of_worker is not None
        exact = self._finite([self._of_worker(point, worker) for worker in range(len(self._samples))])
        apart = float(np.linalg.norm(exact - exact.mean(axis=0), axis=1).max())
        return Uncertain(apart, 0.0, "the distance between workers' exact gradients at each point")

    def _finite(self, gradients: Any) -> Floats:
        if not np.isfinite(gradients).all():
            raise ValueError(
                f"{self._name} has gradients that are not finite, at x_0 or on the descent path from it: "
                f"choose another initial point, or fewer descent steps"
            )
        return np.asarray(gradients, dtype=np.float64)


def _distance(means: list[Floats], chance: float) -> Uncertain:
    """Return the largest distance of a worker's mean gradient from the mean of all, without its sampling error."""
    gaps = np.array(means) - np.mean(means, axis=0)
    apart = math.sqrt(max(0.0, float((gaps**2).sum(axis=1).max()) - chance**2))
    return Uncertain(apart, chance, "the distance between workers' mean gradients, minus its sampling error")


def _root(squares: Floats, how: str) -> Uncertain:
    """Return the root of a mean, with the error of sampling it."""
    root = math.sqrt(float(squares.mean()))
    return Uncertain(root, _standard_error(squares) / (2 * root) if root else 0.0, how)


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _spread_over(path: list[Vector], count: int) -> list[Vector]:
    """Return about ``count`` evenly spaced points of the path, including the first and the last."""
    indices = sorted({round(index) for index in np.linspace(0, len(path) - 1, count)})
    return [path[index] for index in indices]


def _from_start(problem: Any, survey: _Survey, path: list[Vector], lowest: float | None) -> tuple[Uncertain, Uncertain]:
    """Return B and Delta. If no minimum is known, their error is what the last quarter of the path added."""
    some = _spread_over(path, 4 * POINTS)
    losses = [survey.loss(point) for point in some]
    least, how = min(losses), "down to the lowest point found: a lower bound"
    solution, before = some[losses.index(least)], 3 * len(some) // 4 - 1
    moved, fell = float(np.linalg.norm(solution - some[before])), max(0.0, losses[before] - least)
    minimum = Capabilities.of(problem).minimum
    if minimum is not None:
        (solution, least), how, moved, fell = minimum(), "down to problem.minimum()", 0.0, 0.0
    B = Uncertain(float(np.linalg.norm(np.asarray(solution) - path[0])), moved, how)
    if lowest is None:
        return B, Uncertain(max(0.0, losses[0] - least), fell, how)
    lowest = checks.finite(lowest, "lowest", "it is F*, or a bound below it")
    if lowest > min(losses):
        raise ValueError(f"lowest={lowest:g} is not a lower bound of the loss: a loss of {min(losses):g} was found")
    return B, Uncertain(losses[0] - lowest, 0.0, "down to the lowest= given")
