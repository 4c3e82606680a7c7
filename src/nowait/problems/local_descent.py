"""The steps of a worker's job: of plain SGD, or of any update."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, Protocol, final

from nowait.core import Update
from nowait.core.layout import Layout
from nowait.core.memory import Stepper, memory_of, namespace_of
from nowait.core.types import Vector


class LocalDescent(Protocol):
    """Moves a vector from x to y, with gradients at every vector between. Only params that are trained are in it."""

    def start(self, point: Vector, here: Vector) -> None:
        """Begin a job: x is ``point``, and ``here`` a copy of it. Nothing is left of the jobs before."""

    def step(self, here: Vector, gradient: Vector) -> bool:
        """Move ``here`` by one step; return False if that is not finite, which ends the job."""

    def write_difference(self, here: Vector, out: Vector) -> None:
        """Write x − y into ``out``; NaN or infinities if a step was not finite."""


@final
class SgdDescent:
    """y ← x − stepsize·(sum of the gradients). The sum does not lose steps that are too short to change y."""

    def __init__(self, stepsize: float) -> None:
        self._stepsize = stepsize
        self._point: Any = None
        self._difference: Any = None

    def start(self, point: Vector, here: Vector) -> None:
        """Set the sum to zero."""
        self._point, self._difference = point, namespace_of(here).zeros_like(here)

    def step(self, here: Vector, gradient: Vector) -> bool:
        """Add the gradient to the sum."""
        self._difference += self._stepsize * gradient
        namespace_of(here).subtract(self._point, self._difference, out=here)
        return memory_of(here).is_finite(self._difference)

    def write_difference(self, here: Vector, out: Vector) -> None:
        """Write the sum."""
        out[:] = self._difference
        self._point = self._difference = None


@final
class UpdateDescent:
    """The steps of an update, which has a copy here that is started anew for every job."""

    def __init__(self, update: Update, stepsize: float, layout: Layout) -> None:
        self._update, self._stepsize, self._layout = without_run_state(update), stepsize, layout
        self._stepper: Stepper
        self._point: Any = None
        self._next: Any = None
        self._is_finite = True

    def start(self, point: Vector, here: Vector) -> None:
        """Reset the state of the update."""
        self._point, self._is_finite = point, True
        self._update.start_with_layout(here, self._layout)
        self._stepper = self._update.stepper(here)
        self._next = like(here, self._next)

    def step(self, here: Vector, gradient: Vector) -> bool:
        """Make one step of the update, unless the gradient is not finite."""
        _, zero = self._stepper(here, gradient, self._stepsize, self._next)
        self._is_finite = zero == 0
        here[:] = self._next
        return self._is_finite

    def write_difference(self, here: Vector, out: Vector) -> None:
        """Write x − y."""
        if self._is_finite:
            namespace_of(here).subtract(self._point, here, out=out)
        else:
            out[:] = math.nan
        self._point = None


def without_run_state(update: Update) -> Update:
    """Return a copy of an update as it was made, without the moments of a run that it was used for."""
    if not dataclasses.is_dataclass(update):
        return copy.deepcopy(update)
    given = {field.name: getattr(update, field.name) for field in dataclasses.fields(update) if field.init}
    parts = {name: without_run_state(part) for name, part in given.items() if isinstance(part, Update)}
    return type(update)(**given | parts)


def like(vector: Any, kept: Any) -> Any:
    """Return ``kept`` if it has the size, dtype and memory of a vector, else a new vector that does.

    Models keep views of the vectors they have seen. So the vectors of many jobs are the same ones.
    """
    same_kind = kept is not None and memory_of(kept) is memory_of(vector) and kept.dtype == vector.dtype
    return kept if same_kind and kept.shape == vector.shape else namespace_of(vector).empty_like(vector)
