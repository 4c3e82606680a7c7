"""Least squares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self, final

import numpy as np

from nowait.core import checks
from nowait.core.randomness import Stream, checked_seed, many_normals
from nowait.core.types import Vector
from nowait.problems.linear_model import LinearModel
from nowait.problems.matrix import margins_of
from nowait.theory import Constants


@final
class LeastSquares(LinearModel):
    """F(x) = ½·mean of (a_i·x − b_i)² + l2/2·‖x‖², dense or sparse.

    ``features`` is a matrix, dense or sparse, with a row a_i for every sample; ``targets`` are the b_i. A gradient uses
    ``batch_size`` random rows.

    >>> problem = LeastSquares.random(samples=100, dimension=5, noise=0.0, seed=0)
    >>> problem.minimum()[1] < 1e-20
    True
    """

    model = 0
    has_compiled_losses = True

    def __init__(self, features: Any, targets: Any, batch_size: int = 1, l2: float = 0.0) -> None:
        super().__init__(features, targets, batch_size, l2)

    @classmethod
    def random(
        cls,
        samples: int = 10_000,
        dimension: int = 400,
        noise: float = 1e-5,
        batch_size: int = 1,
        seed: int = 0,
    ) -> Self:
        """The paper's experiment: A uniform in [0, 1] scaled by 1/√d, b = A·x + noise with x standard normal."""
        checks.at_least(1, samples, "samples", "a data set needs rows")
        checks.at_least(1, dimension, "dimension", "a row needs entries")
        checks.not_negative(noise, "noise", "it is a standard deviation")
        rng = np.random.default_rng(checked_seed(seed))
        features = rng.uniform(size=(samples, dimension)) / np.sqrt(dimension)
        stream = Stream(seed, "data")
        solution, errors = many_normals(stream.key(0, 0), dimension), many_normals(stream.key(0, 1), samples)
        targets = margins_of(features, solution[None])[0] + noise * errors
        return cls(features, targets, batch_size=batch_size)

    def losses(self, margins: Any, targets: Any) -> Any:
        """½·(margin − target)²."""
        return 0.5 * (margins - targets) ** 2

    def slopes(self, margins: Any, targets: Any) -> Any:
        """margin − target."""
        return margins - targets

    def constants(self) -> Constants:
        """L and mu are eigenvalues, B and Delta come from ``minimum``. The gradient noise has no uniform bound."""
        largest, smallest = self.hessian_bound()
        return replace(self.start_constants(), L=largest + self.l2, mu=smallest + self.l2)

    def _solve(self) -> Vector:
        import scipy.linalg

        features = self.features if isinstance(self.features, np.ndarray) else self.features.toarray()
        scale = np.sqrt(self.shards.weights)
        matrix = np.vstack([features * scale[:, None], np.sqrt(self.l2) * np.eye(self.dimension)])
        targets = np.concatenate([self.targets * scale, np.zeros(self.dimension)])
        solution: Vector = scipy.linalg.lstsq(matrix, targets, lapack_driver="gelsy")[0]
        return solution.astype(self.targets.dtype)
