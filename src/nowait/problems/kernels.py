"""Compiled gradients of the built-in problems. Imported at the first gradient, because it imports numba.

Every gradient is computed in two passes: the slopes φ'(a_i·x, b_i) of the rows of a batch, then the sum of rows times
slopes. For a linear model the second pass needs the slopes only, not the point. Batches are processed in blocks of
eight rows: the point and the gradient are read from cache once per block, each row is used twice while it is cached,
and several rows are fetched from memory at a time. Dot products are summed in lanes, in the order defined by
``nowait.numerics.lanes``: four lanes for the rows of full blocks, sixteen for the remaining rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nowait.numerics.compiled import compiled, inlined
from nowait.numerics.elementary_kernels import exp
from nowait.numerics.lanes import dot, eight_dots
from nowait.numerics.random_kernels import below, child, normal, normals_key
from nowait.problems.compiled_data import DENSE, QUADRATIC

FIRST = np.int64(0)
"""A typed zero: for a literal 0 as an argument numba would compile one more version of the called function."""
LEAST_SQUARES = 0
LOGISTIC = 1
ABSOLUTE = 2
HINGE = 3


@compiled
def slope(model: int, margin: Any, target: Any) -> Any:
    """The derivative of the loss of a row with respect to its margin."""
    if model == LEAST_SQUARES:
        return margin - target
    if model == ABSOLUTE:
        return np.sign(margin - target)
    if model == HINGE:
        return -target if target * margin < 1.0 else 0.0
    return -target / (1.0 + exp(target * margin))


@compiled
def draw(key: Any, limit: Any, size: int) -> Any:
    """Return ``Sample.indices(limit, size)`` for the sample with this key; ``limit`` must be below 2**32."""
    rows = np.empty(size, np.int64)
    for i in range(size):
        rows[i] = below(child(key, i), limit)
    return rows


# Dense rows


@compiled
def margins_of_eight(features: Any, rows: Any, i: int, point: Any, margins: Any) -> None:
    """``margins[i:i + 8]`` = the margins of eight rows of the batch."""
    a, b, c, d = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
    e, f, g, h = rows[i + 4], rows[i + 5], rows[i + 6], rows[i + 7]
    dots = eight_dots(features, (a, b, c, d, e, f, g, h), point)
    for k in range(8):
        margins[i + k] = dots[k]


@compiled
def add_eight(features: Any, rows: Any, i: int, slopes: Any, total: Any) -> None:
    """``total`` += eight rows of the batch times their slopes."""
    a, b, c, d = features[rows[i]], features[rows[i + 1]], features[rows[i + 2]], features[rows[i + 3]]
    e, f, g, h = features[rows[i + 4]], features[rows[i + 5]], features[rows[i + 6]], features[rows[i + 7]]
    s0, s1, s2, s3 = slopes[i], slopes[i + 1], slopes[i + 2], slopes[i + 3]
    s4, s5, s6, s7 = slopes[i + 4], slopes[i + 5], slopes[i + 6], slopes[i + 7]
    for j in range(total.size):
        first = (s0 * a[j] + s1 * b[j]) + (s2 * c[j] + s3 * d[j])
        total[j] += first + ((s4 * e[j] + s5 * f[j]) + (s6 * g[j] + s7 * h[j]))


@compiled
def slopes_from(model: int, features: Any, targets: Any, rows: Any, i: int, point: Any, slopes: Any) -> int:
    """Compute the slopes of the eight rows from index i on, or of one row if fewer are left; return the next index."""
    if i + 8 > rows.size:
        slopes[i] = slope(model, dot(features[rows[i]], point), float(targets[rows[i]]))
        return i + 1
    margins_of_eight(features, rows, i, point, slopes)
    for k in range(i, i + 8):
        slopes[k] = slope(model, slopes[k], float(targets[rows[k]]))
    return i + 8


@compiled
def add_from(features: Any, rows: Any, i: int, slopes: Any, total: Any) -> int:
    """Add the rows of the matching ``slopes_from`` call times their slopes; return the next index."""
    if i + 8 > rows.size:
        row = features[rows[i]]
        for j in range(total.size):
            total[j] += slopes[i] * row[j]
        return i + 1
    add_eight(features, rows, i, slopes, total)
    return i + 8


@compiled
def row_gradient(model: int, features: Any, targets: Any, row: int, point: Any, out: Any) -> None:
    """``out`` = the gradient of one row's loss."""
    vector = features[row]
    scale = slope(model, dot(vector, point), float(targets[row]))
    for j in range(vector.size):
        out[j] = scale * vector[j]


@compiled
def batch_gradient(model: int, features: Any, targets: Any, rows: Any, point: Any, out: Any) -> None:
    """``out`` = the mean gradient of some rows."""
    total = np.zeros(point.size)
    slopes = np.empty(rows.size)
    i = FIRST
    while i < rows.size:
        after = slopes_from(model, features, targets, rows, i, point, slopes)
        add_from(features, rows, i, slopes, total)
        i = after
    for j in range(point.size):
        out[j] = total[j] / rows.size


