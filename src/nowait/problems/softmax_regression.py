"""Softmax regression, for any number of classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import Layout, Sample, checks
from nowait.core.types import Floats, Integers, Vector
from nowait.problems.libsvm import read_libsvm
from nowait.problems.matrix import full_kernels, has_one_sided_column, margins_of, sums_of
from nowait.problems.rows import RowModel
from nowait.theory import Constants


@final
class SoftmaxRegression(RowModel):
    """F(X) = mean of −ln softmax(a_i·X)[b_i] + l2/2·‖X‖², dense or sparse, for any number of classes.

    ``features`` is a matrix, dense or sparse, with a row a_i for every sample; ``labels`` are the b_i. A gradient uses
    ``batch_size`` random rows.

    X has one row per feature and one column per class; params are its entries, row by row. Labels are numbers or
    names; the classes are their distinct values in ascending order.

    >>> problem = SoftmaxRegression([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 2])
    >>> problem.dimension, round(problem.loss(problem.initial()), 6)
    (6, 1.098612)
    """

    def __init__(self, features: Any, labels: Any, batch_size: int = 1, l2: float = 0.0) -> None:
        self.classes, numbers = _classes(labels)
        super().__init__(features, numbers, batch_size, l2)
        if len(self.classes) < 2:
            raise ValueError(f"labels must have at least two values, got {len(self.classes)}")
        self._numbers = numbers

    @classmethod
    def from_libsvm(cls, path: str | Path, batch_size: int = 1, l2: float = 0.0, dimension: int | None = None) -> Self:
        """Read a LIBSVM file (plain, .gz, .bz2 or .xz). ``dimension`` widens it to match another file."""
        features, labels = read_libsvm(path, dimension)
        return cls(features, labels, batch_size=batch_size, l2=l2)

    @property
    def dimension(self) -> int:
        """The number of features times the number of classes."""
        return int(self.features.shape[1]) * len(self.classes)

    @property
    def layout(self) -> Layout:
        """Params are one matrix, for updates such as ``nw.Muon``."""
        return Layout.of({"weight": (int(self.features.shape[1]), len(self.classes))})

    def loss(self, point: Vector) -> float:
        """Return F at a point."""
        losses = full_kernels().softmax_losses(self._scores(point), self._numbers)
        return self.shards.mean(losses) + self.penalty(point)

    def full_gradient(self, point: Vector) -> Vector:
        """Return ∇F at a point."""
        slopes = self._slopes(point) * self.shards.weights
        gradient: Vector = sums_of(self.features, slopes).T.ravel()
        self.add_penalty_gradient(point, gradient)
        return gradient.astype(point.dtype, copy=False)

    def gradient_of_worker(self, point: Vector, worker: int) -> Vector:
        """Return the gradient of the mean loss of a worker's rows, from these rows alone."""
        rows = self.shards.rows_of(worker)
        own = self.with_rows(rows)
        own._numbers = self._numbers[rows]
        return own.full_gradient(point)

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write the gradient of a random batch into ``out``."""
        rows = self.shards.draw(sample, self.batch_size)
        slopes = self._slopes(point, rows) / self.batch_size
        self._matrix(out)[:] = sums_of(self.features, slopes, rows).T
        self.add_penalty_gradient(point, out)

    def accuracy(self, point: Vector) -> float:
        """Return the fraction of rows whose class has the highest score."""
        best = np.argmax(self._scores(point), axis=0)
        return float((best == self._numbers).mean())

    def constants(self) -> Constants:
        """L ≤ λ_max/2 + l2, mu ≥ l2, and for every x: G = √2·max‖a_i‖ (if l2 = 0), sigma² ≤ 2·mean‖a_i‖²/batch.

        With several shards the mean is that of the shard where it is largest.
        """
        return replace(
            self.start_constants(),
            L=self.hessian_bound()[0] / 2 + self.l2,
            mu=self.l2,
            sigma=float(np.sqrt(2 * self.mean_squared_row_norm() / self.batch_size)),
            G=float(np.sqrt(2 * self.squared_row_norms().max())) if self.l2 == 0 else None,
            zeta=self.heterogeneity_bound(2**0.5),
        )

    def _order(self, by: str, seed: int) -> Integers:
        """Splits by label and by target are the same, because targets are class numbers."""
        return super()._order("sorted" if by == "label" else by, seed)

    def _solve(self) -> Vector:
        solution: Vector = self.descend().astype(self.targets.dtype)
        if self.l2 == 0 and (self.accuracy(solution) == 1.0 or self._has_one_sided_column()):
            self.warn_of_no_minimiser()
        return solution

    def _has_one_sided_column(self) -> bool:
        """Return True if a feature, such as a rare word, never occurs in one of the classes, or only in one."""
        others = (np.where(self._numbers == number, -1.0, 1.0) for number in range(len(self.classes)))
        return any(has_one_sided_column(self.features, signs) for signs in others)

    def _matrix(self, point: Vector) -> NDArray[Any]:
        """Return params as the matrix X."""
        return point.reshape(-1, len(self.classes))

    def _scores(self, point: Vector, rows: Integers | None = None) -> Floats:
        """Return a_i·X of these rows, or of all rows: one row per class."""
        return margins_of(self.features, self._matrix(point).T, rows)

    def _slopes(self, point: Vector, rows: Integers | None = None) -> Floats:
        """Return softmax(scores) − one-hot(class) of these rows, or of all rows: one row per class."""
        slopes = self._scores(point, rows)
        full_kernels().scores_to_slopes(slopes, self._numbers if rows is None else self._numbers[rows])
        return slopes


def _classes(labels: Any) -> tuple[NDArray[Any], Integers]:
    """Return the distinct labels in ascending order, and the index of the label of every row among them."""
    values = checks.array(labels, "labels")
    if values.dtype.kind not in "biufU":
        raise TypeError(f"labels must be all numbers or all names, got an array of {values.dtype}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("labels contain NaN or infinity: every row needs a class")
    classes, numbers = np.unique(values, return_inverse=True)
    return classes, numbers
