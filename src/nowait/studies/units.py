"""What studies ask of a problem: its name, its minimum, and in which units to look for a stepsize."""

from __future__ import annotations

import math
from typing import Any

from nowait.core.capabilities import Capabilities
from nowait.theory import Estimate

FLAT = 1e-9


def stepsize_unit(problem: Any, found: Estimate, gradients: int) -> float:
    """1/L; where F has no curvature to speak of, as with piecewise linear losses, B/(G·√K) as in Theorem 1."""
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