# Sparse rows


@compiled
def sparse_margin(values: Any, columns: Any, starts: Any, row: int, point: Any) -> Any:
    """a·x of a sparse row."""
    margin = 0.0
    for place in range(starts[row], starts[row + 1]):
        margin += float(values[place]) * float(point[columns[place]])
    return margin


@compiled
def sparse_gradient(
    model: int, values: Any, columns: Any, starts: Any, targets: Any, rows: Any, point: Any, out: Any
) -> None:
    """``out`` = the mean gradient of some rows."""
    for j in range(out.size):
        out[j] = 0.0
    for i in range(rows.size):
        row = rows[i]
        scale = slope(model, sparse_margin(values, columns, starts, row, point), float(targets[row])) / rows.size
        for place in range(starts[row], starts[row + 1]):
            out[columns[place]] += scale * values[place]


# The noisy quadratic


@compiled
def quadratic_gradient(
    eigenvalues: Any, solution: Any, shift: Any, noise: float, key: Any, point: Any, out: Any
) -> None:
    """``out`` = λ·(x − x*) + shift + noise·normals; an empty shift counts as zero."""
    for j in range(point.size):
        out[j] = eigenvalues[j] * (point[j] - solution[j])
    if shift.size:
        for j in range(point.size):
            out[j] += shift[j]
    if noise > 0.0:
        draws = normals_key(key)
        for j in range(point.size):
            out[j] += noise * normal(child(draws, 2 * j), child(draws, 2 * j + 1))


# For compiled simulations, which keep the points of several runs in the rows of a matrix


@inlined
def draw_row(order: Any, starts: Any, key: Any, worker: int, number: int) -> Any:
    """Row ``number`` of the batch of the sample with this key; ``order`` and ``starts`` are those of ``Shards``."""
    shard = worker % (starts.size - 1)
    place = starts[shard] + below(child(key, number), starts[shard + 1] - starts[shard])
    return order[place] if order.size else place


@compiled
def subtract_row(features: Any, row: int, slope: float, stepsize: float, points: Any, run: int) -> None:
    """``points[run] -= stepsize * (slope * features[row])``."""
    for j in range(points.shape[1]):
        points[run, j] -= stepsize * (slope * features[row, j])


@compiled
def subtract_sparse_row(
    values: Any, columns: Any, starts: Any, row: int, slope: float, stepsize: float, points: Any, run: int
) -> None:
    """``points[run] -= stepsize * (slope * row)`` for a sparse row."""
    for place in range(starts[row], starts[row + 1]):
        points[run, columns[place]] -= stepsize * (slope * values[place])


@compiled
def fill_slopes(data: Any, rows: Any, point: Any, slopes: Any) -> None:
    """``slopes`` = the slopes of the rows of a batch at a point."""
    i = FIRST
    while i < rows.size:
        if data.kind == DENSE:
            i = slopes_from(data.model, data.features, data.targets, rows, i, point, slopes)
        else:
            margin = sparse_margin(data.values, data.columns, data.row_starts, rows[i], point)
            slopes[i] = slope(data.model, margin, float(data.targets[rows[i]]))
            i += 1


@compiled
def gradient_of_slopes(data: Any, rows: Any, slopes: Any, out: Any) -> None:
    """``out`` = the mean gradient of a batch whose rows have these slopes."""
    for j in range(out.size):
        out[j] = 0.0
    i = FIRST
    while i < rows.size:
        if data.kind == DENSE:
            i = add_from(data.features, rows, i, slopes, out)
        else:
            scale = slopes[i] / rows.size
            for place in range(data.row_starts[rows[i]], data.row_starts[rows[i] + 1]):
                out[data.columns[place]] += scale * data.values[place]
            i += 1
    if data.kind == DENSE:
        for j in range(out.size):
            out[j] = out[j] / rows.size


@compiled
def fill_gradient(data: Any, rows: Any, key: Any, worker: int, point: Any, out: Any) -> None:
    """``out`` = the gradient of a ticket; ``rows`` is its batch."""
    if data.kind == QUADRATIC:
        workers = data.shifts.shape[0]
        shift = data.shifts[worker % workers] if workers else data.solution[:0]
        quadratic_gradient(data.eigenvalues, data.solution, shift, data.noise, key, point, out)
        return
    if data.kind != DENSE:
        sparse_gradient(data.model, data.values, data.columns, data.row_starts, data.targets, rows, point, out)
    elif rows.size == 1:
        row_gradient(data.model, data.features, data.targets, rows[0], point, out)
    else:
        batch_gradient(data.model, data.features, data.targets, rows, point, out)
    if data.l2 > 0.0:
        strength = np.empty(1, point.dtype)
        strength[0] = data.l2
        for j in range(point.size):
            out[j] += strength[0] * point[j]
