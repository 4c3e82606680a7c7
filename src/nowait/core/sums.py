"""Sums of gradients, which a method holds until it makes a step along them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final

from nowait.core.memory import Memory
from nowait.core.types import Vector

if TYPE_CHECKING:
    from nowait.core.ledger import Arrival, Ledger


@final
class Held:
    """A gradient in one or more sums. ``row`` is its row in the log; ``stepped`` is True once a step contained it."""

    __slots__ = ("row", "stepped")

    def __init__(self, row: int, stepped: bool) -> None:
        self.row = row
        self.stepped = stepped


class BaseSum(ABC):
    """Which gradients a sum contains. ``count`` is the number of ``add`` calls since it was last cleared, ``weight``
    the sum of their weights.

    The coefficient of every gradient that no step has contained yet is kept, so that the log can say which step each
    gradient first entered, and with which weight. Subclasses do the arithmetic, or write it into a plan.
    """

    __slots__ = ("_coefficients", "_ledger", "count", "weight")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._coefficients: dict[Held, float] = {}
        self.count, self.weight = 0, 0.0

    def add(self, arrival: Arrival, weight: float = 1.0) -> None:
        """Add the gradient of the arrival being handled."""
        held = self._ledger.hold(arrival)
        self._add(arrival, weight)
        self._coefficients[held] = self._coefficients.get(held, 0.0) + weight
        self.count += 1
        self.weight += weight

    def merge(self, other: Self, weight: float = 1.0, *, statistics: bool = True) -> None:
        """Add another sum. Its gradients are counted; with a negative weight they are subtracted again.

        Without ``statistics`` those at the end of params are left out: a momentum contains old ones, of old points.
        """
        if other._ledger is not self._ledger:
            raise ValueError("sums of different servers cannot be merged")
        self._merge(other, weight, statistics=statistics)
        other._forget_stepped()
        for held, coefficient in list(other._coefficients.items()):
            self._coefficients[held] = self._coefficients.get(held, 0.0) + weight * coefficient
        self.weight += weight * other.weight
        if other is not self and weight != 0:
            self.count += other.count if weight > 0 else -other.count

    def _forget_stepped(self) -> None:
        """Forget the coefficients of gradients that a step has contained, of which a long-lived sum has many."""
        for held in [held for held in self._coefficients if held.stepped]:
            del self._coefficients[held]

    def clear(self) -> None:
        """Set the sum to zero."""
        self._clear()
        self._coefficients.clear()
        self.count, self.weight = 0, 0.0

    def belongs_to(self, ledger: Ledger) -> bool:
        """Whether ``ledger.sum()`` made it."""
        return self._ledger is ledger

    def take_first_steps(self, scale: float) -> dict[int, float]:
        """Mark the gradients as used by a step along ``scale`` times the sum.

        Returns the weights in this step, by row in the log, of the gradients that no earlier step contained.
        """
        first = {}
        for held, value in self._coefficients.items():
            if value != 0 and not held.stepped:
                held.stepped = True
                first[held.row] = value * scale
        self._coefficients.clear()
        return first

    def __repr__(self) -> str:
        return f"GradientSum(count={self.count})"

    @property
    @abstractmethod
    def norm(self) -> float:
        """The norm of the sum."""

    @abstractmethod
    def _add(self, arrival: Arrival, weight: float) -> None:
        """Add ``weight`` times the gradient to the vector."""

    @abstractmethod
    def _merge(self, other: Self, weight: float, *, statistics: bool) -> None:
        """Add ``weight`` times the vector of another sum, with or without the statistics at its end."""

    @abstractmethod
    def _clear(self) -> None:
        """Set the vector to zero."""


@final
@dataclass(frozen=True, slots=True)
class SavedSum:
    """A sum in a checkpoint."""

    vector: Vector
    count: int
    weight: float


@final
class GradientSum(BaseSum):
    """A vector that gradients are added to, made by ``server.sum()``."""

    __slots__ = ("_add_scaled", "_memory", "vector")

    def __init__(self, server: Any, memory: Memory, like: Vector) -> None:
        super().__init__(server)
        self._memory = memory
        self._add_scaled = memory.adder(like)
        self.vector: Vector = memory.namespace.zeros_like(like)

    @property
    def norm(self) -> float:
        """The norm of the sum, without the statistics of a model."""
        return math.sqrt(self._memory.squared_norm(self._ledger.trained(self.vector)))  # type: ignore[attr-defined]

    def restore(self, saved: SavedSum) -> None:
        """Restore the vector, count and weight that the sum had at a checkpoint."""
        self.clear()
        self._memory.write(saved.vector, self.vector)
        self.count, self.weight = saved.count, saved.weight

    def _add(self, arrival: Arrival, weight: float) -> None:
        self._add_scaled(self.vector, arrival.raw_gradient, weight)

    def _merge(self, other: GradientSum, weight: float, *, statistics: bool) -> None:
        if statistics:
            self._add_scaled(self.vector, other.vector, weight)
        else:
            trained = self._ledger.trained  # type: ignore[attr-defined]
            self._add_scaled(trained(self.vector), trained(other.vector), weight)

    def _clear(self) -> None:
        self.vector[:] = 0.0
