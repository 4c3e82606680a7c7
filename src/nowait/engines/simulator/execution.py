"""Executes a plan with compiled code."""

from __future__ import annotations

from functools import cache
from typing import Any, final

import numpy as np

from nowait.core import sampler
from nowait.core.types import Floats, Vector
from nowait.engines.simulator.plan import NotPlannable, Plan
from nowait.problems.compiled_data import QUADRATIC, ProblemData

MOST_BYTES_OF_GRADIENTS = 1 << 28
"""Pending gradients of more than one row are stored as vectors, unless that takes more memory than this."""
MOST_BYTES_IN_ALL = 1 << 29
"""Runs whose pending gradients would take more memory than this are not compiled."""


@final
class Execution:
    """Executes one or several runs of a plan, which differ in the factor of their stepsizes."""

    def __init__(
        self, data: ProblemData, plan: Plan, seed: int, initial: Vector, factors: Floats, shares: Floats | None
    ) -> None:
        compiled = kernels()
        versions = np.ascontiguousarray(plan.arrivals["version"])
        order, starts = compiled.order_by_version(versions, plan.num_steps)
        slots = int(compiled.most_pending(plan.codes, starts))
        runs, dimension = len(factors), len(initial)
        slopes_only = _keeps_slopes(data, initial, runs * slots)
        if not slopes_only and runs * slots * initial.nbytes > MOST_BYTES_IN_ALL:
            # The server needs less: it keeps one point for all gradients of a version.
            raise NotPlannable(f"pending gradients would take more than {MOST_BYTES_IN_ALL >> 20} MiB")
        single = slopes_only and data.batch == 1
        shape, dtype = (data.batch, np.dtype(np.float64)) if slopes_only else (dimension, initial.dtype)
        self.points = np.tile(initial, (runs, 1))
        """The current params of each run."""
        self.averages = np.zeros((runs, dimension))
        """The weighted sum of iterates of an averaging output, by run."""
        self.alive = np.ones(runs, dtype=np.bool_)
        """Whether the gradients of each run have been finite so far."""
        self.gradient_norms = np.zeros(len(plan.arrivals))
        """The norms of the gradients of the first run, by arrival."""
        self._work = compiled.Work(
            data=data,
            slopes_only=slopes_only,
            stream=np.uint64(sampler(seed).own_key),
            workers=np.ascontiguousarray(plan.arrivals["worker"]),
            jobs=np.ascontiguousarray(plan.arrivals["job"]),
            gradient_norms=self.gradient_norms,
            codes=plan.codes,
            numbers=plan.numbers,
            order=order,
            starts=starts,
            slots=np.empty(len(plan.arrivals), np.int32),
            free=np.arange(slots, dtype=np.int32),
            state=np.array([0, 0, -1, -1, -1, slots]),
            factors=factors,
            alive=self.alive,
            points=self.points,
            pending=np.empty((runs, slots, shape), dtype),
            sums=np.zeros((runs, plan.num_sums, dimension), initial.dtype),
            gradients=np.empty((runs, dimension), initial.dtype),
            shares=np.empty(0) if shares is None else shares,
            averages=self.averages,
            rows=np.empty(slots if single else data.batch, np.int64),
            cell=np.empty(2, initial.dtype),
        )
        self._execute = compiled.execute_rows if single else compiled.execute_vectors

    def run_to(self, end: int) -> None:
        """Execute the instructions before index ``end`` of the plan's codes."""
        self._execute(self._work, end)

    def finite(self) -> Any:
        """Return a mask of the runs whose gradients and params are finite."""
        return self.alive & np.isfinite(self.points).all(axis=1)


def _keeps_slopes(data: ProblemData, initial: Vector, entries: int) -> bool:
    """Return whether pending gradients are stored as slopes of their rows, on which alone they must depend."""
    plain = data.kind != QUADRATIC and data.l2 == 0.0 and initial.dtype == data.targets.dtype == np.float64
    return plain and (data.batch == 1 or entries * initial.nbytes > MOST_BYTES_OF_GRADIENTS)


@cache
def kernels() -> Any:
    """The module ``execution_kernels``, imported at the first use."""
    from nowait.engines.simulator import execution_kernels as module

    return module
