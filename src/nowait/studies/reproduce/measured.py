"""What the runs of a reproduction measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import final

import numpy as np

from nowait.core.types import Floats


@final
@dataclass(frozen=True, eq=False)
class Curve:
    """The runs of one method in one panel, with the best of what was tried: one run for every seed."""

    panel: str
    entry: str
    variant: str
    """The value of the method's other parameter; empty if it has none."""
    stepsize: float
    tried: int
    """How many settings were tried to find this one; 1 if it was given."""
    at_the_end: bool
    """True if the stepsize is the smallest or the largest that was tried."""
    axis: str
    """What ``x`` is: "time" or "gradients"."""
    x: tuple[Floats, ...]
    errors: tuple[Floats, ...]
    """F(x) − F* at every evaluation, for every seed; infinite from where the run diverged."""
    steps: int
    """Steps of the first run."""
    mean_delay: float
    longest_delay: int

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return sum(not np.isfinite(errors).all() for errors in self.errors)

    @property
    def final(self) -> float:
        """The last error, median over the seeds."""
        return median(float(errors[-1]) for errors in self.errors)

    @property
    def label(self) -> str:
        """The method with its parameters, for tables and figures."""
        return ", ".join(part for part in (self.entry, self.variant, f"γ = {self.stepsize:.3g}") if part)

    def reached(self, error: float) -> float:
        """Return when the error is first at most this much, median over the seeds; infinity if it never is."""
        return median(_first_at_most(x, errors, error) for x, errors in zip(self.x, self.errors, strict=True))

    def roughness(self) -> float:
        """Return the standard deviation of ln(error) around its trend, in the second half of the runs.

        It is about 0 for a smooth curve, and the median over the seeds. Infinity for a run that diverged.
        """
        return median(_roughness(errors[len(errors) // 2 :]) for errors in self.errors)


@final
class Measured:
    """The curves so far, by panel and method."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, str], Curve] = {}

    def add(self, curve: Curve) -> None:
        """Add the runs of a method."""
        self._curves[curve.panel, curve.entry] = curve

    def curve(self, panel: str, entry: str) -> Curve:
        """Return the runs of a method; KeyError if they were not made."""
        return self._curves[panel, entry]

    def in_panel(self, panel: str) -> list[Curve]:
        """Return all curves of a panel."""
        return [curve for curve in self if curve.panel == panel]

    def best(self, panel: str) -> Curve:
        """Return the method with the lowest last error."""
        return min(self.in_panel(panel), key=lambda curve: curve.final)

    def speedup(self, panel: str, fast: str, slow: str) -> float:
        """Return how many times sooner ``fast`` reaches the last error of ``slow``; below 1 if it is the slower one.

        The error is the larger one of the two last errors, so that both reach it.
        """
        first, second = self.curve(panel, fast), self.curve(panel, slow)
        error = max(first.final, second.final)
        return second.reached(error) / first.reached(error)

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves.values())

    def __len__(self) -> int:
        return len(self._curves)


def _first_at_most(x: Floats, errors: Floats, error: float) -> float:
    reached = np.flatnonzero(errors <= error)
    return float(x[reached[0]]) if len(reached) else math.inf


def _roughness(errors: Floats) -> float:
    if not (np.isfinite(errors).all() and (errors > 0).all()):
        return math.inf
    logs = np.log(errors)
    return float(np.std(np.diff(logs, n=2)) / math.sqrt(6.0))  # noise of variance 1 gives differences of variance 6
