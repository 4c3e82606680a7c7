"""The constants of the theorems, in the paper's letters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import final

from nowait.core import checks


@final
@dataclass(frozen=True)
class Constants:
    """What the theorems know of a problem; None where it is not known or not finite.

    >>> Constants(L=2.0, mu=0.5)
    Constants(L=2.0, mu=0.5)
    """

    L: float | None = None
    """F is L-smooth."""
    mu: float | None = None
    """F is mu-strongly convex; 0 if it is just convex."""
    sigma: float | None = None
    """E‖∇f(x; ξ) − ∇F(x)‖² ≤ sigma² for every x."""
    G: float | None = None
    """Every f(·; ξ) is G-Lipschitz."""
    B: float | None = None
    """‖x_0 − x*‖ ≤ B."""
    Delta: float | None = None
    """F(x_0) − F* ≤ Delta."""
    zeta: float | None = None
    """‖∇F_m(x) − ∇F(x)‖ ≤ zeta for every worker m and every x; 0 if all draw from the same data."""

    def __post_init__(self) -> None:
        for name, value in self._known().items():
            checks.store(self, **{name: checks.not_negative(value, name, "the theorems need it finite, or None")})
        if self.L is not None and self.mu is not None and self.mu > self.L * (1 + 1e-9):
            raise ValueError(f"mu must not exceed L, got mu={self.mu} and L={self.L}: no function is both")

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={value!r}" for name, value in self._known().items())
        return f"Constants({known})"

    def _known(self) -> dict[str, float]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
