"""Logistic regression."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, final

import numpy as np

from nowait.core.types import Vector
from nowait.problems.libsvm import read_libsvm
from nowait.problems.linear_model import LinearModel
from nowait.problems.shards import Shards
from nowait.theory import Constants


@final
class LogisticRegression(LinearModel):
    """F(x) = mean of ln(1 + exp(−b_i·a_i·x)) + l2/2·‖x‖², dense or sparse.

    Labels are two different values; the larger one counts as +1.

    >>> problem = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [0, 1], l2=0.1)
    >>> round(problem.loss(problem.initial()), 6)
    0.693147
    """

    model = 1

    def __init__(self, features: Any, labels: Any, batch_size: int = 1, l2: float = 0.0) -> None:
        super().__init__(features, signs_of(labels), batch_size, l2)

    @classmethod
    def from_libsvm(cls, path: str | Path, batch_size: int = 1, l2: float = 0.0, dimension: int | None = None) -> Self:
        """Read a LIBSVM file (plain, .gz, .bz2 or .xz). ``dimension`` widens it to match another file."""
        features, labels = read_libsvm(path, dimension)
        return cls(features, labels, batch_size=batch_size, l2=l2)

    def losses(self, margins: Any, targets: Any) -> Any:
        """ln(1 + exp(−target·margin)), without overflow."""
        return np.logaddexp(0.0, -targets * margins)

    def slopes(self, margins: Any, targets: Any) -> Any:
        """−target/(1 + exp(target·margin))."""
        from scipy.special import expit

        return -targets * expit(-targets * margins)

    def constants(self) -> Constants:
        """L ≤ λ_max/4 + l2, mu ≥ l2, and for every x: G = max‖a_i‖ (if l2 = 0), sigma² ≤ mean‖a_i‖²/batch.

        Of several shards the one with the largest mean counts.
        """
        solution, lowest = self.minimum()
        squared_norms = self.squared_row_norms()
        means = [squared_norms[self.shards.rows_of(shard)].mean() for shard in range(self.shards.count)]
        return Constants(
            L=self.hessian_bound()[0] / 4 + self.l2,
            mu=self.l2,
            sigma=float(np.sqrt(max(means) / self.batch_size)),
            G=float(np.sqrt(squared_norms.max())) if self.l2 == 0 else None,
            B=float(np.linalg.norm(self.initial() - solution)),
            Delta=max(0.0, self.loss(self.initial()) - lowest),
            zeta=0.0 if self.shards.count == 1 else None,
        )

    def _solve(self) -> Vector:
        """L-BFGS, then Newton steps, which end at the last digits where the Hessian is regular."""
        from scipy.optimize import minimize

        start = np.zeros(self.dimension)
        options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}
        found = minimize(self.loss, start, jac=self.full_gradient, method="L-BFGS-B", options=options).x
        for _ in range(5):
            better = found - self._newton_direction(found)
            if not self.loss(better) < self.loss(found):
                break
            found = better
        solution: Vector = found.astype(self.targets.dtype)
        return solution

    def _newton_direction(self, point: Vector) -> Vector:
        from scipy.special import expit

        margins = self.features @ point
        curvature = expit(margins) * expit(-margins) * self.shards.weights
        features = self.features if isinstance(self.features, np.ndarray) else self.features.toarray()
        hessian = features.T @ (features * curvature[:, None]) + self.l2 * np.eye(self.dimension)
        direction: Vector = np.linalg.lstsq(hessian, self.full_gradient(point), rcond=None)[0]
        return direction

    def _with_shards(self, shards: Shards) -> LogisticRegression:
        copy = LogisticRegression(self.features, self.targets, self.batch_size, self.l2)
        copy.shards = shards
        return copy


def signs_of(labels: Any) -> Any:
    """Two different labels as −1 and +1, the larger one as +1."""
    try:
        values = np.asarray(labels, dtype=np.float64)
    except (ValueError, TypeError):
        raise ValueError("labels must be numbers: for names, pass labels == 'the name of one class'") from None
    classes = np.unique(values)
    if len(classes) != 2 or not np.isfinite(classes).all():
        shown = ", ".join(f"{value:g}" for value in classes[:5])
        raise ValueError(f"labels must have exactly two values, got {len(classes)}: {shown}")
    return np.where(values == classes[1], 1.0, -1.0)
