"""A setting of the theorems with its constants, the number of workers and the number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final

from nowait.theory.constants import Constants
from nowait.theory.guarantee import SUBOPTIMALITY, Guarantee, Prescription

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Case:
    """A setting with checked constants, M and K."""

    setting: str
    constants: Constants
    M: int
    K: int

    def need(self, name: str) -> float:
        """Return a constant; raise ValueError if it is missing, with a hint on how to get it."""
        return self.constants.need(name, f"the setting {self.setting!r}")

    def need_positive(self, name: str) -> float:
        """Return a constant; raise ValueError if it is missing or 0."""
        return self.constants.need_positive(name, f"the setting {self.setting!r}")

    def solved_by(self, make: Callable[[Case], T]) -> T:
        """Return ``make(self)``; raise ValueError if the constants overflow or underflow floating point."""
        try:
            return make(self)
        except ArithmeticError as error:
            raise ValueError(f"{self.constants} with K={self.K:.3g} exceeds floating-point range: {error}") from None

    def prescription(self, theorem: str, stepsize: Any, output: Any, guarantee: Guarantee, *notes: str) -> Prescription:
        """Return a ``Prescription`` for this case; its guarantee knows the error at the start."""
        known = guarantee.with_start(self.error_at_start(guarantee.measure))
        return Prescription(
            theorem, self.setting, self.constants, self.M, self.K, stepsize, output, known, tuple(notes)
        )

    def error_at_start(self, measure: str) -> float:
        """Return the least bound that the constants give for the error of x_0; infinite if they give none."""
        known = self.constants
        L, G, B, Delta = (math.inf if value is None else value for value in (known.L, known.G, known.B, known.Delta))
        bounds = (Delta, L * B**2 / 2, G * B) if measure == SUBOPTIMALITY else (2 * L * Delta, (L * B) ** 2, G**2)
        return min(bound for bound in (*bounds, math.inf) if not math.isnan(bound))
