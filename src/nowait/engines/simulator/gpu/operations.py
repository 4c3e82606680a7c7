"""Turns plans into operations: the only instructions that the GPU knows.

An operation makes a step along the gradient of one row, ``x -= weight * slope[entry] * features[row]``. Then it
computes the slope of another row at the new x and stores it under an entry of its own. Either half may be missing. A
step along a batch or a sum is several operations. The samples are drawn here, so the GPU draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import sampler
from nowait.core.types import Floats, Integers
from nowait.engines.simulator.execution import kernels as execution_kernels
from nowait.engines.simulator.gpu.support import NotOnGpuError
from nowait.engines.simulator.plan import ADD, Plan
from nowait.problems.compiled_data import ProblemData

MOST_PER_GRADIENT = 8
"""Plans with more operations than this per gradient and row of its batch are not executed on a GPU."""
PADDING = np.array([[-1, 0, -1, 0], [-1, 0, -1, 0]], np.int32)
"""Empty operations after the last one: the kernel reads ahead by two."""


@final
@dataclass(frozen=True, eq=False)
class Operations:
    """The operations of a plan."""

    table: Any
    """Row and entry of the gradient that is used, row and entry of the slope that is computed; row -1 means none.

    Int32 [operation, 4], an array or a tensor on the GPU."""
    weights: Any
    """The weight of each step, which the factor of a run multiplies. Float64, where ``table`` is."""
    stops: Integers
    """How many operations are executed before each evaluation."""
    slots: int
    """How many gradients are stored at a time; each has one entry for every row of its batch."""

    def __len__(self) -> int:
        return len(self.weights)


def operations_of(plan: Plan, events: list[int], data: ProblemData, seed: int) -> Operations:
    """Return the operations of a plan, with a stop after each of these events."""
    compiled, batch = _kernels(), data.batch
    most = int(compiled.num_operations(plan.codes, plan.num_sums, len(plan.arrivals), batch))
    if most < 0:
        raise NotOnGpuError("the method adds sums of gradients to each other")
    if most > MOST_PER_GRADIENT * batch * max(1, len(plan.arrivals)):
        raise NotOnGpuError("the method makes steps along sums of many gradients, again and again")
    versions = np.ascontiguousarray(plan.arrivals["version"])
    order, starts = execution_kernels().order_by_version(versions, plan.num_steps)
    slots = int(compiled.most_held(plan.codes, starts, plan.num_sums))
    if slots * batch > np.iinfo(np.int32).max:
        raise NotOnGpuError("too many gradients are in flight")
    num_adds = int(np.count_nonzero(plan.codes == ADD))
    work = compiled.Lowering(
        row_order=data.order,
        shard_starts=data.starts,
        stream=np.uint64(sampler(seed).own_key),
        workers=np.ascontiguousarray(plan.arrivals["worker"]),
        jobs=np.ascontiguousarray(plan.arrivals["job"]),
        codes=plan.codes,
        numbers=plan.numbers,
        order=order,
        starts=starts,
        stops=np.array([plan.moments.codes_after(event) for event in events], np.int64),
        stopped=np.empty(len(events), np.int64),
        operations=np.empty((most, 4), np.int32),
        weights=np.empty(most),
        slots=np.empty(len(plan.arrivals), np.int64),
        free=np.arange(slots, dtype=np.int64)[::-1].copy(),
        rows=np.empty((slots, batch), np.int64),
        holds=np.zeros(slots, np.int64),
        first_terms=np.full(plan.num_sums, -1, np.int64),
        terms=np.empty((num_adds, 2), np.int64),
        term_weights=np.empty(num_adds),
        counts=np.zeros(2, np.int64),
    )
    compiled.lower(work)
    written, used = work.counts.tolist()
    return Operations(work.operations[:written], work.weights[:written], work.stopped, max(1, used))


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Several runs that are executed together: the operations of their plans one after the other."""

    operations: list[Operations]
    """Those of each plan."""
    bounds: Integers
    """Where the operations of each plan begin, and after each evaluation: [evaluation + 1, plan].

    A plan with fewer evaluations than another has nothing more to execute."""
    factors: Floats
    """The factor of the weights, by run."""
    plans: NDArray[np.int32]
    """The plan of each run; runs with the same plan are neighbours."""
    slots: int

    @property
    def num_operations(self) -> int:
        """The number of operations of all plans together."""
        return sum(len(each) for each in self.operations)

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        return len(self.factors)

    def blocks(self, runs: int, processors: int = 1) -> NDArray[np.int32]:
        """Return plan, first run and end of the runs of each block of at most ``runs`` runs that share a plan.

        Blocks go to multiprocessors in turn. The order is such that the blocks of a plan are on few of them, where
        they find the rows that they all read in the cache.
        """
        starts = np.searchsorted(self.plans, np.arange(self.plans[-1] + 2))
        blocks = [
            (plan, first, min(first + runs, end))
            for plan, (begin, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
            for first in range(begin, end, runs)
        ]
        rounds = -(-len(blocks) // processors)
        order = [place for first in range(rounds) for place in range(first, len(blocks), rounds)]
        return np.array(blocks, np.int32)[order]


def batch_of(operations: list[Operations], factors: list[Floats]) -> Batch:
    """Return the batch of these plans, each with the factors of its runs."""
    begins = np.cumsum([0, *(len(each) for each in operations[:-1])])
    evaluations = max(len(each.stops) for each in operations)
    stops = [np.pad(each.stops, (0, evaluations - len(each.stops)), mode="edge") for each in operations]
    bounds = np.array([begins, *(begins + np.array(stops).T)]) if evaluations else begins[None]
    return Batch(
        operations=operations,
        bounds=bounds.astype(np.int64),
        factors=np.concatenate(factors),
        plans=np.repeat(np.arange(len(operations), dtype=np.int32), [len(each) for each in factors]),
        slots=max(each.slots for each in operations),
    )


@cache
def _kernels() -> Any:
    from nowait.engines.simulator.gpu import lowering_kernels as module

    return module
