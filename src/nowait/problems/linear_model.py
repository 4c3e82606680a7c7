"""The base class of linear models: a loss of the margins a_i·x, averaged over rows of data."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import Any

import numpy as np

from nowait.core import Sample, sampler
from nowait.core.schedule import speaks_for
from nowait.core.types import Floats, Vector
from nowait.problems.compiled_data import DENSE, NO_INTEGERS, NO_NUMBERS, SPARSE, ProblemData
from nowait.problems.matrix import full_kernels, margins_of, sums_of
from nowait.problems.rows import RowModel


class LinearModel(RowModel):
    """F(x) = mean of φ(a_i·x, b_i) over the rows, plus a regulariser. Arguments are those of ``RowModel``."""

    model: int
    """The loss φ in compiled gradients: one of the constants in ``nowait.problems.kernels``."""
    has_compiled_losses: bool
    """Set by classes whose ``losses`` compiled code computes too; a subclass with other losses does not inherit it."""

    def __init__(self, features: Any, targets: Any, batch_size: int, l2: float) -> None:
        super().__init__(features, targets, batch_size, l2)
        self._dimension: int = self.features.shape[1]

    @property
    def dimension(self) -> int:
        """The number of features."""
        return self._dimension

    def loss(self, point: Vector) -> float:
        """Return F at a point."""
        return float(self.losses_at(point[None])[0])

    def full_gradient(self, point: Vector) -> Vector:
        """Return ∇F at a point."""
        slopes = self.slopes(margins_of(self.features, point[None])[0], self.targets) * self.shards.weights
        gradient: Vector = sums_of(self.features, slopes[None])[0]
        self.add_penalty_gradient(point, gradient)
        return gradient.astype(point.dtype, copy=False)

    def gradient_of_worker(self, point: Vector, worker: int) -> Vector:
        """Return the gradient of the mean loss of a worker's rows, from these rows alone."""
        return self.with_rows(self.shards.rows_of(worker)).full_gradient(point)

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write the gradient of a random batch into ``out``."""
        if point.size != self._dimension or out.size != self._dimension:  # the kernels do not check
            raise ValueError(f"point and out must have {self._dimension} entries, got {point.size} and {out.size}")
        if not self._dense:
            rows, matrix = self.shards.draw(sample, self.batch_size, _kernels().draw), self.features
            _kernels().sparse_gradient(
                self.model, matrix.data, matrix.indices, matrix.indptr, self.targets, rows, point, out
            )
        elif self.batch_size == 1:
            row = sample.index(self._samples) if self.shards.order is None else self.shards.draw_one(sample)
            _kernels().row_gradient(self.model, self.features, self.targets, row, point, out)
        else:
            rows = self.shards.draw(sample, self.batch_size, _kernels().draw)
            _kernels().batch_gradient(self.model, self.features, self.targets, rows, point, out)
        self.add_penalty_gradient(point, out)

    def prepare(self) -> None:
        """Load the compiled gradient, so that forked workers need not."""
        point = self.initial()
        point.flags.writeable = False
        self.gradient_into(point, sampler(0).sample(0, 0), np.empty_like(point))

    def compiled_data(self) -> ProblemData:
        """Return the data for compiled simulations."""
        data = ProblemData(
            DENSE if self._dense else SPARSE,
            model=self.model,
            targets=self.targets,
            order=NO_INTEGERS if self.shards.order is None else self.shards.order,
            starts=self.shards.starts,
            batch=self.batch_size,
            l2=self.l2,
            norms=np.sqrt(self.squared_row_norms()),
        )
        matrix = self.features
        if self._dense:
            return data._replace(features=matrix, values=np.empty(0, matrix.dtype))
        empty = np.empty((0, 0), matrix.dtype)
        return data._replace(features=empty, values=matrix.data, columns=matrix.indices, row_starts=matrix.indptr)

    def losses_at(self, points: Any) -> Floats:
        """Return the loss of every row of ``points``, in one pass over the data."""
        means = self._mean_losses(margins_of(self.features, points))
        return np.array([mean + self.penalty(point) for mean, point in zip(means, points, strict=True)])

    def _mean_losses(self, margins: Floats) -> Floats:
        """Return the mean of φ for every row of ``margins``."""
        if not speaks_for(type(self), "has_compiled_losses", ("losses",)):
            return np.array([self.shards.mean(self.losses(row, self.targets)) for row in margins])
        means = np.empty(len(margins))
        weights = NO_NUMBERS if self.shards.order is None else self.shards.weights
        full_kernels().mean_losses(self.model, margins, self.targets, weights, means)
        return means

    @abstractmethod
    def losses(self, margins: Any, targets: Any) -> Any:
        """Return φ, elementwise."""

    @abstractmethod
    def slopes(self, margins: Any, targets: Any) -> Any:
        """Return ∂φ/∂margin, elementwise."""


@cache
def _kernels() -> Any:
    from nowait.problems import kernels

    return kernels
