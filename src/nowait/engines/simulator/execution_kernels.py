"""Compiled execution of plans. Imported when a run needs it: it imports numba.

From the step that makes its version until its arrival a gradient is *pending*. For a linear model without a regulariser
only the slopes of its rows are kept (``slopes_only``), otherwise the gradient itself. Each is computed while the params
of its version are the current ones; the plan says which arrivals belong to which version. Steps use the same operations
as the server's, for several runs at a time that differ in the factor of their stepsizes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nowait.engines.simulator.plan import ADD, APPLY, ARRIVE, CLEAR, EVENT, FIRST_SUM, STEP
from nowait.engines.simulator.sampling_kernels import draw_rows, drawn_row
from nowait.numerics.compiled import compiled
from nowait.numerics.kernels import add_scaled, squared_norm
from nowait.numerics.lanes import dot_of_rows, step_and_dot
from nowait.numerics.prefetch import prefetch_row
from nowait.problems.compiled_data import DENSE, ProblemData
from nowait.problems.kernels import (
    fill_gradient,
    fill_slopes,
    gradient_of_slopes,
    slope,
    sparse_margin,
    subtract_row,
    subtract_sparse_row,
)

NEXT_CODE, NEXT_NUMBER, ARRIVAL, VERSION, SLOT, NUM_FREE = range(6)
"""Indices into ``Work.state``, the position of the execution. Before the start, the version is -1."""
BEGIN = -1
"""A pseudo-instruction that makes version 0 current."""


class Work(NamedTuple):
    """Everything that the execution of a plan reads and writes, for one or several runs."""

    data: ProblemData
    slopes_only: bool
    stream: np.uint64
    """The key of the stream of samples."""
    workers: Any
    """The worker of each arrival."""
    jobs: Any
    gradient_norms: Any
    codes: Any
    numbers: Any
    order: Any
    """The arrivals by version; those of version v begin at ``starts[v]``."""
    starts: Any
    slots: Any
    """The slot of each arrival in ``pending``."""
    free: Any
    """The free slots: the first ``state[NUM_FREE]`` entries."""
    state: Any
    factors: Any
    """The factor of the stepsizes, by run."""
    alive: Any
    """Whether the gradients have been finite so far, by run."""
    points: Any
    pending: Any
    sums: Any
    gradients: Any
    """The gradient being handled, by run; not used where gradients are slopes of one row."""
    shares: Any
    """The share of each version in the output; empty if the output is the last iterate."""
    averages: Any
    rows: Any
    """A buffer for the rows of a batch; where gradients are slopes of one row, that row by slot."""
    cell: Any
    """A buffer of two numbers with the dtype of the points, to round scalars to it."""


@compiled
def order_by_version(versions: Any, num_steps: int) -> Any:
    """Return the arrivals sorted by version, and the index where those of each version begin."""
    starts = np.zeros(num_steps + 2, np.int64)
    for version in versions:
        starts[version + 1] += 1
    for version in range(num_steps + 1):
        starts[version + 1] += starts[version]
    places = starts[:-1].copy()
    order = np.empty(versions.size, np.int64)
    for row in range(versions.size):
        order[places[versions[row]]] = row
        places[versions[row]] += 1
    return order, starts


@compiled
def most_pending(codes: Any, starts: Any) -> Any:
    """Return the largest number of gradients pending at a time, including the one being handled."""
    pending = most = starts[1]
    version = arrived = 0
    for code in codes:
        if code == ARRIVE:
            pending -= arrived
            arrived = 1
        elif code in (APPLY, STEP):
            version += 1
            pending += starts[version + 1] - starts[version]
            most = max(most, pending)
    return max(1, most)


@compiled
def subtract(point: Any, direction: Any, stepsize: float, scale: float, cell: Any) -> None:
    """``point -= stepsize * (scale * direction)``, in the dtype of the point (which ``cell`` has)."""
    cell[0], cell[1] = stepsize, scale
    gamma, factor = cell[0], cell[1]
    if scale == 1.0:
        for j in range(point.size):
            point[j] = point[j] - gamma * direction[j]
    else:
        for j in range(point.size):
            point[j] = point[j] - gamma * (direction[j] * factor)


@compiled
def use_sums(
    codes: Any, numbers: Any, at: int, number: int, factors: Any, alive: Any, points: Any, sums: Any, cell: Any
) -> Any:
    """Execute an instruction that needs no gradient. Returns the indices of the next one and of its numbers."""
    code = codes[at]
    if code == EVENT:
        return at + 1, number
    total = codes[at + 1] - FIRST_SUM
    if code == CLEAR:
        for run in range(sums.shape[0]):
            for j in range(sums.shape[2]):
                sums[run, total, j] = 0.0
        return at + 2, number
    if code == STEP:
        for run in range(alive.size):
            if alive[run]:
                stepsize = numbers[number] * factors[run]
                subtract(points[run], sums[run, total], stepsize, numbers[number + 1], cell)
        return at + 2, number + 2
    cell[0] = numbers[number]  # MERGE
    for run in range(alive.size):
        if alive[run]:
            add_scaled(sums[run, total], sums[run, codes[at + 2] - FIRST_SUM], cell[0])
    return at + 3, number + 1


@compiled
def add_share(share: float, points: Any, averages: Any) -> None:
    """Add the share of the current points to the averages."""
    for run in range(points.shape[0]):
        for j in range(points.shape[1]):
            averages[run, j] += share * points[run, j]


@compiled
def execute_rows(work: Any, end: int) -> None:
    """Execute the instructions before index ``end`` of ``codes``, where a pending gradient is the slope of one row.

    Arrays are unpacked from their tuples once, and the code for every arrival is inline: a call that passes them all
    takes longer than a step.
    """
    data, state, alive, points, pending, sums = work.data, work.state, work.alive, work.points, work.pending, work.sums
    kind, features, values, columns, row_starts = data.kind, data.features, data.values, data.columns, data.row_starts
    model, targets, norms, row_order, shard_starts = data.model, data.targets, data.norms, data.order, data.starts
    codes, numbers, order, starts, gradient_norms = (
        work.codes,
        work.numbers,
        work.order,
        work.starts,
        work.gradient_norms,
    )
    stream, workers, jobs, slots, free = work.stream, work.workers, work.jobs, work.slots, work.free
    factors, cell, rows = work.factors, work.cell, work.rows
    at, number, arrival = state[NEXT_CODE], state[NEXT_NUMBER], state[ARRIVAL]
    version, slot, num_free, row = state[VERSION], state[SLOT], state[NUM_FREE], 0
    at_once, new_row, new_slot, expected, expected_row = False, 0, 0, np.int64(-1), 0
    if slot >= 0:
        row = rows[slot]
    while at < end or version < 0:
        code = BEGIN if version < 0 else codes[at]
        at_once = False
        if code == ARRIVE:
            if slot >= 0:
                free[num_free] = slot
                num_free += 1
            at, arrival = at + 1, arrival + 1
            slot = slots[arrival]
            row = rows[slot]
            for run in range(alive.size):
                if alive[run]:
                    norm = abs(pending[run, slot, 0]) * norms[row]
                    alive[run] = norm < np.inf
                    if run == 0:
                        gradient_norms[arrival] = norm
        elif code == APPLY:
            at_once = kind == DENSE and starts[version + 2] - starts[version + 1] == 1
            if at_once:
                new_arrival = order[starts[version + 1]]
                if new_arrival == expected:
                    new_row = expected_row
                else:
                    new_row = drawn_row(row_order, shard_starts, stream, workers[new_arrival], jobs[new_arrival])
                if version + 3 < starts.size and starts[version + 2] < starts[version + 3]:
                    expected = order[starts[version + 2]]
                    expected_row = drawn_row(row_order, shard_starts, stream, workers[expected], jobs[expected])
                    prefetch_row(features, expected_row)
                num_free -= 1
                new_slot = slots[new_arrival] = free[num_free]
                rows[new_slot] = new_row
            for run in range(alive.size):
                if alive[run]:
                    gamma, scale = numbers[number] * factors[run], pending[run, slot, 0]
                    if at_once:
                        margin = step_and_dot(points, run, features, row, new_row, scale, gamma)
                        pending[run, new_slot, 0] = slope(model, margin, float(targets[new_row]))
                    elif kind == DENSE:
                        subtract_row(features, row, scale, gamma, points, run)
                    else:
                        subtract_sparse_row(values, columns, row_starts, row, scale, gamma, points, run)
            at, number = at + 1, number + 1
        elif code == ADD:
            total = codes[at + 1] - FIRST_SUM
            for run in range(alive.size):
                if alive[run]:
                    weight, scale = -numbers[number], pending[run, slot, 0]
                    if kind == DENSE:
                        subtract_row(features, row, scale, weight, sums[run], total)
                    else:
                        subtract_sparse_row(values, columns, row_starts, row, scale, weight, sums[run], total)
            at, number = at + 2, number + 1
        elif code != BEGIN:
            at, number = use_sums(codes, numbers, at, number, factors, alive, points, sums, cell)
        if code in (APPLY, STEP, BEGIN):
            version += 1
            if work.shares.size and work.shares[version] > 0.0:
                add_share(work.shares[version], points, work.averages)
            for place in range(starts[version], starts[version] if at_once else starts[version + 1]):
                new_row = drawn_row(row_order, shard_starts, stream, workers[order[place]], jobs[order[place]])
                num_free -= 1
                new_slot = slots[order[place]] = free[num_free]
                rows[new_slot] = new_row
                for run in range(alive.size):
                    if alive[run]:
                        if kind == DENSE:
                            margin = dot_of_rows(features, new_row, points, run)
                        else:
                            margin = sparse_margin(values, columns, row_starts, new_row, points[run])
                        pending[run, new_slot, 0] = slope(model, margin, float(targets[new_row]))
    state[NEXT_CODE], state[NEXT_NUMBER], state[ARRIVAL] = at, number, arrival
    state[VERSION], state[SLOT], state[NUM_FREE] = version, slot, num_free


@compiled
def execute_vectors(work: Any, end: int) -> None:
    """Execute the instructions before index ``end`` of ``codes``, where gradients are vectors when they are used."""
    data, state, alive, points, pending, sums = work.data, work.state, work.alive, work.points, work.pending, work.sums
    codes, numbers, order, starts, gradient_norms = (
        work.codes,
        work.numbers,
        work.order,
        work.starts,
        work.gradient_norms,
    )
    stream, workers, jobs, slots, free = work.stream, work.workers, work.jobs, work.slots, work.free
    factors, cell = work.factors, work.cell
    gradients, rows = work.gradients, work.rows
    at, number, arrival = state[NEXT_CODE], state[NEXT_NUMBER], state[ARRIVAL]
    version, slot, num_free = state[VERSION], state[SLOT], state[NUM_FREE]
    while at < end or version < 0:
        code = BEGIN if version < 0 else codes[at]
        if code == ARRIVE:
            if slot >= 0:
                free[num_free] = slot
                num_free += 1
            at, arrival = at + 1, arrival + 1
            slot = slots[arrival]
            if work.slopes_only:
                draw_rows(data, stream, workers[arrival], jobs[arrival], rows)
            for run in range(alive.size):
                if alive[run]:
                    if work.slopes_only:
                        gradient_of_slopes(data, rows, pending[run, slot], gradients[run])
                    else:
                        for j in range(gradients.shape[1]):
                            gradients[run, j] = pending[run, slot, j]
                    norm = math.sqrt(squared_norm(gradients[run]))
                    alive[run] = norm < np.inf
                    if run == 0:
                        gradient_norms[arrival] = norm
        elif code == APPLY:
            for run in range(alive.size):
                if alive[run]:
                    subtract(points[run], gradients[run], numbers[number] * factors[run], 1.0, cell)
            at, number = at + 1, number + 1
        elif code == ADD:
            cell[0] = numbers[number]
            for run in range(alive.size):
                if alive[run]:
                    add_scaled(sums[run, codes[at + 1] - FIRST_SUM], gradients[run], cell[0])
            at, number = at + 2, number + 1
        elif code != BEGIN:
            at, number = use_sums(codes, numbers, at, number, factors, alive, points, sums, cell)
        if code in (APPLY, STEP, BEGIN):
            version += 1
            if work.shares.size and work.shares[version] > 0.0:
                add_share(work.shares[version], points, work.averages)
            for place in range(starts[version], starts[version + 1]):
                worker = workers[order[place]]
                key = draw_rows(data, stream, worker, jobs[order[place]], rows)
                num_free -= 1
                new_slot = slots[order[place]] = free[num_free]
                for run in range(alive.size):
                    if alive[run]:
                        if work.slopes_only:
                            fill_slopes(data, rows, points[run], pending[run, new_slot])
                        else:
                            fill_gradient(data, rows, key, worker, points[run], pending[run, new_slot])
    state[NEXT_CODE], state[NEXT_NUMBER], state[ARRIVAL] = at, number, arrival
    state[VERSION], state[SLOT], state[NUM_FREE] = version, slot, num_free
