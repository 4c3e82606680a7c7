"""The scale of a problem: the order of magnitude of its stepsizes, and its minimum."""

from __future__ import annotations

import math
from typing import Any

from nowait.core.capabilities import Capabilities
from nowait.theory import Estimate

FLAT = 1e-9


def stepsize_unit(problem: Any, found: Estimate, gradients: int) -> float:
    """Return 1/L, or B/(G·√K) as in Theorem 1 if F has almost no curvature, as with piecewise linear losses."""
    constants = Capabilities.of(problem).constants
    known = None if constants is None else constants().L
    smoothness = float(found.L) if known is None else float(known)
    if smoothness * max(float(found.B), 1e-300) > FLAT * float(found.G):
        return 1 / smoothness
    if not found.G:
        raise ValueError(f"{type(problem).__name__} has gradients of zero at x_0: there is nothing to train")
    return max(float(found.B), FLAT) / (float(found.G) * math.sqrt(gradients))


def known_minimum(problem: Any) -> float | None:
    """Return the lowest loss of a problem, or None if it is not known."""
    minimum = Capabilities.of(problem).minimum
    try:
        return None if minimum is None else float(minimum()[1])
    except Exception:  # it could not be computed
        return None
