"""Steps whose delay rule scales the gradient instead of the stepsize.

γ·min(1, M/τ) as the stepsize of Adam leaves its moments with the whole stale gradient. Scaled by min(1, M/τ) before the
moments, the gradient changes them less, and the stepsize stays γ.
"""

from __future__ import annotations

from collections.abc import Callable

from nowait.core.memory import Stepper, memory_of
from nowait.core.types import Vector


def scaling(stepper: Stepper, fresh_stepsize: Callable[[], float]) -> Stepper:
    """Return a stepper that makes steps of the stepsize of fresh gradients, along directions that are scaled.

    It returns the squared norm of the direction as it was given.
    """

    def step(params: Vector, direction: Vector, stepsize: float, out: Vector) -> tuple[float, float]:
        fresh = fresh_stepsize()
        factor = stepsize / fresh if fresh > 0 else 1.0
        if factor == 1.0:
            return stepper(params, direction, stepsize, out)
        squared_norm, zero = stepper(params, memory_of(direction).scaled(direction, factor, None), fresh, out)
        return (squared_norm / (factor * factor) if factor > 0 else memory_of(direction).squared_norm(direction)), zero

    return step
