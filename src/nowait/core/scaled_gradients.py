"""Steps whose delay rule scales the gradient instead of the stepsize.

γ·min(1, M/τ) as the stepsize of Adam leaves its moments with the whole stale gradient. Scaled by min(1, M/τ) before the
moments, the gradient changes them less, and the stepsize stays γ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from nowait.core import checks
from nowait.core.layout import Layout
from nowait.core.memory import Stepper, memory_of
from nowait.core.state import State
from nowait.core.types import Vector
from nowait.core.updates import Update


def scaling(stepper: Stepper, fresh_stepsize: Callable[[], float]) -> Stepper:
    """Return a stepper that makes steps of the stepsize of fresh gradients, along directions that are scaled.

    It returns the squared norm of the direction as it was given. A direction with the stepsize 0 changes neither the
    params that are trained nor the state of the update.
    """

    def step(params: Vector, direction: Vector, stepsize: float, out: Vector) -> tuple[float, float]:
        fresh = fresh_stepsize()
        factor = stepsize / fresh if fresh > 0 else 1.0
        if factor == 1.0:
            return stepper(params, direction, stepsize, out)
        if factor == 0.0:
            out[:] = params
            return memory_of(direction).squared_norm(direction), 0.0
        _, zero = stepper(params, memory_of(direction).scaled(direction, factor, None), fresh, out)
        return memory_of(direction).squared_norm(direction), zero

    return step


@final
@dataclass
class ScaleGradient(Update):
    """Wraps an update: a delay rule scales gradients before they enter its momentum or its moments.

    By default ``DelayAdaptive`` makes the *step* of a stale gradient shorter, but the whole gradient enters the
    momentum, which later steps follow with their full stepsize. With ``ScaleGradient(Momentum(0.9))`` a gradient that
    the rule scales by s moves params by s·γ/(1 − β) in total, and one that it gives the stepsize 0 changes neither
    params nor momentum (statistics of batch normalisation still follow).
    Adam divides by the size of recent gradients: if all delays are equal, this undoes the scaling.

    >>> import nowait as nw
    >>> update = nw.ScaleGradient(nw.Adam())
    """

    update: Update

    def __post_init__(self) -> None:
        checks.instance(self.update, Update, "update", "nw.Adam()")

    @property
    def scales_gradient(self) -> bool:
        """True: the server scales gradients."""
        return True

    @property
    def momentum_factor(self) -> float:
        """That of the inner update."""
        return self.update.momentum_factor

    @property
    def averages_gradients(self) -> bool:
        """As in the update."""
        return self.update.averages_gradients

    def start(self, params: Vector) -> None:
        """Start the inner update."""
        self.update.start(params)

    def start_with_layout(self, params: Vector, layout: Layout) -> None:
        """Start the inner update."""
        self.update.start_with_layout(params, layout)

    def check(self, layout: Layout) -> None:
        """Let the inner update check the layout."""
        self.update.check(layout)

    def apply(self, params: Vector, direction: Vector, stepsize: float, out: Vector) -> None:
        """Make a step of the inner update."""
        self.update.apply(params, direction, stepsize, out)

    def stepper(self, params: Vector) -> Stepper:
        """Return that of the inner update."""
        return self.update.stepper(params)

    def state(self) -> State:
        """Return the state of the inner update."""
        return self.update.state()

    def restore(self, state: State) -> None:
        """Restore the state of the inner update."""
        self.update.restore(state)
