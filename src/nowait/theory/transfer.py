"""From the learning rate of a single process to a stepsize for gradients with delays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import checks


@final
@dataclass(frozen=True)
class StepsizeRange:
    """Stepsizes to try, from ``low`` (curvature limits the learning rate) to ``high`` (noise does)."""

    low: float
    """The smallest stepsize to try."""
    high: float
    """The largest stepsize to try."""
    mean_delay: float
    """The mean of the delays."""
    momentum: float
    """A factor of momentum with which the momentum of the process and that of delays are about the former alone."""

    def __str__(self) -> str:
        return (
            f"gradients are {self.mean_delay:.3g} steps old: with momentum {self.momentum:.2g}, try stepsizes from "
            f"{self.low:.2g} to {self.high:.2g}"
        )


def stepsize_range(lr: float, delays: Any, momentum: float = 0.0) -> StepsizeRange:
    """Return stepsizes for gradients with ``delays``, such as ``run.trace.delay``, from what works in one process.

    With mean delay τ, momentum β becomes β′ = max(0, 1 − τ·(1 − β)), because delays act like momentum of 1 − 1/τ. The
    same effective step lr/(1 − β) then needs ``high`` = lr·(1 − β′)/(1 − β). On a quadratic with curvature L, gradient
    descent is stable below 2/L, with delays τ below 2·sin(π/(4τ − 2))/L: ``low`` is less by this factor.

    >>> print(stepsize_range(0.1, [4, 4, 4, 4], momentum=0.9))
    gradients are 4 steps old: with momentum 0.6, try stepsizes from 0.089 to 0.4
    """
    lr = checks.positive(lr, "lr", "it is the learning rate of the single process")
    momentum = checks.fraction(momentum, "momentum", "it is the factor of the single process")
    found = np.asarray(delays, dtype=np.float64)
    if not found.size:
        raise ValueError("delays must not be empty: stepsize_range needs their mean")
    delay = max(1.0, float(found.mean()))
    smaller = max(0.0, 1 - delay * (1 - momentum))
    high = lr * (1 - smaller) / (1 - momentum)
    return StepsizeRange(high * math.sin(math.pi / (4 * delay - 2)), high, delay, smaller)
