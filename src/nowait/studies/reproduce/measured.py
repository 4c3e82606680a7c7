"""What the runs of a reproduction measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from nowait.core.types import Floats

POINTS = 201
"""Points of a median curve."""
SMALLEST = 1e-300


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
    longest_delay: int
    """Of a gradient that was used, in the first run."""

    @property
    def diverged(self) -> int:
        """How many runs diverged."""
        return sum(not np.isfinite(errors).all() for errors in self.errors)

    @property
    def final(self) -> float:
        """The last error of the median curve."""
        return float(self.middle[1][-1])

    @cached_property
    def middle(self) -> tuple[Floats, Floats]:
        """The median curve: x values, and the median over the seeds of the errors there; infinite if most diverged."""
        grid = np.linspace(0.0, min(float(x[-1]) for x in self.x), POINTS)
        curves = [_at(grid, x, errors) for x, errors in zip(self.x, self.errors, strict=True)]
        return grid, np.median(curves, axis=0)

    @property
    def label(self) -> str:
        """The method with its parameters, for tables and figures."""
        return ", ".join(part for part in (self.entry, self.variant, f"γ = {self.stepsize:.3g}") if part)

    def reached(self, error: float) -> float:
        """Return where the median curve is first at most this much, at the second point at the earliest."""
        grid, errors = self.middle
        places = np.flatnonzero(errors <= error)
        return float(grid[max(1, int(places[0]))]) if len(places) else math.inf

    def roughness(self) -> float:
        """Return the standard deviation of ln(error) around its trend, of the seed where it is largest.

        It is about 0 for a smooth curve, and infinite for a run that diverged. The first quarter is left out.
        """
        return max(_roughness(errors[len(errors) // 4 :]) for errors in self.errors)


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

        The error is the larger one of the two last errors, so that both reach it. A method that diverged is infinitely
        slower than one that did not.
        """
        first, second = self.curve(panel, fast), self.curve(panel, slow)
        error = max(first.final, second.final)
        if math.isinf(error):
            return _of_diverged(math.isinf(first.final), math.isinf(second.final))
        return second.reached(error) / first.reached(error)

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves.values())

    def __len__(self) -> int:
        return len(self._curves)


def _of_diverged(fast: bool, slow: bool) -> float:
    """Return the speedup if at least one of the two methods diverged."""
    if fast and slow:
        return 1.0
    return 0.0 if fast else math.inf


def times(speedup: float) -> str:
    """Return a ratio of times in words.

    >>> times(2.0), times(0.25)
    ('2 times sooner', '4 times later')
    """
    if speedup == 0:
        return "never: it diverges"
    return f"{speedup:.2g} times sooner" if speedup >= 1 else f"{1 / speedup:.2g} times later"


def _at(grid: Floats, x: Floats, errors: Floats) -> Floats:
    """Return the errors at other x values, interpolated in the logarithm; infinite everywhere if the run diverged."""
    if not np.isfinite(errors).all():
        return np.full(len(grid), math.inf)
    return np.exp(np.interp(grid, x, np.log(np.maximum(errors, SMALLEST))))


def _roughness(errors: Floats) -> float:
    if not (np.isfinite(errors).all() and (errors > 0).all()):
        return math.inf
    logs = np.log(errors)
    if len(logs) < 3:
        return 0.0
    return float(np.std(np.diff(logs, n=2)) / math.sqrt(6.0))  # noise of variance 1 gives differences of variance 6
