"""Compiled code that turns a plan into operations. Imported when a sweep needs it: it imports numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nowait.engines.simulator.execution_kernels import BEGIN
from nowait.engines.simulator.plan import ADD, APPLY, ARRIVE, CLEAR, FIRST_SUM, MERGE, STEP
from nowait.numerics.compiled import compiled, inlined
from nowait.numerics.random_kernels import ticket_key
from nowait.problems.kernels import draw_row

NONE = -1
"""In place of a row: an operation without this half. In place of a slot, term or instruction: there is none."""
OPERATIONS, SLOTS = range(2)
"""Indices into ``Lowering.counts``: the operations written, and the slots that were ever occupied."""


class Lowering(NamedTuple):
    """What the lowering of a plan reads and writes."""

    row_order: Any
    """Row numbers, shard by shard, as in ``ProblemData``."""
    shard_starts: Any
    stream: np.uint64
    """The key of the stream of samples."""
    workers: Any
    """The worker of each arrival."""
    jobs: Any
    codes: Any
    numbers: Any
    order: Any
    """The arrivals by version; those of version v begin at ``starts[v]``."""
    starts: Any
    stops: Any
    """Indices into ``codes``, ascending: how many operations come before each is written to ``stopped``."""
    stopped: Any
    operations: Any
    weights: Any
    slots: Any
    """The slot of each arrival."""
    free: Any
    """A stack of free slots."""
    rows: Any
    """The rows of the batch in each slot: [slot, row of the batch]."""
    holds: Any
    """How many sums hold the gradient in each slot; one more while its arrival is being handled."""
    first_terms: Any
    """The latest term of each sum. The terms of a sum are a linked list."""
    terms: Any
    """The slot of each term, and the term before it: [term, 2]."""
    term_weights: Any
    counts: Any


@compiled
def num_operations(codes: Any, num_sums: int, num_arrivals: int, batch: int) -> Any:
    """Return an upper bound for the number of operations; -1 if the plan merges sums."""
    lengths = np.zeros(num_sums, np.int64)
    total, at = num_arrivals, 0
    while at < codes.size:
        code = codes[at]
        at += 1
        if code == MERGE:
            return NONE
        if code == APPLY:
            total += 1
        elif code in (ADD, CLEAR, STEP):
            number = codes[at] - FIRST_SUM
            at += 1
            if code == ADD:
                lengths[number] += 1
            elif code == CLEAR:
                lengths[number] = 0
            else:
                total += lengths[number]
    return total * batch


@compiled
def most_held(codes: Any, starts: Any, num_sums: int) -> Any:
    """Return the largest number of gradients that are pending, being handled or held by sums, at a time."""
    lengths = np.zeros(num_sums, np.int64)
    pending = most = starts[1]
    held = version = at = 0
    while at < codes.size:
        code = codes[at]
        at += 1
        if code == ARRIVE:
            pending -= 1
        elif code in (ADD, CLEAR, STEP):
            number = codes[at] - FIRST_SUM
            at += 1
            if code == ADD:
                lengths[number] += 1
                held += 1
            elif code == CLEAR:
                held -= lengths[number]
                lengths[number] = 0
        if code in (APPLY, STEP):
            version += 1
            pending += starts[version + 1] - starts[version]
        most = max(most, pending + held + 1)
    return most


@inlined
def release(holds: Any, free: Any, num_free: int, slot: int) -> int:
    """Count one holder of a slot less; without holders it is free. Returns the number of free slots."""
    holds[slot] -= 1
    if holds[slot] > 0:
        return num_free
    free[num_free] = slot
    return num_free + 1


@inlined
def use(operations: Any, weights: Any, end: int, rows: Any, slot: int, weight: float) -> int:
    """Write the operations of a step of ``weight`` along the gradient in a slot. Returns the end of the operations."""
    batch = rows.shape[1]
    for i in range(batch):
        operations[end, 0], operations[end, 1] = rows[slot, i], slot * batch + i
        operations[end, 2], operations[end, 3] = NONE, 0
        weights[end] = weight / batch
        end += 1
    return end


@inlined
def evaluate(operations: Any, weights: Any, end: int, rows: Any, slot: int) -> int:
    """Write the operations that compute the slopes of the batch in a slot at the current params.

    The first one is part of the latest operation, if that has only made a step. Returns the end of the operations.
    """
    batch = rows.shape[1]
    for i in range(batch):
        if end == 0 or operations[end - 1, 2] != NONE:
            operations[end, 0], operations[end, 1] = NONE, 0
            weights[end] = 0.0
            end += 1
        operations[end - 1, 2], operations[end - 1, 3] = rows[slot, i], slot * batch + i
    return end


@compiled
def lower(work: Any) -> None:
    """Write the operations of a plan without MERGE.

    Arrays are unpacked from their tuple once: a call that passes them all takes longer than an operation.
    """
    codes, numbers, order, starts, stops = work.codes, work.numbers, work.order, work.starts, work.stops
    workers, jobs, stream, row_order, shard_starts = (
        work.workers,
        work.jobs,
        work.stream,
        work.row_order,
        work.shard_starts,
    )
    operations, weights, slots, free, rows = work.operations, work.weights, work.slots, work.free, work.rows
    holds, first_terms, terms, term_weights = work.holds, work.first_terms, work.terms, work.term_weights
    at = number = stop = num_terms = end = used_slots = 0
    num_free, version = free.size, NONE
    arrival, slot, free_term = NONE, NONE, NONE
    while at < codes.size or version < 0:
        code = BEGIN if version < 0 else codes[at]
        while code != BEGIN and stop < stops.size and stops[stop] <= at:
            work.stopped[stop] = end
            stop += 1
        total = 0
        if code in (ADD, CLEAR, STEP):
            total = codes[at + 1] - FIRST_SUM
            at += 1
        if code == ARRIVE:
            if slot != NONE:
                num_free = release(holds, free, num_free, slot)
            arrival += 1
            slot = slots[arrival]
        elif code == APPLY:
            end = use(operations, weights, end, rows, slot, numbers[number])
            number += 1
        elif code == ADD:
            term = num_terms if free_term == NONE else free_term
            if free_term == NONE:
                num_terms += 1
            else:
                free_term = terms[free_term, 1]
            terms[term, 0], terms[term, 1] = slot, first_terms[total]
            term_weights[term] = numbers[number]
            first_terms[total] = term
            holds[slot] += 1
            number += 1
        elif code == CLEAR:
            term = first_terms[total]
            while term != NONE:
                num_free = release(holds, free, num_free, terms[term, 0])
                after = terms[term, 1]
                terms[term, 1] = free_term
                free_term, term = term, after
            first_terms[total] = NONE
        elif code == STEP:
            term = first_terms[total]
            while term != NONE:
                weight = numbers[number] * (numbers[number + 1] * term_weights[term])
                end = use(operations, weights, end, rows, terms[term, 0], weight)
                term = terms[term, 1]
            number += 2
        at += 0 if code == BEGIN else 1
        if code in (APPLY, STEP, BEGIN):
            version += 1
            for place in range(starts[version], starts[version + 1]):
                num_free -= 1
                new_slot = slots[order[place]] = free[num_free]
                used_slots = max(used_slots, new_slot + 1)
                holds[new_slot] = 1
                worker = workers[order[place]]
                key = ticket_key(stream, worker, jobs[order[place]])
                for i in range(rows.shape[1]):
                    rows[new_slot, i] = draw_row(row_order, shard_starts, key, worker, i)
                end = evaluate(operations, weights, end, rows, new_slot)
    while stop < stops.size:
        work.stopped[stop] = end
        stop += 1
    work.counts[OPERATIONS], work.counts[SLOTS] = end, used_slots
