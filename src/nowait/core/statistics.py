"""Statistics stored at the end of params, such as those of batch normalisation.

The last entries of params may be statistics that workers measure, instead of parameters. A worker sends them in the
last entries of its gradient, followed by a 1. So in every linear combination of gradients the last entry is the sum of
the weights, and the statistics divided by it are their weighted mean. The server moves its own statistics towards that
mean, whatever the update does with the parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nowait.core.types import Vector
from nowait.core.updates import NOT_FINITE, Stepper


def merging(stepper: Stepper, count: int, weight: Callable[[], float]) -> Stepper:
    """Return a stepper for params whose last ``count`` entries are statistics, which move by ``weight()``."""

    def step(params: Vector, direction: Vector, stepsize: float, out: Vector) -> tuple[float, float]:
        measured = direction[-count:]
        if not np.isfinite(measured).all():
            return NOT_FINITE
        result = stepper(params[:-count], direction[:-count], stepsize, out[:-count])
        out[-count:] = params[-count:]
        if measured[-1] > 0:
            whole, share = measured[-1], params.dtype.type(weight())
            mean = measured[:-1] if whole == 1 else measured[:-1] / whole
            out[-count:-1] = mean if share == 1 else (1 - share) * params[-count:-1] + share * mean
        return result

    return step
