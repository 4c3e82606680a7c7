"""When a curve reaches a target loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nowait.core.types import Floats


def until(counts: Any, losses: Floats, steps: Any, target: float) -> float:
    """Return the count (of seconds or gradients) at which a curve reaches the target; ∞ if it does not.

    Between evaluations that are several steps apart, log-losses are interpolated linearly.
    """
    known = ~np.isnan(losses)
    counts, losses, steps = counts[known], losses[known], steps[known]
    below = np.flatnonzero(losses <= target)
    if not len(below):
        return math.inf
    place = int(below[0])
    between = place > 0 and steps[place] - steps[place - 1] > 1
    if not (between and np.isfinite(losses[place - 1]) and losses[place] > 0):
        return float(counts[place])
    whole = math.log(losses[place - 1] / losses[place])
    share = math.log(losses[place - 1] / target) / whole if whole > 0 else 1.0
    return float(counts[place - 1] + share * (counts[place] - counts[place - 1]))
