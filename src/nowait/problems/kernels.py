"""Compiled gradients of linear models, for dense data. Imported at the first gradient: it imports numba.

A batch is worked through in blocks of eight rows, so that the point and the gradient are read from cache once per
block, every row is used twice while it is there, and rows come from memory several at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nowait.core.compiled import compiled
from nowait.core.randomness import FIRST_FACTOR, GOLDEN, SECOND_FACTOR

LEAST_SQUARES = 0
LOGISTIC = 1
ABSOLUTE = 2
HINGE = 3


@compiled
def slope(model: int, margin: Any, target: Any) -> Any:
    """The derivative of a row's loss by its margin."""
    if model == LEAST_SQUARES:
        return margin - target
    if model == ABSOLUTE:
        return np.sign(margin - target)
    if model == HINGE:
        return -target if target * margin < 1.0 else 0.0
    return -target / (1.0 + math.exp(target * margin))


@compiled
def draw(key: Any, limit: Any, size: int) -> Any:
    """What ``Sample.indices(limit, size)`` of the sample with this key gives, for limits below 2**32."""
    rows = np.empty(size, np.int64)
    half, low_bits = np.uint64(32), np.uint64(0xFFFFFFFF)
    bits_to_come = key
    for i in range(size):
        bits_to_come += np.uint64(GOLDEN)
        bits = bits_to_come
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(FIRST_FACTOR)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(SECOND_FACTOR)
        bits ^= bits >> np.uint64(31)
        low = ((bits & low_bits) * limit) >> half
        rows[i] = ((bits >> half) * limit + low) >> half
    return rows


@compiled
def row_gradient(model: int, features: Any, targets: Any, row: int, point: Any, out: Any) -> None:
    """``out`` = the gradient of one row."""
    vector = features[row]
    m0 = m1 = m2 = m3 = 0.0
    blocked = vector.size - vector.size % 4
    for j in range(0, blocked, 4):
        m0 += vector[j] * point[j]
        m1 += vector[j + 1] * point[j + 1]
        m2 += vector[j + 2] * point[j + 2]
        m3 += vector[j + 3] * point[j + 3]
    for j in range(blocked, vector.size):
        m0 += vector[j] * point[j]
    scale = slope(model, (m0 + m1) + (m2 + m3), float(targets[row]))
    for j in range(vector.size):
        out[j] = scale * vector[j]


@compiled
def batch_gradient(model: int, features: Any, targets: Any, rows: Any, point: Any, out: Any) -> None:
    """``out`` = the mean gradient of some rows."""
    total = np.zeros(point.size)
    blocked = rows.size - rows.size % 8
    for i in range(0, blocked, 8):
        a, b, c, d = features[rows[i]], features[rows[i + 1]], features[rows[i + 2]], features[rows[i + 3]]
        e, f, g, h = features[rows[i + 4]], features[rows[i + 5]], features[rows[i + 6]], features[rows[i + 7]]
        m0 = m1 = m2 = m3 = m4 = m5 = m6 = m7 = 0.0
        for j in range(point.size):
            x = float(point[j])
            m0 += a[j] * x
            m1 += b[j] * x
            m2 += c[j] * x
            m3 += d[j] * x
            m4 += e[j] * x
            m5 += f[j] * x
            m6 += g[j] * x
            m7 += h[j] * x
        s0, s1 = slope(model, m0, float(targets[rows[i]])), slope(model, m1, float(targets[rows[i + 1]]))
        s2, s3 = slope(model, m2, float(targets[rows[i + 2]])), slope(model, m3, float(targets[rows[i + 3]]))
        s4, s5 = slope(model, m4, float(targets[rows[i + 4]])), slope(model, m5, float(targets[rows[i + 5]]))
        s6, s7 = slope(model, m6, float(targets[rows[i + 6]])), slope(model, m7, float(targets[rows[i + 7]]))
        for j in range(point.size):
            first = (s0 * a[j] + s1 * b[j]) + (s2 * c[j] + s3 * d[j])
            total[j] += first + ((s4 * e[j] + s5 * f[j]) + (s6 * g[j] + s7 * h[j]))
    for i in range(blocked, rows.size):
        a = features[rows[i]]
        m0 = 0.0
        for j in range(point.size):
            m0 += a[j] * float(point[j])
        s0 = slope(model, m0, float(targets[rows[i]]))
        for j in range(point.size):
            total[j] += s0 * a[j]
    for j in range(point.size):
        out[j] = total[j] / rows.size
