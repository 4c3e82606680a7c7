"""The exact worst case of asynchronous SGD for a given order of arrivals, by performance estimation (PEPit).

Needs the extra ``nowait[exact]``. The worst case over all convex L-smooth functions is a semidefinite program. Its size
grows with the number of steps: use it for a few workers and up to about 20 steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from nowait.core import DelayAdaptive, Stepsize, as_stepsize, checks
from nowait.theory import Constants
from nowait.theory.bounds import convex_bound
from nowait.theory.case import Case

MOST_STEPS = 60
TOLERANCE = 1e-9


@final
@dataclass(frozen=True)
class WorstCase:
    """The exact worst case of an order of arrivals, and the bound for it."""

    order: tuple[int, ...]
    exact: float
    """The largest F(x̃) − F* over all convex L-smooth functions with ‖x_0 − x*‖ ≤ B, without noise."""
    bound: float
    """nowait's bound for this order: B²/(2S), see docs/proofs.md; infinite if its proof allows no such stepsizes."""

    @property
    def ratio(self) -> float:
        """The bound over the exact worst case, at least 1."""
        return self.bound / self.exact


def worst_case(
    order: Sequence[int], *, workers: int, stepsize: Stepsize | float | None = None, constants: Constants | None = None
) -> WorstCase:
    """Return the exact worst case of Theorem 3.1 for an order of arrivals, with exact gradients.

    ``order`` are the workers in the order in which their gradients arrive. ``stepsize`` is the rule; None is that of
    the theorem, γ = 1/(4ML) and cut = M. Of the ``constants`` L and B are used; None is 1 for both. The answer is the
    average with the weights γ̂_k. The bound is infinite unless L·(M·γ_k + γ_j·τ(j)) ≤ 1 for all k and j.
    """
    arrivals = _checked_order(order, workers)
    given = Constants(L=1.0, B=1.0) if constants is None else constants
    case = Case("convex", replace(given, sigma=0.0), workers, len(arrivals))
    smoothness, distance = case.need_positive("L"), case.need_positive("B")
    rule = DelayAdaptive(1 / (4 * workers * smoothness)) if stepsize is None else as_stepsize(stepsize)
    sizes, hats, points = _stepsizes(arrivals, workers, rule)
    late = float((sizes * (np.arange(1, len(sizes) + 1) - points)).max())
    allowed = smoothness * (workers * float(sizes.max()) + late) <= 1 + TOLERANCE
    bound = float(convex_bound(case, float(sizes.max()), float(hats.sum()))) if allowed else math.inf
    return WorstCase(tuple(arrivals), _solved(points, sizes, hats, smoothness, distance), bound)


def _checked_order(order: Sequence[int], workers: int) -> list[int]:
    workers = checks.at_least(1, workers, "workers", "somebody has to compute gradients")
    arrivals = list(order)
    if not 1 <= len(arrivals) <= MOST_STEPS:
        raise ValueError(f"order must have 1 to {MOST_STEPS} arrivals, got {len(arrivals)}: more take too long")
    if not all(worker in range(workers) for worker in arrivals):
        raise ValueError(f"order must contain workers from 0 to {workers - 1}, got {arrivals}")
    return [int(worker) for worker in arrivals]


def _stepsizes(order: list[int], workers: int, rule: Stepsize) -> tuple[Any, Any, list[int]]:
    """Return the stepsize of every step, γ̂ of x_1 … x_K, and the version of the point of every step."""
    steps, held = len(order), [0] * workers
    versions = []
    for step, worker in enumerate(order, start=1):
        versions.append(held[worker])
        held[worker] = step
    sizes = np.array([float(rule(step - version, workers, step)) for step, version in enumerate(versions, start=1)])
    hats = np.zeros(steps + 1)
    hats[versions] = sizes
    for version in held:
        hats[version] = float(rule(max(1, steps - version), workers, steps)) if version else 0.0
    return sizes, hats[1:], versions


def _solved(points: list[int], sizes: Any, hats: Any, smoothness: float, distance: float) -> float:
    """Return the solution of the semidefinite program."""
    try:
        from PEPit import PEP
        from PEPit.functions import SmoothConvexFunction
    except ImportError as error:
        raise ImportError("worst_case needs PEPit: pip install 'nowait[exact]'") from error
    problem = PEP()
    function = problem.declare_function(SmoothConvexFunction, L=smoothness)
    best = function.stationary_point()
    iterates = [problem.set_initial_point()]
    problem.set_initial_condition((iterates[0] - best) ** 2 <= distance**2)
    gradients: dict[int, Any] = {}
    for point, size in zip(points, sizes.tolist(), strict=True):
        if point not in gradients:
            gradients[point] = function.gradient(iterates[point])
        iterates.append(iterates[-1] - size * gradients[point])
    shares = (hats / hats.sum()).tolist()
    answer = sum(
        (share * iterate for share, iterate in zip(shares[1:], iterates[2:], strict=True)), shares[0] * iterates[1]
    )
    problem.set_performance_metric(function(answer) - function(best))
    return float(problem.solve(verbose=0))
