"""Compiled losses and gradients over all rows of a problem. Imported at the first loss, because it imports numba.

Sums have a fixed order, as in ``nowait.problems.kernels``: margins are computed in blocks of eight rows, and the sum
over rows goes block by block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nowait.numerics.compiled import compiled, inlined
from nowait.numerics.elementary_kernels import exp, log, log1p_of_share
from nowait.numerics.lanes import dot, dot_of_rows, dots_of_four_and_two, total
from nowait.problems.kernels import ABSOLUTE, FIRST, HINGE, LEAST_SQUARES, add_from, margins_of_eight, sparse_margin


@compiled
def dense_margins(features: Any, rows: Any, points: Any, margins: Any) -> None:
    """``margins[p, i]`` = ``features[rows[i]]·points[p]``; a block of rows is read once for all points."""
    i = FIRST
    while i < rows.size:
        whole = i + 8 <= rows.size
        paired = points.shape[0] // 2 * 2 if whole else 0
        for p in range(0, paired, 2):
            margins_of_four_and_two(features, rows, i, points, p, margins)
            margins_of_four_and_two(features, rows, i + 4, points, p, margins)
        for p in range(paired, points.shape[0]):
            if whole:
                margins_of_eight(features, rows, i, points[p], margins[p])
            else:
                margins[p, i] = dot(features[rows[i]], points[p])
        i += 8 if whole else 1


@inlined
def margins_of_four_and_two(features: Any, rows: Any, i: int, points: Any, p: int, margins: Any) -> None:
    """The margins of the four rows from index i on, at points p and p + 1."""
    dots = dots_of_four_and_two(features, (rows[i], rows[i + 1], rows[i + 2], rows[i + 3]), points, p)
    for k in range(4):
        margins[p, i + k], margins[p + 1, i + k] = dots[2 * k], dots[2 * k + 1]


@compiled
def sparse_margins(values: Any, columns: Any, starts: Any, rows: Any, points: Any, margins: Any) -> None:
    """``margins[p, i]`` = ``features[rows[i]]·points[p]`` for sparse rows."""
    for i in range(rows.size):
        for p in range(points.shape[0]):
            margins[p, i] = sparse_margin(values, columns, starts, rows[i], points[p])


@compiled
def dense_sums(features: Any, rows: Any, slopes: Any, sums: Any) -> None:
    """``sums[p]`` += the sum over i of ``slopes[p, i]·features[rows[i]]``."""
    i = FIRST
    while i < rows.size:
        after = i
        for p in range(sums.shape[0]):
            after = add_from(features, rows, i, slopes[p], sums[p])
        i = after


@compiled
def sparse_sums(values: Any, columns: Any, starts: Any, rows: Any, slopes: Any, sums: Any) -> None:
    """``sums[p]`` += the sum over i of ``slopes[p, i]·features[rows[i]]`` for sparse rows."""
    for i in range(rows.size):
        for p in range(sums.shape[0]):
            for place in range(starts[rows[i]], starts[rows[i] + 1]):
                sums[p, columns[place]] += slopes[p, i] * values[place]


@compiled
def dense_squared_norms(features: Any) -> Any:
    """‖a_i‖² of every row, in float64."""
    norms = np.empty(features.shape[0])
    for row in range(norms.size):
        norms[row] = dot_of_rows(features, row, features, row)
    return norms


@compiled
def sparse_squared_norms(values: Any, starts: Any) -> Any:
    """‖a_i‖² of every sparse row, in float64."""
    norms = np.zeros(starts.size - 1)
    for row in range(norms.size):
        for place in range(starts[row], starts[row + 1]):
            norms[row] += float(values[place]) * float(values[place])
    return norms


@compiled
def mean_losses(model: int, margins: Any, targets: Any, weights: Any, means: Any) -> None:
    """``means[p]`` = Σ weights·φ over the rows with ``margins[p]``; the mean of φ if there are no weights.

    One call for all points: threads that evaluate losses wait for each other between calls.
    """
    losses = np.empty(targets.size)
    for p in range(means.size):
        fill_losses(model, margins[p], targets, losses)
        means[p] = dot(losses, weights) if weights.size else total(losses) / losses.size


@compiled
def fill_losses(model: int, margins: Any, targets: Any, losses: Any) -> None:
    """``losses`` = φ of every row, for the models in ``nowait.problems.kernels``."""
    if model == LEAST_SQUARES:
        for i in range(losses.size):
            difference = margins[i] - float(targets[i])
            losses[i] = 0.5 * (difference * difference)
    elif model == ABSOLUTE:
        for i in range(losses.size):
            losses[i] = abs(margins[i] - float(targets[i]))
    elif model == HINGE:
        for i in range(losses.size):
            z = float(targets[i]) * margins[i]
            losses[i] = 0.0 if z >= 1.0 else 1.0 - z
    else:
        fill_logistic_losses(margins, targets, losses)


@compiled
def fill_logistic_losses(margins: Any, targets: Any, losses: Any) -> None:
    """``losses`` = ln(1 + exp(−target·margin)) of every row, without overflow."""
    for i in range(losses.size):
        z = float(targets[i]) * float(margins[i])
        losses[i] = (0.0 if z > 0.0 else -z) + log1p_of_share(exp(-abs(z)))


@compiled
def logistic_losses(margins: Any, targets: Any) -> Any:
    """ln(1 + exp(−target·margin)) of every row, without overflow."""
    losses = np.empty(margins.size)
    fill_logistic_losses(margins, targets, losses)
    return losses


@compiled
def logistic_slopes(margins: Any, targets: Any) -> Any:
    """−target/(1 + exp(target·margin)) of every row."""
    slopes = np.empty(margins.size)
    for i in range(margins.size):
        slopes[i] = -float(targets[i]) / (1.0 + exp(float(targets[i]) * float(margins[i])))
    return slopes


@compiled
def softmax_losses(scores: Any, numbers: Any) -> Any:
    """−ln softmax(scores[:, i])[numbers[i]] of every row i; ``scores`` has one row per class."""
    losses = np.empty(scores.shape[1])
    for i in range(losses.size):
        highest = scores[:, i].max()
        total = 0.0
        for c in range(scores.shape[0]):
            total += exp(scores[c, i] - highest)
        losses[i] = (highest - scores[numbers[i], i]) + log(total)
    return losses


@compiled
def scores_to_slopes(scores: Any, numbers: Any) -> None:
    """Overwrite ``scores[:, i]`` by softmax(scores[:, i]) − one-hot(numbers[i]) for every row i."""
    for i in range(scores.shape[1]):
        highest = scores[:, i].max()
        total = 0.0
        for c in range(scores.shape[0]):
            scores[c, i] = exp(scores[c, i] - highest)
            total += scores[c, i]
        for c in range(scores.shape[0]):
            scores[c, i] = scores[c, i] / total
        scores[numbers[i], i] -= 1.0
