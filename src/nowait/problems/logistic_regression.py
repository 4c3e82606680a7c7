"""Logistic regression, with a convex and with a non-convex regulariser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from nowait.core import checks
from nowait.core.types import Vector
from nowait.numerics.compiled import kernels
from nowait.problems.libsvm import read_libsvm
from nowait.problems.linear_model import LinearModel
from nowait.problems.matrix import full_kernels
from nowait.theory import Constants

STEEPEST = 3 * 3**0.5 / 8
"""The largest derivative of t²/(1 + t²), at t = 1/√3."""


class LogisticModel(LinearModel):
    """The mean of ln(1 + exp(−b_i·a_i·x)), plus a regulariser."""

    model = 1
    has_compiled_losses = True

    def losses(self, margins: Any, targets: Any) -> Any:
        """ln(1 + exp(−target·margin)), without overflow."""
        return full_kernels().logistic_losses(margins, targets)

    def slopes(self, margins: Any, targets: Any) -> Any:
        """−target/(1 + exp(target·margin))."""
        return full_kernels().logistic_slopes(margins, targets)

    def unregularised_constants(self) -> Constants:
        """L ≤ λ_max/4, and for every x: G = max‖a_i‖, sigma² ≤ mean‖a_i‖²/batch; zeta is bounded by norms of rows."""
        return replace(
            self.start_constants(),
            L=self.hessian_bound()[0] / 4,
            G=float(np.sqrt(self.squared_row_norms().max())),
            sigma=float(np.sqrt(self.mean_squared_row_norm() / self.batch_size)),
            zeta=self.heterogeneity_bound(1.0),
        )


@final
class LogisticRegression(LogisticModel):
    """F(x) = mean of ln(1 + exp(−b_i·a_i·x)) + l2/2·‖x‖², dense or sparse.

    ``features`` is a matrix, dense or sparse, with a row a_i for every sample; ``labels`` are the b_i. A gradient uses
    ``batch_size`` random rows.
    Labels are two different values; the larger one counts as +1.

    >>> problem = LogisticRegression([[1.0, 0.0], [0.0, 2.0]], [0, 1], l2=0.1)
    >>> round(problem.loss(problem.initial()), 6)
    0.693147
    """

    def __init__(self, features: Any, labels: Any, batch_size: int = 1, l2: float = 0.0) -> None:
        super().__init__(features, signs_of(labels), batch_size, l2)

    @classmethod
    def from_libsvm(cls, path: str | Path, batch_size: int = 1, l2: float = 0.0, dimension: int | None = None) -> Self:
        """Read a LIBSVM file (plain, .gz, .bz2 or .xz). ``dimension`` widens it to match another file."""
        features, labels = read_libsvm(path, dimension)
        return cls(features, labels, batch_size=batch_size, l2=l2)

    def constants(self) -> Constants:
        """L ≤ λ_max/4 + l2, mu ≥ l2, and for every x: G = max‖a_i‖ (if l2 = 0), sigma² ≤ mean‖a_i‖²/batch.

        With several shards the mean is that of the shard where it is largest.
        """
        bare = self.unregularised_constants()
        return replace(bare, L=(bare.L or 0.0) + self.l2, mu=self.l2, G=bare.G if self.l2 == 0 else None)

    def _solve(self) -> Vector:
        """L-BFGS, then Newton steps while they lower the loss, for full precision where the Hessian is regular."""
        found = self.descend()
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


@final
class NonconvexLogisticRegression(LogisticModel):
    """F(x) = mean of ln(1 + exp(−b_i·a_i·x)) + strength·Σ x_j²/(1 + x_j²), dense or sparse.

    ``features`` is a matrix, dense or sparse, with a row a_i for every sample; ``labels`` are the b_i. A gradient uses
    ``batch_size`` random rows.

    The regulariser is bounded and makes F non-convex: a common test problem for non-convex theorems. Labels are as in
    ``LogisticRegression``. ``minimum`` returns the stationary point that L-BFGS finds from zero, which need not be the
    global minimum.
    """

    def __init__(self, features: Any, labels: Any, batch_size: int = 1, strength: float = 0.1) -> None:
        super().__init__(features, signs_of(labels), batch_size, l2=0.0)
        self.strength = checks.not_negative(strength, "strength", "it weighs the regulariser")

    def penalty(self, point: Vector) -> float:
        """strength·Σ x_j²/(1 + x_j²)."""
        return float(self.strength * kernels().sum_of(1 - 1 / (1 + point * point)))

    def add_penalty_gradient(self, point: Vector, out: Vector) -> None:
        """Add 2·strength·x_j/(1 + x_j²)² to ``out``."""
        out += 2 * self.strength * point / (1 + point * point) ** 2

    def constants(self) -> Constants:
        """L ≤ λ_max/4 + 2·strength, G = max‖a_i‖ + strength·√d·(the largest slope of t²/(1 + t²)), Delta = F(x_0).

        Delta is a bound, because F ≥ 0. sigma is that of the data term; mu and B are not known.
        """
        bare = self.unregularised_constants()
        return replace(
            bare,
            L=(bare.L or 0.0) + 2 * self.strength,
            G=(bare.G or 0.0) + self.strength * STEEPEST * float(np.sqrt(self.dimension)),
            B=None,
            Delta=self.loss(self.initial()),
        )

    def _solve(self) -> Vector:
        solution: Vector = self.descend().astype(self.targets.dtype)
        return solution

    def _described_penalty(self) -> str:
        return f"strength={self.strength}"


def signs_of(labels: Any) -> Any:
    """Return labels with two different values as −1 and +1; the larger value becomes +1."""
    try:
        values = np.asarray(labels, dtype=np.float64)
    except (ValueError, TypeError):
        raise ValueError("labels must be numbers: for names, pass labels == 'the name of one class'") from None
    classes = np.unique(values)
    if len(classes) != 2 or not np.isfinite(classes).all():
        shown = ", ".join(f"{value:g}" for value in classes[:5])
        raise ValueError(f"labels must have exactly two values, got {len(classes)}: {shown}")
    return np.where(values == classes[1], 1.0, -1.0)
