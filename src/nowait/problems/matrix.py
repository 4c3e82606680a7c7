"""Products of a dense or sparse data matrix with vectors, with the same bits on every processor."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from nowait.core.types import Floats, Integers


def margins_of(features: Any, points: Any, rows: Integers | None = None) -> Floats:
    """Return the dot products of points with rows (by default all): one row per point, one column per data row."""
    rows = np.arange(features.shape[0]) if rows is None else rows
    margins = np.empty((len(points), len(rows)))
    points = np.array(points, order="C")  # a copy: numba would compile the kernels again for read-only arrays
    if isinstance(features, np.ndarray):
        full_kernels().dense_margins(features, rows, points, margins)
    else:
        full_kernels().sparse_margins(features.data, features.indices, features.indptr, rows, points, margins)
    return margins


def sums_of(features: Any, slopes: Floats, rows: Integers | None = None) -> Floats:
    """Return the sums of rows (by default all) times slopes: one sum for each row of ``slopes``."""
    rows = np.arange(features.shape[0]) if rows is None else rows
    sums = np.zeros((len(slopes), features.shape[1]))
    if isinstance(features, np.ndarray):
        full_kernels().dense_sums(features, rows, slopes, sums)
    else:
        full_kernels().sparse_sums(features.data, features.indices, features.indptr, rows, slopes, sums)
    return sums


def squared_norms_of(features: Any) -> Floats:
    """Return ‖a_i‖² of every row."""
    if isinstance(features, np.ndarray):
        dense: Floats = full_kernels().dense_squared_norms(features)
        return dense
    sparse: Floats = full_kernels().sparse_squared_norms(features.data, features.indptr)
    return sparse


def has_one_sided_column(features: Any, signs: Any) -> bool:
    """Return True if a column times the signs of the rows is never negative, or never positive, but not all zero.

    The loss of a classifier then decreases for ever along that column's weight: it has no minimiser.
    """
    if isinstance(features, np.ndarray):
        products = features * np.asarray(signs)[:, None]
        above, below = (products > 0).any(axis=0), (products < 0).any(axis=0)
    else:
        products = features.data * np.repeat(signs, np.diff(features.indptr))
        above, below = (
            np.bincount(features.indices[side], minlength=features.shape[1]) > 0
            for side in (products > 0, products < 0)
        )
    return bool((above != below).any())


@cache
def full_kernels() -> Any:
    """Return the module ``nowait.problems.full_kernels``, imported at its first use."""
    from nowait.problems import full_kernels as module

    return module
