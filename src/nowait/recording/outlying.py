"""Which worker's gradients are far larger than those of the others: for the message about a run that diverged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers

FAR_LARGER = 1000.0
"""A gradient this many times as long as those of the other workers at points of the same age is named."""


class Outlier(NamedTuple):
    """A gradient that is far larger than those of the other workers at points of the same age."""

    worker: int
    times: float
    """How many times as long; infinite if its norm overflows."""


def first_outlier(worker: Integers, version: Integers, delay: Integers, norm: Floats) -> Outlier | None:
    """Return the first gradient that is far larger than the others'; None if there is none.

    The arguments are columns of a trace. A gradient is compared with those of other workers at its point and at newer
    points that do not contain its own step: after that step all gradients may be large. In a run that diverges for its
    stepsize, gradients at newer points are as large.
    """
    valid = norm > 0  # late and rejected gradients have 0 and NaN
    worker, version, delay, norm = worker[valid], version[valid], delay[valid], norm[valid]
    by_version = np.argsort(version, kind="stable")
    ordered = version[by_version]
    first = np.searchsorted(ordered, version, side="left")
    last = np.searchsorted(ordered, version + delay, side="left")
    for row in np.flatnonzero(_may_be_outliers(worker, norm, by_version, first, last)):
        near = by_version[first[row] : last[row]]
        times = _times_larger(norm[row], norm[near[worker[near] != worker[row]]])
        if times > FAR_LARGER:
            return Outlier(int(worker[row]), times)
    return None


def _may_be_outliers(
    worker: Integers, norm: Floats, by_version: Integers, first: Integers, last: Integers
) -> NDArray[np.bool_]:
    """Return False for rows that a comparison with one or two others shows to be none: nearly all of a long run."""
    possible = first < last
    for place in (first, last - 1):
        other = by_version[np.where(possible, place, 0)]
        with np.errstate(over="ignore"):
            possible &= (worker[other] == worker) | (norm > FAR_LARGER * norm[other])
    return possible


def _times_larger(norm: float, others: NDArray[np.float64]) -> float:
    if not len(others):
        return 0.0
    largest = float(others.max())
    return norm / largest if largest < np.inf else 0.0
