"""The base class of problems over rows of data: batches, shards, regularisers, minima."""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nowait.core import Sample, checks
from nowait.core.randomness import checked_seed
from nowait.core.types import Floats, Integers, Vector
from nowait.numerics.compiled import kernels
from nowait.problems.matrix import squared_norms_of
from nowait.problems.shards import SPLITS, Shards
from nowait.theory import Constants

logger = logging.getLogger("nowait")


class RowModel(ABC):
    """F(x) = mean over the rows of their losses, plus a regulariser: l2/2·‖x‖² unless a model defines another.

    ``features`` is a matrix, dense or sparse, with a row a_i for every sample; ``targets`` has a number b_i for each.
    A gradient uses ``batch_size`` rows, drawn with replacement from all rows, or after ``split`` from the worker's own
    shard; F is then the mean over the shards of each shard's mean.
    """

    def __init__(self, features: Any, targets: Any, batch_size: int, l2: float) -> None:
        self.features, self.targets = _checked_data(features, targets)
        self.batch_size = checks.at_least(1, batch_size, "batch_size", "a gradient needs at least one row")
        self.l2 = checks.not_negative(l2, "l2", "it weighs ‖x‖²/2")
        self.shards = Shards.all_rows(len(self.targets))
        self._samples: int = self.features.shape[0]
        self._dense = isinstance(self.features, np.ndarray)
        self._minimum: tuple[Vector, float] | None = None

    # The problem, as engines use it

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number of params."""

    @property
    def num_shards(self) -> int:
        """The number of shards that the rows are split into; 1 if every worker draws from all rows."""
        return self.shards.count

    @property
    def samples(self) -> int:
        """The number of rows."""
        return self._samples

    def initial(self) -> Vector:
        """Return zeros, in the dtype of the data."""
        return np.zeros(self.dimension, dtype=self.targets.dtype)

    @abstractmethod
    def loss(self, point: Vector) -> float:
        """Return F at a point."""

    @abstractmethod
    def full_gradient(self, point: Vector) -> Vector:
        """Return ∇F at a point."""

    def gradient_of_worker(self, point: Vector, worker: int) -> Vector:
        """Return the gradient of the mean loss of a worker's rows."""
        own = copy.copy(self)
        own.shards = self.shards.only(worker)
        return own.full_gradient(point)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return the gradient of a random batch."""
        point = np.ascontiguousarray(point, dtype=self.targets.dtype)
        out = np.empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    @abstractmethod
    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write the gradient of a random batch into ``out``."""

    # The regulariser

    def penalty(self, point: Vector) -> float:
        """Return the regulariser at a point, l2/2·‖x‖²."""
        return 0.5 * self.l2 * float(kernels().squared_norm(point)) if self.l2 else 0.0

    def add_penalty_gradient(self, point: Vector, out: Vector) -> None:
        """Add the gradient of the regulariser to ``out``."""
        if self.l2:
            out += self.l2 * point

    # Minimum, constants and splits

    def minimum(self) -> tuple[Vector, float]:
        """Return x* and F*; the first call computes them."""
        if self._minimum is None:
            solution = self._solve()
            self._minimum = (solution, self.loss(solution))
        return self._minimum

    @abstractmethod
    def _solve(self) -> Vector:
        """Compute a minimiser."""

    def descend(self) -> Floats:
        """Return the point where L-BFGS ends, started at zero."""
        from scipy.optimize import minimize

        options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-10}
        start = np.zeros(self.dimension)
        found: Floats = minimize(self.loss, start, jac=self.full_gradient, method="L-BFGS-B", options=options).x
        return found

    def warn_of_no_minimiser(self) -> None:
        """Log a warning: rows that can be separated have no minimiser without a regulariser."""
        logger.warning(
            "%r has no minimiser: all or some of its rows can be separated, so the loss decreases for ever along a "
            "direction. B and F* are those of a point far out; add l2= for a minimum that exists",
            self,
        )

    def with_rows(self, rows: Integers) -> Self:
        """Return the problem with these rows only, for models that keep nothing else about their rows."""
        other = copy.copy(self)
        other.features, other.targets, other._samples = self.features[rows], self.targets[rows], len(rows)
        other.shards, other._minimum = Shards.all_rows(len(rows)), None
        return other

    def split(self, workers: int, by: str = "iid", seed: int = 0) -> Self:
        """Return the problem with separate rows for each worker.

        ``by="iid"`` assigns shuffled rows, ``"label"`` sorts them by class first, ``"sorted"`` by target. Worker w
        takes shard w modulo ``workers``.
        """
        checks.at_least(1, workers, "workers", "every shard belongs to a worker")
        checks.one_of(by, SPLITS, "by")
        if workers > self.samples:
            raise ValueError(f"cannot split {self.samples} rows among {workers} workers: some would have none")
        other = copy.copy(self)
        other.shards = Shards.split(self._order(by, seed), workers)
        other._minimum = None
        return other

    def _order(self, by: str, seed: int) -> Integers:
        shuffled = np.random.default_rng(checked_seed(seed)).permutation(self.samples)
        if by == "iid":
            return shuffled
        if by == "label" and len(np.unique(self.targets)) > max(2, self.samples // 2):
            raise ValueError("by='label' needs classes, but the targets are numbers: use by='sorted'")
        return shuffled[np.argsort(self.targets[shuffled], kind="stable")]

    def hessian_bound(self) -> tuple[float, float]:
        """Return the largest and smallest eigenvalue of Σ w_i·a_i·a_iᵀ, where w_i are the weights of the rows in F."""
        weighted = self.features.T @ scale_rows(self.features, self.shards.weights)
        gram: Floats = np.asarray(weighted.todense() if hasattr(weighted, "todense") else weighted)
        eigenvalues = np.linalg.eigvalsh(gram.astype(np.float64))
        return float(eigenvalues[-1]), max(0.0, float(eigenvalues[0]))

    def squared_row_norms(self) -> Floats:
        """Return ‖a_i‖² of every row."""
        return squared_norms_of(self.features)

    def mean_squared_row_norm(self) -> float:
        """Return the mean of ‖a_i‖²; with several shards, the mean of the shard where it is largest."""
        norms = self.squared_row_norms()
        return float(max(norms[self.shards.rows_of(shard)].mean() for shard in range(self.shards.count)))

    def heterogeneity_bound(self, steepest: float) -> float:
        """Return an upper bound of ‖∇F_m − ∇F‖, from row norms, for losses whose slopes are at most ``steepest``."""
        if self.shards.count == 1:
            return 0.0
        norms = np.sqrt(self.squared_row_norms())
        own = max(float(norms[self.shards.rows_of(shard)].mean()) for shard in range(self.shards.count))
        return steepest * (own + float(norms @ self.shards.weights))

    def start_constants(self) -> Constants:
        """Return B, Delta and zeta, which depend only on x_0, the minimum and the split."""
        solution, lowest = self.minimum()
        return Constants(
            B=float(np.linalg.norm(self.initial() - solution)),
            Delta=max(0.0, self.loss(self.initial()) - lowest),
            zeta=0.0 if self.shards.count == 1 else None,
        )

    def __repr__(self) -> str:
        kind = "dense" if self._dense else "sparse"
        shards = f", {self.shards.count} shards" if self.shards.count > 1 else ""
        return (
            f"{type(self).__name__}({self.samples} {kind} rows, dimension {self.dimension}, "
            f"batch_size={self.batch_size}, {self._described_penalty()}{shards})"
        )

    def _described_penalty(self) -> str:
        return f"l2={self.l2}"


def scale_rows(features: Any, weights: Floats) -> Any:
    """Return a dense or sparse matrix with its rows multiplied by weights."""
    if isinstance(features, np.ndarray):
        return features * weights[:, None]
    return features.multiply(weights[:, None]).tocsr()


def _checked_data(features: Any, targets: Any) -> tuple[Any, NDArray[np.floating[Any]]]:
    features = _checked_features(features)
    dtype = features.dtype
    targets = checks.array(targets, "targets")
    if targets.ndim != 1 or len(targets) != features.shape[0]:
        raise ValueError(f"targets must be one number per row: got shape {targets.shape} for {features.shape[0]} rows")
    targets = targets.astype(dtype)
    if not np.isfinite(targets).all():
        raise ValueError(f"targets contain NaN or infinity, first in row {int(np.argmin(np.isfinite(targets)))}")
    return features, targets


def _checked_features(features: Any) -> Any:
    import scipy.sparse

    if scipy.sparse.issparse(features):
        features = scipy.sparse.csr_array(features)
        if not features.has_canonical_format:
            features = features.copy()
            features.sum_duplicates()
        features = _with_short_indices(features)
        values = features.data
    else:
        features = values = _as_matrix(checks.unmasked(features, "features"))
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"features must be a matrix with rows and columns, got shape {features.shape}")
    if values.dtype not in (np.float32, np.float64):
        features = features.astype(np.float64)
    if not np.isfinite(values.astype(np.float64, copy=False)).all():
        raise ValueError("features contain NaN or infinity: gradients would not be finite")
    return features


def _with_short_indices(features: Any) -> Any:
    """Return a sparse matrix with int32 indices if they fit: kernels are compiled for each type that occurs."""
    if features.indices.dtype == np.int32 or max(features.nnz, *features.shape) > np.iinfo(np.int32).max:
        return features
    indices, starts = features.indices.astype(np.int32), features.indptr.astype(np.int32)
    return type(features)((features.data, indices, starts), shape=features.shape)


def _as_matrix(features: Any) -> NDArray[Any]:
    try:
        return np.ascontiguousarray(features)
    except ValueError:
        raise ValueError("features must be a matrix: all rows need the same number of entries") from None
