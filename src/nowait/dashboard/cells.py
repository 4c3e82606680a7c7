"""Sorts arrivals into cells of worker x time: how many there were, how stale, and how long the worker was busy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nowait.core import Outcome
from nowait.core.types import Floats, Integers
from nowait.recording.rows import OUTCOMES

IS_USED = np.array([outcome in (Outcome.APPLIED, Outcome.HELD) for outcome in OUTCOMES])
"""Whether the gradient is part of a step, by the code of the outcome."""


class Cells(NamedTuple):
    """Arrays with one row per lane (a worker) and one column per interval of time."""

    arrivals: NDArray[Any]
    delay_sum: NDArray[Any]
    delay_max: NDArray[Any]
    busy: NDArray[Any]
    """Seconds of the column that are between the start of a job and its arrival."""
    unused: NDArray[Any]
    """Of these, the seconds of jobs whose gradients were not used: dropped, late or rejected."""
    stale: NDArray[Any]
    """Busy seconds times the delay of the gradient: divided by ``busy``, how stale the worker's params were."""


def began(rows: NDArray[np.void]) -> Floats:
    """Return when each job began, between 0 and its arrival; the latter if a host reported no number."""
    started: Floats = np.maximum(0.0, np.fmin(rows["started"], rows["time"]))
    return started


def cells_of(rows: NDArray[np.void], lane: Integers, shape: tuple[int, int], start: float, width: float) -> Cells:
    """Return the cells of these rows. Columns begin at ``start``; rows outside of all columns are only busy inside.

    ``lane`` is the lane of each row. A job that lasts longer than a column makes its worker busy in all of them.
    """
    size = shape[0] * shape[1]
    column = np.floor((rows["time"] - start) / width)
    inside = (column >= 0) & (column < shape[1])
    place = lane[inside] * shape[1] + column[inside].astype(np.int64)
    delay = rows["delay"][inside]
    delay_max = np.zeros(size, np.int64)
    np.maximum.at(delay_max, place, delay)
    begin, end = (began(rows) - start) / width, (rows["time"] - start) / width
    unused, one = ~IS_USED[rows["outcome"]], np.ones(len(rows))
    return Cells(
        np.bincount(place, minlength=size).reshape(shape),
        np.bincount(place, weights=delay, minlength=size).reshape(shape),
        delay_max.reshape(shape),
        width * _shares(begin, end, one, lane, shape),
        width * _shares(begin, end, one * unused, lane, shape) if unused.any() else np.zeros(shape),
        width * _shares(begin, end, rows["delay"].astype(np.float64), lane, shape),
    )


def _shares(begin: Floats, end: Floats, weight: Floats, lane: Integers, shape: tuple[int, int]) -> Floats:
    """Return which share of each cell is covered by weighted intervals, whose ends are given in columns."""
    lanes, columns = shape
    begin, end = np.clip(begin, 0, columns), np.clip(end, 0, columns)
    first = np.minimum(begin.astype(np.int64), columns - 1)
    last = np.minimum(end.astype(np.int64), columns - 1)
    row, size = lane * (columns + 1), lanes * (columns + 1)
    # the parts of the first and the last column, and 1 in all between them; right also if they are the same column
    parts = np.bincount(row + first, weights=weight * (first + 1 - begin), minlength=size).astype(np.float64)
    parts += np.bincount(row + last, weights=weight * (end - last), minlength=size)
    edges = np.bincount(row + first + 1, weights=weight, minlength=size)
    edges -= np.bincount(row + last, weights=weight, minlength=size)
    covered: Floats = parts.reshape(lanes, -1) + np.cumsum(edges.reshape(lanes, -1), axis=1)
    return np.maximum(0.0, covered[:, :columns])  # sums of weights may be a rounding error below 0
