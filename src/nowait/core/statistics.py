"""Statistics stored at the end of params, such as those of batch normalisation.

The last entries of params may be statistics that workers measure, instead of parameters. A worker sends them in the
last entries of its gradient, followed by a 1. So in every linear combination of gradients the last entry is the sum of
the weights, and the statistics divided by it are their weighted mean. The server moves its own statistics towards that
mean, whatever the update does with the parameters.

A worker moves the statistics of its point by a small fraction, its momentum, towards those of its batch. If the server
moved by 1/M towards that, statistics would lag M times behind those of a plain loop. So the change that the worker made
is made longer first, but not longer than up to the statistics of the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nowait.core.memory import NOT_FINITE, Stepper, to_host
from nowait.core.types import Vector
from nowait.numerics.elementary import integer_power


def lengthening(momentum: float, num_workers: int) -> float:
    """Return the factor of the change of a worker's statistics with which they follow as fast as in a plain loop.

    With M workers that arrive in turn, the distance e to the statistics of the data follows
    e(t + 1) = (1 − 1/M)·e(t) + kept·e(t − M + 1)/M. It shrinks by 1 − momentum in every step if
    kept = (1 − momentum)^(M − 1)·(1 − momentum·M); beyond M = 1/momentum nothing is kept.

    >>> [round(lengthening(0.1, num_workers), 2) for num_workers in (1, 2, 4, 10, 100)]
    [1.0, 2.8, 5.63, 10.0, 10.0]
    """
    if num_workers <= 1:
        return 1.0
    kept = max(0.0, integer_power(1.0 - momentum, num_workers - 1) * (1.0 - momentum * num_workers))
    return float((1.0 - kept) / momentum)


def lengthened(gradient: Vector, point: Vector, count: int, factor: float) -> Vector:
    """Return a gradient whose statistics are ``factor`` times as far from those of its point; written in place.

    An array that is read-only is copied.
    """
    if isinstance(gradient, np.ndarray) and not gradient.flags.writeable:
        gradient = gradient.copy()
    measured, before = gradient[-count:-1], point[-count:-1]
    measured -= before
    measured *= factor
    measured += before
    return gradient


def merging(stepper: Stepper, count: int, weight: Callable[[], float]) -> Stepper:
    """Return a stepper for params whose last ``count`` entries are statistics, which move by ``weight()``."""

    def step(params: Vector, direction: Vector, stepsize: float, out: Vector) -> tuple[float, float]:
        measured = to_host(direction[-count:])
        if not np.isfinite(measured).all():
            return NOT_FINITE
        whole, share = float(measured[-1]), measured.dtype.type(weight())
        out[-count:] = params[-count:]
        if whole > 0:
            mean = direction[-count:-1] if whole == 1 else direction[-count:-1] / whole
            _move(out[-count:-1], mean, float(1 - share), float(share))
        return stepper(params[:-count], direction[:-count], stepsize, out[:-count])

    return step


def _move(statistics: Vector, mean: Vector, kept: float, share: float) -> None:
    statistics[:] = mean if share == 1 else kept * statistics + share * mean
