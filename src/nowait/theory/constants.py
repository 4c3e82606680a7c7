"""The constants of the theorems, named by the paper's letters."""

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
    "zeta": "zeta bounds the distance of a worker's expected gradient from the mean over all workers",
}
REMEDIES = {
    "mu": "pass mu=…, such as the factor of an l2 term; for a function that is only convex use 'convex'",
    "sigma": "nw.theory.estimate(problem) estimates it, or pass sigma=…, 0 for exact gradients",
    "G": "only Lipschitz losses have one (AbsoluteLoss, Hinge, LogisticRegression without l2); "
    "nw.theory.estimate(problem) estimates it, or pass G=…",
    "zeta": "pass zeta=…, 0 if all workers draw from the same data, or use nw.theory.estimate(problem, workers=M)",
}
USUAL_REMEDY = "problem.constants() of a built-in problem has it, nw.theory.estimate(problem) estimates it"


@final
@dataclass(frozen=True)
class Constants:
    """The constants of a problem that the theorems use; None where one is unknown or infinite.

    >>> Constants(L=2.0, mu=0.5)
    Constants(L=2.0, mu=0.5)
    """

    L: float | None = None
    """F is L-smooth."""
    mu: float | None = None
    """F is mu-strongly convex; 0 if it is only convex."""
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
        """Return the constants that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def need(self, name: str, by: str) -> float:
        """Return the constant; raise ValueError if it is None, with its meaning, what needs it and how to get it."""
        value: float | None = getattr(self, name)
        if value is None:
            remedy = REMEDIES.get(name, USUAL_REMEDY)
            raise ValueError(f"{by} needs {name} ({MEANINGS[name]}), which these constants lack: {remedy}")
        return value

    def need_positive(self, name: str, by: str) -> float:
        """Return a constant that stepsizes are multiplied with or divided by; raise ValueError if it is None or 0."""
        value = self.need(name, by)
        if value == 0:
            raise ValueError(f"{by} needs {name} above 0 ({MEANINGS[name]}), got 0: {_why_positive(name)}")
        return value


def constants_of(value: Any) -> Constants:
    """Return the given ``Constants``, or those of an ``Estimate``; raise TypeError for anything else."""
    inside = getattr(value, "constants", value)
    if callable(inside) and not isinstance(value, Constants):
        raise TypeError("constants must be a nowait Constants, got a problem: pass problem.constants()")
    return checks.instance(inside, Constants, "constants", "nw.theory.Constants(L=1.0, sigma=0.1, B=1.0)")


def _why_positive(name: str) -> str:
    if name == "mu":
        return "for a function that is only convex use 'convex'"
    if name in ("B", "Delta"):
        return "with 0, x_0 is already a minimiser"
    return "with 0, the function would be constant or linear"
