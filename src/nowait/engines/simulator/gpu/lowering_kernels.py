"""Compiled code that turns a plan into operations. Imported when a sweep needs it: it imports numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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
    batch: int
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
def release(work: Any, slot: int, num_free: int) -> int:
    """Count one holder of a slot less; without holders it is free. Returns the number of free slots."""
    work.holds[slot] -= 1
    if work.holds[slot] > 0:
        return num_free
    work.free[num_free] = slot
    return num_free + 1


@inlined
def use(work: Any, slot: int, weight: float) -> None:
    """Append the operations of a step of ``weight`` along the gradient in a slot."""
    batch = work.batch
    for i in range(batch):
        number = work.counts[OPERATIONS]
        work.operations[number, 0] = work.rows[slot, i]
        work.operations[number, 1] = slot * batch + i
        work.operations[number, 2] = NONE
        work.operations[number, 3] = 0
        work.weights[number] = weight / batch
        work.counts[OPERATIONS] += 1


@inlined
def evaluate(work: Any, slot: int) -> None:
    """Append the operations that compute the slopes of the batch in a slot at the current params.

    The first one is part of the latest operation, if that has only made a step.
    """
    batch = work.batch
    for i in range(batch):
        number = work.counts[OPERATIONS] - 1
        if number < 0 or work.operations[number, 2] != NONE:
            number += 1
            work.operations[number, 0] = NONE
            work.operations[number, 1] = 0
            work.weights[number] = 0.0
            work.counts[OPERATIONS] += 1
        work.operations[number, 2] = work.rows[slot, i]
        work.operations[number, 3] = slot * batch + i


@inlined
def evaluate_version(work: Any, version: int, num_free: int) -> int:
    """Append the slopes of all gradients of a version. Returns the number of free slots."""
    for place in range(work.starts[version], work.starts[version + 1]):
        arrival = work.order[place]
        num_free -= 1
        slot = work.slots[arrival] = work.free[num_free]
        work.counts[SLOTS] = max(work.counts[SLOTS], slot + 1)
        work.holds[slot] = 1
        worker = work.workers[arrival]
        key = ticket_key(work.stream, worker, work.jobs[arrival])
        for i in range(work.batch):
            work.rows[slot, i] = draw_row(work.row_order, work.shard_starts, key, worker, i)
        evaluate(work, slot)
    return num_free


@compiled
def lower(work: Any) -> None:
    """Write the operations of a plan without MERGE."""
    codes, numbers, num_free = work.codes, work.numbers, work.free.size
    at = number = version = stop = num_terms = 0
    arrival, slot, free_term = NONE, NONE, NONE
    num_free = evaluate_version(work, version, num_free)
    while at < codes.size:
        while stop < work.stops.size and work.stops[stop] <= at:
            work.stopped[stop] = work.counts[OPERATIONS]
            stop += 1
        code = codes[at]
        total = codes[at + 1] - FIRST_SUM if code in (ADD, CLEAR, STEP) else 0
        at += 2 if code in (ADD, CLEAR, STEP) else 1
        if code == ARRIVE:
            if slot != NONE:
                num_free = release(work, slot, num_free)
            arrival += 1
            slot = work.slots[arrival]
        elif code == APPLY:
            use(work, slot, numbers[number])
            number += 1
        elif code == ADD:
            term = num_terms if free_term == NONE else free_term
            if free_term == NONE:
                num_terms += 1
            else:
                free_term = work.terms[free_term, 1]
            work.terms[term, 0], work.terms[term, 1] = slot, work.first_terms[total]
            work.term_weights[term] = numbers[number]
            work.first_terms[total] = term
            work.holds[slot] += 1
            number += 1
        elif code == CLEAR:
            term = work.first_terms[total]
            while term != NONE:
                num_free = release(work, work.terms[term, 0], num_free)
                after = work.terms[term, 1]
                work.terms[term, 1] = free_term
                free_term, term = term, after
            work.first_terms[total] = NONE
        elif code == STEP:
            term = work.first_terms[total]
            while term != NONE:
                weight = numbers[number] * (numbers[number + 1] * work.term_weights[term])
                use(work, work.terms[term, 0], weight)
                term = work.terms[term, 1]
            number += 2
        if code in (APPLY, STEP):
            version += 1
            num_free = evaluate_version(work, version, num_free)
    while stop < work.stops.size:
        work.stopped[stop] = work.counts[OPERATIONS]
        stop += 1
