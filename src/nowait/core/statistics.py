"""Statistics stored at the end of params, such as those of batch normalisation.

The last entries of params may be statistics that workers measure, instead of parameters. A worker sends them in the
last entries of its gradient, followed by a 1. So in every linear combination of gradients the last entry is the sum of
the weights, and the statistics divided by it are their weighted mean. The server moves its own statistics towards that
mean, whatever the update does with the parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nowait.core.memory import NOT_FINITE, Stepper, to_host
from nowait.core.types import Vector


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
