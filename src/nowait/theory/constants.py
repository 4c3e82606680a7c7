"""The constants of the theorems, in the paper's letters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, final

from nowait.core import checks

MEANINGS = {
    "L": "F is L-smooth",
    "mu": "F is mu-strongly convex",
    "sigma": "sigma² bounds the variance of a stochastic gradient",
    "G": "every f(·; ξ) is G-Lipschitz",
    "B": "B bounds the distance from x_0 to the minimiser",
    "Delta": "Delta bounds F(x_0) − F*",
    "zeta": "zeta bounds how far a worker's expected gradient is from that of all",
}
REMEDIES = {
    "mu": "write mu=…, such as the factor of an l2 term; for a function that is just convex take 'convex'",
    "sigma": "nw.theory.estimate(problem) samples it, or write sigma=…, 0 for exact gradients",
    "G": "only Lipschitz losses have one (AbsoluteLoss, Hinge, LogisticRegression without l2); "
    "nw.theory.estimate(problem) looks for it, or write G=…",
    "zeta": "write zeta=…, 0 if all workers draw from the same data, or take nw.theory.estimate(problem, workers=M)",
}
USUAL_REMEDY = "problem.constants() of a built-in problem has it, nw.theory.estimate(problem) estimates it"


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
        for name, value in self.known().items():
            checks.store(self, **{name: checks.not_negative(value, name, "the theorems need it finite, or None")})
        if self.L is not None and self.mu is not None and self.mu > self.L * (1 + 1e-9):
            raise ValueError(f"mu must not exceed L, got mu={self.mu} and L={self.L}: no function is both")

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={value!r}" for name, value in self.known().items())
        return f"Constants({known})"

    def known(self) -> dict[str, float]:
        """Those that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def need(self, name: str, by: str) -> float:
        """The constant of this name, or an error that says what it is, who needs it and how to get it."""
        value: float | None = getattr(self, name)
        if value is None:
            remedy = REMEDIES.get(name, USUAL_REMEDY)
            raise ValueError(f"{by} needs {name} ({MEANINGS[name]}), which these constants lack: {remedy}")
        return value

    def need_positive(self, name: str, by: str) -> float:
        """The same, for a constant by which stepsizes are multiplied or divided."""
        value = self.need(name, by)
        if value == 0:
            raise ValueError(f"{by} needs {name} above 0 ({MEANINGS[name]}), got 0: {_why_positive(name)}")
        return value


def constants_of(value: Any) -> Constants:
    """The constants themselves, or those of an ``Estimate``; an error that says what to pass if it is neither."""
    inside = getattr(value, "constants", value)
    if callable(inside) and not isinstance(value, Constants):
        raise TypeError("constants must be a nowait Constants, got a problem: write problem.constants()")
    return checks.instance(inside, Constants, "constants", "nw.theory.Constants(L=1.0, sigma=0.1, B=1.0)")


def _why_positive(name: str) -> str:
    if name == "mu":
        return "for a function that is just convex take 'convex'"
    if name in ("B", "Delta"):
        return "x_0 is a minimiser already"
    return "the function would be constant or linear"
