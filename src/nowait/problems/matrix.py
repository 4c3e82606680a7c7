"""Products of a matrix of data, dense or sparse, with vectors: the same bits on every processor."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from nowait.core.types import Floats, Integers


def margins_of(features: Any, points: Any, rows: Integers | None = None) -> Floats:
    """The products of rows (all of them unless given) with points: a row per point, a column per row of the data."""
    rows = np.arange(features.shape[0]) if rows is None else rows
    margins = np.empty((len(points), len(rows)))
    points = np.array(points, order="C")  # a copy: kernels for read-only arrays would be compiled once more
    if isinstance(features, np.ndarray):
        full_kernels().dense_margins(features, rows, points, margins)
    else:
        full_kernels().sparse_margins(features.data, features.indices, features.indptr, rows, points, margins)
    return margins


def sums_of(features: Any, slopes: Floats, rows: Integers | None = None) -> Floats:
    """The sums of rows (all of them unless given) times slopes: a row per row of ``slopes``."""
    rows = np.arange(features.shape[0]) if rows is None else rows
    sums = np.zeros((len(slopes), features.shape[1]))
    if isinstance(features, np.ndarray):
        full_kernels().dense_sums(features, rows, slopes, sums)
    else:
        full_kernels().sparse_sums(features.data, features.indices, features.indptr, rows, slopes, sums)
    return sums


def squared_norms_of(features: Any) -> Floats:
    """‖a_i‖² of every row."""
    if isinstance(features, np.ndarray):
        dense: Floats = full_kernels().dense_squared_norms(features)
        return dense
    sparse: Floats = full_kernels().sparse_squared_norms(features.data, features.indptr)
    return sparse


@cache
def full_kernels() -> Any:
    """The compiled code, loaded at its first use."""
    from nowait.problems import full_kernels as module

    return module
