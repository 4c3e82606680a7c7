"""Logistic regression, with a convex and with a non-convex regulariser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from nowait.core import checks
from nowait.core.types import Floats, Vector
from nowait.numerics.compiled import kernels
from nowait.problems.libsvm import read_libsvm
from nowait.problems.linear_model import LinearModel
from nowait.problems.matrix import full_kernels, has_one_sided_column
from nowait.problems.rows import scale_rows
from nowait.theory import Constants

MOST_NEWTON = 2_000
"""Up to this many features the minimum is computed by Newton's method."""
MOST_STEPS, SHORTEST = 200, 1e-10
"""Newton steps at most, and the smallest share of one that is tried."""
SMALL, LONG, TINY = 1e-9, 1e-3, 1e-6
"""A step longer than 1e-3 of its point, where the gradient is below 1e-9 of the first: there is no minimum.

Below 1e-15 of the first gradient, Newton's method ends."""
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
        """Newton's method, or L-BFGS if there are many features; warn if the loss has no minimiser."""
        found, runs_away = (self.descend(), False) if self.dimension > MOST_NEWTON else self._newton()
        if self.l2 == 0 and (runs_away or has_one_sided_column(self.features, self.targets) or self._separates(found)):
            self.warn_of_no_minimiser()
        solution: Vector = found.astype(self.targets.dtype)
        return solution

    def _separates(self, point: Floats) -> bool:
        return bool((self.targets * (self.features @ point) > 0).all())

    def _newton(self) -> tuple[Floats, bool]:
        """Return where Newton's method ends, started at zero, and True if it moved on with a vanishing gradient.

        Near a minimum, steps become short as soon as the gradient is small. Along a direction without a minimum the
        loss decreases like exp(−t), and every step is about as long as the one before.
        """
        found, runs_away = np.zeros(self.dimension), False
        loss, gradient = self.loss(found), self.full_gradient(found)
        small = SMALL * float(np.linalg.norm(gradient))
        for _ in range(MOST_STEPS):
            step = self._newton_direction(found, gradient)
            if np.linalg.norm(gradient) <= small and np.linalg.norm(step) > LONG * np.linalg.norm(found):
                runs_away = True
            better, lower = self._along(found, step, loss)
            if not lower < loss or np.linalg.norm(gradient) <= TINY * small:
                break
            found, loss, gradient = better, lower, self.full_gradient(better)
        return found, runs_away

    def _along(self, point: Floats, step: Floats, loss: float) -> tuple[Floats, float]:
        """Return a point with a lower loss along a step, and its loss; the step is halved as long as needed."""
        share = 1.0
        while share > SHORTEST:
            ahead = point - share * step
            lower = self.loss(ahead)
            if lower < loss:
                return ahead, lower
            share /= 2
        return point, loss

    def _newton_direction(self, point: Floats, gradient: Vector) -> Floats:
        from scipy.special import expit

        margins = self.features @ point
        curvature = expit(margins) * expit(-margins) * self.shards.weights
        product = self.features.T @ scale_rows(self.features, curvature)
        hessian = np.asarray(product.todense() if hasattr(product, "todense") else product, dtype=np.float64)
        hessian += self.l2 * np.eye(self.dimension)
        direction: Floats = np.linalg.lstsq(hessian, gradient, rcond=None)[0].astype(np.float64)
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
    checks.unmasked(labels, "labels")
    try:
        values = np.asarray(labels, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise ValueError("labels must be numbers: for names, pass labels == 'the name of one class'") from None
    classes = np.unique(values)
    if len(classes) != 2 or not np.isfinite(classes).all():
        shown = ", ".join(f"{value:g}" for value in classes[:5])
        raise ValueError(f"labels must have exactly two values, got {len(classes)}: {shown}")
    return np.where(values == classes[1], 1.0, -1.0)
