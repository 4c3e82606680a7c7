"""Sums of gradients that the server owns."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from nowait.core.types import Vector
from nowait.numerics.compiled import kernels

if TYPE_CHECKING:
    from nowait.core.server import Arrival, Server


@final
class Held:
    """A gradient inside sums, known by its row in the log; ``stepped`` once a step was made with it."""

    __slots__ = ("row", "stepped")

    def __init__(self, row: int, stepped: bool) -> None:
        self.row = row
        self.stepped = stepped


class Coefficients:
    """Which gradients a sum is made of. ``count`` is how many ``add`` calls it holds.

    It remembers the coefficient of every gradient that has not been in a step yet, so that the log can say
    which step each one first entered, and with which weight.
    """

    __slots__ = ("coefficients", "count")

    def __init__(self) -> None:
        self.coefficients: dict[Held, float] = {}
        self.count = 0

    def note_add(self, held: Held, weight: float) -> None:
        """A gradient was added."""
        self.coefficients[held] = self.coefficients.get(held, 0.0) + weight
        self.count += 1

    def note_merge(self, other: Coefficients, weight: float) -> None:
        """Another sum was added. With a negative weight its gradients are taken away again."""
        for held, coefficient in other.coefficients.items():
            if not held.stepped:
                self.coefficients[held] = self.coefficients.get(held, 0.0) + weight * coefficient
        if other is not self and weight != 0:
            self.count += other.count if weight > 0 else -other.count

    def note_clear(self) -> None:
        """The sum is zero again."""
        self.coefficients.clear()
        self.count = 0

    def take_first_steps(self, scale: float) -> list[tuple[Held, float]]:
        """A step was made along ``scale`` times the sum: the gradients whose first one it was, with their weights."""
        first = [(held, value * scale) for held, value in self.coefficients.items() if value != 0 and not held.stepped]
        for held, _ in first:
            held.stepped = True
        self.coefficients.clear()
        return first

    def __repr__(self) -> str:
        return f"GradientSum(count={self.count})"


@final
class GradientSum(Coefficients):
    """A vector that gradients are added to. ``count`` is how many ``add`` calls it holds."""

    __slots__ = ("_server", "vector")

    def __init__(self, server: Server, like: Vector) -> None:
        super().__init__()
        self._server = server
        """Whose sum it is."""
        self.vector = np.zeros_like(like)

    def add(self, arrival: Arrival, weight: float = 1.0) -> None:
        """Add the gradient of the arrival being handled."""
        held = self._server.hold(arrival)
        kernels().add_scaled(self.vector, arrival.raw_gradient, self.vector.dtype.type(weight))
        self.note_add(held, weight)

    def merge(self, other: GradientSum, weight: float = 1.0) -> None:
        """Add another sum. Its gradients count; with a negative weight they are taken away again."""
        if other._server is not self._server:
            raise ValueError("sums of different servers cannot be merged")
        kernels().add_scaled(self.vector, other.vector, self.vector.dtype.type(weight))
        self.note_merge(other, weight)

    def clear(self) -> None:
        """Back to zero."""
        self.vector.fill(0)
        self.note_clear()
