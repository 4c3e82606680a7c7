"""The paper's stepsizes and output rules, written down a second time from its text.

A run that is only compared with ``nw.theory.prescribe`` and the stepsize rules cannot show a mistake in them: runs and
check would have the same one. So ``nw.certify`` also compares it with these formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nowait.core import RandomIterate, StepsizeWeightedAverage, StronglyConvexAverage, UniformAverage
from nowait.core.types import Floats, Integers
from nowait.theory.constants import Constants
from nowait.theory.guarantee import Prescription

STEPSIZES, OUTPUT = "the paper's stepsizes", "the paper's output"
TOLERANCE = 1e-9


def unlike_the_paper(asked: Prescription, trace: Any) -> tuple[str, ...]:
    """Return what of a run is not as the theorem prints it: its stepsizes, its output, both or nothing."""
    expected = printed_stepsizes(asked, trace.delay)
    same_stepsizes = np.allclose(trace.stepsize, expected, rtol=TOLERANCE, atol=0.0)
    found = {STEPSIZES: same_stepsizes, OUTPUT: asked.output == _output(asked)}
    return tuple(name for name, same in found.items() if not same)


def printed_stepsizes(asked: Prescription, delay: Integers) -> Floats:
    """Return the stepsizes of the theorem for gradients with these delays."""
    limits = FORMULAS[asked.setting](asked, np.asarray(delay, dtype=np.float64))
    return np.broadcast_to(np.minimum.reduce(np.broadcast_arrays(*limits)), np.shape(delay))


def _theorem_1(asked: Prescription, _: Floats) -> tuple[Any, ...]:
    M, K, c = _symbols(asked)
    return (c.B / (c.G * math.sqrt(K * M)),)


def _theorem_2(asked: Prescription, _: Floats) -> tuple[Any, ...]:
    M, K, c = _symbols(asked)
    return 1 / (2 * M * c.L), _noise_limit(asked), (c.Delta / (c.L * M * c.G) ** 2 / K) ** (1 / 3)


def _theorem_3_1(asked: Prescription, tau: Floats) -> tuple[Any, ...]:
    M, K, c = _symbols(asked)
    return 1 / (4 * c.L * tau), 1 / (4 * M * c.L), c.B / (c.sigma * math.sqrt(K)) if c.sigma else math.inf


def _theorem_3_2(asked: Prescription, tau: Floats) -> tuple[Any, ...]:
    M, K, c = _symbols(asked)
    late = np.exp(-c.mu * tau / (4 * M * c.L)) / (4 * c.L * tau)
    if not c.sigma:
        return late, 1 / (8 * M * c.L)
    return late, 1 / (8 * M * c.L), 504 * math.log(math.e + (c.mu * K * c.B / c.sigma) ** 2) / (c.mu * K)


def _theorem_3_3(asked: Prescription, tau: Floats) -> tuple[Any, ...]:
    M, _, c = _symbols(asked)
    return 1 / (4 * c.L * tau), 1 / (2 * M * c.L), _noise_limit(asked)


def _theorem_4(asked: Prescription, tau: Floats) -> tuple[Any, ...]:
    M, _, c = _symbols(asked)
    return 1 / (8 * c.L * tau), 1 / (4 * M * c.L), _noise_limit(asked)


def _symbols(asked: Prescription) -> tuple[int, int, Any]:
    """Return M, K and the constants, as the paper calls them."""
    return asked.workers, asked.steps, asked.constants


def _noise_limit(asked: Prescription) -> float:
    """Return √(Δ/(K·L·σ²)), and ∞ without noise."""
    _, K, c = _symbols(asked)
    return math.sqrt(c.Delta / (K * c.L)) / c.sigma if c.sigma else math.inf


FORMULAS: dict[str, Callable[[Prescription, Floats], tuple[Any, ...]]] = {
    "convex-lipschitz": _theorem_1,
    "nonconvex-lipschitz": _theorem_2,
    "convex": _theorem_3_1,
    "strongly-convex": _theorem_3_2,
    "nonconvex": _theorem_3_3,
    "heterogeneous": _theorem_4,
}
"""By setting: functions of the prescription and the delays τ. The stepsize is the least of what they return."""


def _output(asked: Prescription) -> Any:
    """Return the output rule of the theorem; that of 3.2 with the corrections E20 and E22."""
    known: Constants = asked.constants
    if asked.setting == "strongly-convex":
        return StronglyConvexAverage((known.mu or math.nan) / 2)
    return {"convex-lipschitz": UniformAverage(), "convex": StepsizeWeightedAverage()}.get(
        asked.setting, RandomIterate()
    )
