"""The paper's two tables, computed for given constants and speeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from nowait.core import checks
from nowait.theory.constants import Constants, constants_of
from nowait.theory.rates import Rate
from nowait.theory.speedup import MINIBATCH, speedup

PRIOR = "Asynchronous SGD, prior work"
OURS = "Asynchronous SGD, the paper"
SETTINGS = ("convex", "strongly-convex", "nonconvex")


@final
@dataclass(frozen=True)
class Table1Row:
    """Rates after K gradients, without constants and logarithms; NaN where a constant is unknown or 0."""

    method: str
    """The name of the method."""
    convex: float
    """The rate for convex F."""
    strongly_convex: float
    """The rate for strongly convex F."""
    nonconvex: float
    """The rate for non-convex F."""


@final
@dataclass(frozen=True)
class Table2Row:
    """The updates in a given time, the optimisation term after them, and the speedup over minibatch SGD."""

    method: str
    """The name of the method."""
    updates: int
    """The updates in the given time."""
    optimisation: float
    """The optimisation term after these updates, up to a constant."""
    speedup: float
    """How many times as fast as minibatch SGD."""


def table_1(constants: Constants, *, workers: int, steps: int, max_delay: float) -> list[Table1Row]:
    """Return Table 1: convergence rates in terms of K, the number of stochastic gradients used.

    Minibatch SGD makes K/M steps. The bounds are on F − F*, or on ‖∇F‖² in the non-convex case. The coefficients of the
    exponentials are the same in all rows; the paper leaves them out, and with them a factor M (erratum E35).

    >>> rows = table_1(
    ...     Constants(L=1.0, sigma=0.0, B=1.0), workers=10, steps=1_000, max_delay=100
    ... )
    >>> [(row.method, row.convex) for row in rows]  # doctest: +NORMALIZE_WHITESPACE
    [('Minibatch SGD', 0.01), ('Asynchronous SGD, prior work', 0.1),
     ('Asynchronous SGD, the paper', 0.01)]
    """
    constants = constants_of(constants)
    M = checks.at_least(1, workers, "workers", "at least one worker has to compute gradients")
    K = checks.at_least(1, steps, "steps", "it is the number of gradients used")
    longest = checks.positive(max_delay, "max_delay", "it is the longest delay, in steps")
    widths = {MINIBATCH: float(M), PRIOR: longest, OURS: float(M)}
    return [
        Table1Row(name, *(_bound(setting, constants, K, width) for setting in SETTINGS))
        for name, width in widths.items()
    ]


def table_2(seconds: Iterable[float], *, budget_seconds: float) -> list[Table2Row]:
    """Return Table 2: the updates that workers with these seconds per gradient make in ``budget_seconds``.

    >>> [
    ...     (row.updates, row.optimisation, row.speedup)
    ...     for row in table_2([1, 1, 1, 10], budget_seconds=100)
    ... ]
    [(10, 0.1, 1.0), (310, 0.1, 1.0), (310, 0.012903225806451613, 7.75)]
    """
    gain = speedup(seconds)
    rounds, steps = gain.minibatch_steps(budget_seconds), gain.async_steps(budget_seconds)
    if rounds == 0:
        raise ValueError(
            f"in budget_seconds={budget_seconds:g} the slowest worker ({gain.seconds.max():g} s per gradient) computes "
            f"no gradient, so minibatch SGD makes no step: take at least {gain.seconds.max():g}"
        )
    return [
        Table2Row(MINIBATCH, rounds, 1 / rounds, 1.0),
        Table2Row(PRIOR, steps, gain.max_delay / steps, 1.0),
        Table2Row(OURS, steps, gain.workers / steps, gain.speedup),
    ]


def _bound(setting: str, constants: Constants, steps: int, width: float) -> float:
    try:
        rate = Rate.of(setting, constants)
    except ValueError:  # a constant is missing, or 0
        return math.nan
    return rate.optimisation(steps, width) + rate.noise(steps)
