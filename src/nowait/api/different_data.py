"""Warns of methods that give the data of fast workers more weight, if every worker has data of its own."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import numpy as np

from nowait.core import Constant, Method, Problem
from nowait.core.capabilities import Capabilities
from nowait.core.problem import checked_problem, initial_params
from nowait.core.stepsizes import Stepsize
from nowait.core.types import Floats, Vector
from nowait.methods import AsynchronousSGD
from nowait.speeds import Speeds
from nowait.theory import heterogeneity_floor

logger = logging.getLogger("nowait")

DESCENT = 10
"""Differences are those after so many gradient steps: nearer to the answer than the start."""
FIRST_STEP = 1e-3
"""The length of the first step, divided by 1 + ‖x_0‖."""
MOST_NUMBERS = 10_000_000
"""The differences of the workers' gradients are not computed if they have more entries, which take 80 MB."""
ROUNDING = 1e-12
"""A predicted floor below this share of ζ² is 0, up to rounding: all workers are equally fast."""


def warn_of_different_data(
    problem: Problem,
    methods: Mapping[str, Method],
    num_workers: int,
    seconds: Floats | None = None,
    initial: Vector | None = None,
) -> None:
    """Warn if the problem is split and methods do not weigh the workers' data equally; say where they stop.

    ``seconds`` are the workers' seconds per gradient; None if they are not known. The prediction takes as long as about
    a dozen gradients of F; there is none for problems without ``gradient_of_worker``.
    """
    capabilities = Capabilities.of(checked_problem(problem))
    biased = {name: method for name, method in methods.items() if not method.weighs_workers_equally(num_workers)}
    if capabilities.num_shards == 1 or num_workers == 1 or not biased or not logger.isEnabledFor(logging.WARNING):
        return
    floor = _floor(capabilities, problem, biased, num_workers, seconds, initial)
    if floor:
        logger.warning(
            "every worker has data of its own, and %s: the data of fast workers get more weight, so the run does not "
            "reach the minimum; %s. Use a method for different data, such as nw.GradientTable, or let all workers draw "
            "from the same data",
            _are_biased(list(biased)),
            floor,
        )


def usual_seconds(speeds: Speeds) -> Floats | None:
    """Return the mean seconds per gradient of every worker; None if no formula says them, or if they are infinite."""
    formula = speeds.formula(0)
    if formula is None:
        return None
    seconds = np.resize(formula.mean_seconds(), speeds.num_workers)
    return seconds if np.isfinite(seconds).all() else None


def known_seconds(speeds: Speeds | None, slowdown: Mapping[int, float] | None, num_workers: int) -> Floats | None:
    """Return the seconds per gradient, or factors of them, as ``speeds`` or ``slowdown`` say; None without both."""
    if speeds is not None:
        return usual_seconds(speeds)
    return None if not slowdown else np.array([slowdown.get(worker, 1.0) for worker in range(num_workers)])


def _floor(
    capabilities: Capabilities,
    problem: Problem,
    biased: Mapping[str, Method],
    num_workers: int,
    seconds: Floats | None,
    initial: Vector | None,
) -> str:
    """Return where biased methods stop, as a clause; empty if the workers are equally fast."""
    if capabilities.gradient_of_worker is None or num_workers * problem.dimension > MOST_NUMBERS:
        return _to_be_estimated(num_workers)
    start = initial_params(problem) if initial is None else initial
    before, gradients = _near_the_minimum(
        capabilities.gradient_of_worker, capabilities.full_gradient, start, num_workers
    )
    if not np.isfinite(gradients).all():
        return _to_be_estimated(num_workers)
    differences = gradients - gradients.mean(axis=0)
    zeta_squared = float((differences**2).sum(axis=1).max())
    if seconds is None:
        return f"‖∇F‖² can stop at ζ² = {zeta_squared:.2g} if speeds are very unequal (it is {before:.2g} at the start)"
    floors = [_floor_with(_rule_of(method), seconds, differences) for method in biased.values()]
    if max(floors) <= ROUNDING * zeta_squared:
        return ""
    who = "" if all(isinstance(method, AsynchronousSGD) for method in biased.values()) else " of asynchronous SGD"
    low, high = (f"{floor:.2g}" for floor in (min(floors), max(floors)))
    stops = f"stops at about {low if low == high else f'{low} to {high}'}"
    return f"‖∇F‖²{who} {stops} (ζ² = {zeta_squared:.2g}; ‖∇F‖² is {before:.2g} at the start)"


def _to_be_estimated(num_workers: int) -> str:
    return f"‖∇F‖² can stop at ζ², which nw.theory.estimate(problem, workers={num_workers}) estimates"


def _floor_with(rule: Stepsize, seconds: Floats, differences: Floats) -> float:
    """Return the floor with a stepsize rule, or with a constant stepsize if the rule is 0 in the first step."""
    try:
        return heterogeneity_floor(seconds, differences, rule)
    except ValueError:
        return heterogeneity_floor(seconds, differences, Constant(1.0))


def _near_the_minimum(
    of_worker: Callable[[Vector, int], Vector],
    of_all: Callable[[Vector], Vector] | None,
    start: Vector,
    num_workers: int,
) -> tuple[float, Floats]:
    """Return ‖∇F‖² at the start, and every worker's gradient at the best point of a short descent.

    Stepsizes are those of Barzilai and Borwein (1988), which need no other evaluations.
    """

    def gradients(point: Vector) -> Floats:
        return np.array([of_worker(point, worker) for worker in range(num_workers)], dtype=np.float64)

    def gradient(point: Vector) -> Floats:
        return gradients(point).mean(axis=0) if of_all is None else np.asarray(of_all(point), dtype=np.float64)

    point, slope = start, gradient(start)
    before = lowest = float(slope @ slope)
    best, stepsize = start, FIRST_STEP * (1 + float(np.linalg.norm(start))) / max(math.sqrt(before), 1e-300)
    for _ in range(DESCENT):
        ahead = (point - stepsize * slope).astype(start.dtype)
        next_slope = gradient(ahead)
        moved, bent = (ahead - point).astype(np.float64), next_slope - slope
        curvature, squared = float(moved @ bent), float(next_slope @ next_slope)
        if not (math.isfinite(squared) and curvature > 0):
            break
        if squared < lowest:
            best, lowest = ahead, squared
        point, slope, stepsize = ahead, next_slope, float(moved @ moved) / curvature
    return before, gradients(best)


def _rule_of(method: Method) -> Stepsize:
    """Return the stepsize rule of asynchronous SGD, and for other methods a constant one."""
    rule = method.stepsize if isinstance(method, AsynchronousSGD) else Constant(1.0)
    assert isinstance(rule, Stepsize)
    return rule


def _are_biased(names: list[str]) -> str:
    """Return that these methods do not weigh workers equally.

    >>> _are_biased(["A"]), _are_biased(["A", "B", "C"])
    ('A does not weigh all workers equally', 'A, B and C do not weigh all workers equally')
    """
    if len(names) == 1:
        return f"{names[0]} does not weigh all workers equally"
    return f"{', '.join(names[:-1])} and {names[-1]} do not weigh all workers equally"
