"""Short runs are not compiled while no compiled code is cached: compiling would take longer than the run."""

from __future__ import annotations

import math
from typing import final

from nowait.core import LastIterate
from nowait.core.schedule import speaks_for
from nowait.engines.budget import Budget
from nowait.engines.session import Parts
from nowait.engines.simulator.blueprint import SPEEDS_BEHAVIOUR
from nowait.engines.simulator.execution import kernels
from nowait.numerics.compiled import is_ready
from nowait.problems import LinearModel
from nowait.speeds import Speeds

FEW_GRADIENTS = 4_000
"""The reference simulation computes about this many gradients in the time that compiling takes."""


@final
class Patience:
    """How many gradients this process may still compute without compiled code."""

    def __init__(self, gradients: float) -> None:
        self.gradients = gradients

    def allows(self, gradients: float) -> bool:
        """Return whether a run may compute this many; if so, they are subtracted."""
        allowed = gradients <= self.gradients
        self.gradients -= gradients if allowed else 0
        return allowed


PATIENCE = Patience(FEW_GRADIENTS)


def is_better_not_compiled(parts: Parts, speeds: Speeds, seed: int) -> bool:
    """Return whether a run is short, its code not compiled yet, and the reference simulation records the same bits.

    Otherwise the last digits of averages differ, and of gradient norms where gradients are slopes of one row.
    """
    one_row = isinstance(parts.problem, LinearModel) and parts.problem.batch_size == 1
    if one_row or not isinstance(parts.server.output, LastIterate) or parts.capabilities.compiled_data is None:
        return False
    gradients = most_gradients(parts.budget, speeds, seed)
    return gradients <= PATIENCE.gradients and not is_ready(kernels().execute_vectors) and PATIENCE.allows(gradients)


def most_gradients(budget: Budget, speeds: Speeds, seed: int) -> float:
    """Return about how many gradients a run computes at most; infinity if that is unknown."""
    bounds = [math.inf if budget.gradients is None else budget.gradients]
    if budget.steps is not None:
        bounds.append(budget.steps * speeds.num_workers)
    declared = speaks_for(type(speeds), "formula", SPEEDS_BEHAVIOUR)
    formula = speeds.formula(seed) if declared and budget.seconds is not None else None
    if formula is not None and budget.seconds is not None:
        typical = formula.first.tolist()
        workers = range(speeds.num_workers)
        bounds.append(sum(budget.seconds / typical[worker % len(typical)] for worker in workers))
    return min(bounds)
