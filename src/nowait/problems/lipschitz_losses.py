"""Lipschitz, non-smooth losses, as in the paper's Theorem 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import numpy as np

from nowait.core.types import Floats, Vector
from nowait.problems.linear_model import LinearModel
from nowait.problems.logistic_regression import signs_of
from nowait.theory import Constants


@final
class AbsoluteLoss(LinearModel):
    """F(x) = mean of |a_i·x − b_i|, dense or sparse: regression that is robust to outliers.

    ``features`` is a matrix, dense or sparse, with a row a_i for every sample; ``targets`` are the b_i. A gradient uses
    ``batch_size`` random rows.

    >>> AbsoluteLoss([[1.0], [1.0], [1.0]], [0.0, 1.0, 50.0]).minimum()
    (array([1.]), 16.66...)
    """

    model = 2
    has_compiled_losses = True

    def __init__(self, features: Any, targets: Any, batch_size: int = 1) -> None:
        super().__init__(features, targets, batch_size, l2=0.0)

    def losses(self, margins: Any, targets: Any) -> Any:
        """Return |margin − target|."""
        return np.abs(margins - targets)

    def slopes(self, margins: Any, targets: Any) -> Any:
        """Return the sign of margin − target."""
        return np.sign(margins - targets)

    def constants(self) -> Constants:
        """Return G, B and Delta; the loss is not smooth, so it has no L."""
        return _lipschitz_constants(self)

    def _solve(self) -> Vector:
        """Minimise Σ w_i·t_i with −t_i ≤ a_i·x − b_i ≤ t_i."""
        bounds = np.concatenate([self.targets, -self.targets])
        return _linear_program(self, [self.features, -self.features], bounds)


@final
class Hinge(LinearModel):
    """F(x) = mean of max(0, 1 − b_i·a_i·x), dense or sparse: a support vector machine without a regulariser.

    ``features`` is a matrix, dense or sparse, with a row a_i for every sample; ``labels`` are the b_i. A gradient uses
    ``batch_size`` random rows.
    Labels are two different values; the larger one counts as +1.
    """

    model = 3
    has_compiled_losses = True

    def __init__(self, features: Any, labels: Any, batch_size: int = 1) -> None:
        super().__init__(features, signs_of(labels), batch_size, l2=0.0)

    def losses(self, margins: Any, targets: Any) -> Any:
        """Return max(0, 1 − target·margin)."""
        return np.maximum(0.0, 1.0 - targets * margins)

    def slopes(self, margins: Any, targets: Any) -> Any:
        """Return −target where target·margin < 1, else 0."""
        return np.where(targets * margins < 1.0, -targets, 0.0)

    def constants(self) -> Constants:
        """Return G, B and Delta; the loss is not smooth, so it has no L."""
        return _lipschitz_constants(self)

    def _solve(self) -> Vector:
        """Minimise Σ w_i·t_i with t_i ≥ 0 and t_i ≥ 1 − b_i·a_i·x."""
        import scipy.sparse

        signed = scipy.sparse.diags_array(self.targets) @ scipy.sparse.csr_array(self.features)
        return _linear_program(self, [-signed], -np.ones(self.samples))


def _linear_program(problem: LinearModel, blocks: list[Any], bounds: Floats) -> Vector:
    """Minimise Σ w_i·t_i over (x, t) with block·x − t ≤ bound for every block, t ≥ 0."""
    import scipy.optimize
    import scipy.sparse

    slack = -scipy.sparse.eye_array(problem.samples)
    rows = [[scipy.sparse.csr_array(block), slack] for block in blocks]
    found = scipy.optimize.linprog(
        np.concatenate([np.zeros(problem.dimension), problem.shards.weights]),
        A_ub=scipy.sparse.block_array(rows, format="csr"),
        b_ub=bounds,
        bounds=[(None, None)] * problem.dimension + [(0, None)] * problem.samples,
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"the minimum of {problem} was not found: {found.message}")
    solution: Vector = found.x[: problem.dimension].astype(problem.targets.dtype)
    return solution


def _lipschitz_constants(problem: AbsoluteLoss | Hinge) -> Constants:
    largest = float(np.sqrt(problem.squared_row_norms().max()))
    return replace(problem.start_constants(), mu=0.0, G=largest)
