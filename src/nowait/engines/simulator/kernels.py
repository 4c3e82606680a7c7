"""Compiled execution of plans, and compiled schedules. Imported when a run needs it: it imports numba.

Between its ticket's version and its arrival a gradient is *pending*. For a linear model without a regulariser the
slopes of its rows are all there is to keep (``slopes_only``); otherwise the gradient itself is kept. Each is computed
while the params of its version are the current ones: the plan tells which arrivals belong to which version. Steps are
made by the same operations as the server's, for several runs at a time that differ in the factor of their stepsizes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nowait.core.compiled import compiled
from nowait.core.kernels import add_scaled, squared_norm
from nowait.core.random_kernels import ticket_key
from nowait.engines.simulator.plan import ADD, APPLY, ARRIVE, CLEAR, FIRST_SUM, MERGE, STEP
from nowait.problems.compiled_data import ProblemData
from nowait.problems.kernels import (
    draw_rows,
    fill_gradient,
    fill_slopes,
    gradient_of_slopes,
    slope_of_row,
    subtract_row,
)
from nowait.speeds.formula import Formula
from nowait.speeds.kernels import finish_of, seconds_of

NEXT_CODE, NEXT_NUMBER, ROW, VERSION, SLOT, NUM_FREE = range(6)
"""What ``Work.state`` holds: where the execution stands."""


class Work(NamedTuple):
    """Everything that the execution of a plan reads and writes, for one or several runs."""

    data: ProblemData
    slopes_only: bool
    stream: np.uint64
    """The key of the stream of samples."""
    arrivals: Any
    codes: Any
    numbers: Any
    order: Any
    """The arrivals by version; those of version v begin at ``starts[v]``."""
    starts: Any
    slots: Any
    """The slot of each arrival in ``pending``."""
    free: Any
    """The slots that are free, of which there are ``state[NUM_FREE]``."""
    state: Any
    factors: Any
    """By run: what its stepsizes are multiplied with."""
    alive: Any
    """By run: whether its gradients have been finite so far."""
    points: Any
    pending: Any
    sums: Any
    gradients: Any
    """By run: the gradient being handled, where ``single`` is false."""
    shares: Any
    """By version: its share in the answer; empty if the answer is the last point."""
    averages: Any
    rows: Any
    """The batch of the gradient being handled."""
    new_rows: Any
    cell: Any
    """Two numbers in the precision of the points."""


@compiled
def order_by_version(versions: Any, num_steps: int) -> Any:
    """The arrivals sorted by version, and where those of each version begin."""
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
    """How many gradients are pending at a time, at most, the one being handled included."""
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
def reach_version(work: Any) -> None:
    """The points are those of the next version: the gradients taken at them become pending."""
    version = work.state[VERSION]
    if work.shares.size and work.shares[version] > 0.0:
        for run in range(work.points.shape[0]):
            for j in range(work.points.shape[1]):
                work.averages[run, j] += work.shares[version] * work.points[run, j]
    rows = work.new_rows
    for place in range(work.starts[version], work.starts[version + 1]):
        row = work.order[place]
        worker = work.arrivals[row].worker
        key = ticket_key(work.stream, worker, work.arrivals[row].job)
        draw_rows(work.data, key, worker, rows)
        work.state[NUM_FREE] -= 1
        slot = work.slots[row] = work.free[work.state[NUM_FREE]]
        for run in range(work.points.shape[0]):
            if not work.alive[run]:
                continue
            if not work.slopes_only:
                fill_gradient(work.data, rows, key, worker, work.points[run], work.pending[run, slot])
            elif rows.size == 1:
                work.pending[run, slot, 0] = slope_of_row(work.data, rows[0], work.points[run])
            else:
                fill_slopes(work.data, rows, work.points[run], work.pending[run, slot])


@compiled
def is_single(work: Any) -> Any:
    """Is a pending gradient the slope of one row, so that it need not be written out?"""
    return work.slopes_only and work.rows.size == 1


@compiled
def arrive(work: Any) -> None:
    """The next arrival is handled from now on. Its norm is recorded, and tells whether it is finite."""
    state = work.state
    if state[SLOT] >= 0:
        work.free[state[NUM_FREE]] = state[SLOT]
        state[NUM_FREE] += 1
    state[ROW] += 1
    row = state[ROW]
    slot = state[SLOT] = work.slots[row]
    worker = work.arrivals[row].worker
    draw_rows(work.data, ticket_key(work.stream, worker, work.arrivals[row].job), worker, work.rows)
    for run in range(work.points.shape[0]):
        if not work.alive[run]:
            continue
        if is_single(work):
            norm = abs(work.pending[run, slot, 0]) * work.data.norms[work.rows[0]]
        else:
            if work.slopes_only:
                gradient_of_slopes(work.data, work.rows, work.pending[run, slot], work.gradients[run])
            else:
                work.gradients[run, :] = work.pending[run, slot]
            norm = math.sqrt(squared_norm(work.gradients[run]))
        if run == 0:
            work.arrivals[row].gradient_norm = norm
        work.alive[run] = norm < np.inf


@compiled
def subtract(point: Any, direction: Any, stepsize: float, scale: float, cell: Any) -> None:
    """``point -= stepsize * (scale * direction)``, in the precision of the point (which ``cell`` has)."""
    cell[0], cell[1] = stepsize, scale
    gamma, factor = cell[0], cell[1]
    if scale == 1.0:
        for j in range(point.size):
            point[j] = point[j] - gamma * direction[j]
    else:
        for j in range(point.size):
            point[j] = point[j] - gamma * (direction[j] * factor)


@compiled
def apply(work: Any, stepsize: float) -> None:
    """A step along the gradient being handled."""
    for run in range(work.points.shape[0]):
        gamma, point = stepsize * work.factors[run], work.points[run]
        if not work.alive[run]:
            continue
        if is_single(work):
            subtract_row(work.data, work.rows[0], work.pending[run, work.state[SLOT], 0], gamma, point)
        else:
            subtract(point, work.gradients[run], gamma, 1.0, work.cell)
    work.state[VERSION] += 1
    reach_version(work)


@compiled
def step(work: Any, total: int, stepsize: float, scale: float) -> None:
    """A step along a sum."""
    for run in range(work.points.shape[0]):
        if work.alive[run]:
            subtract(work.points[run], work.sums[run, total], stepsize * work.factors[run], scale, work.cell)
    work.state[VERSION] += 1
    reach_version(work)


@compiled
def add(work: Any, total: int, weight: float) -> None:
    """Add the gradient being handled to a sum."""
    work.cell[0] = weight
    for run in range(work.points.shape[0]):
        if not work.alive[run]:
            continue
        if is_single(work):
            subtract_row(
                work.data, work.rows[0], work.pending[run, work.state[SLOT], 0], -weight, work.sums[run, total]
            )
        else:
            add_scaled(work.sums[run, total], work.gradients[run], work.cell[0])


@compiled
def merge(work: Any, total: int, other: int, weight: float) -> None:
    """Add one sum to another."""
    work.cell[0] = weight
    for run in range(work.points.shape[0]):
        if work.alive[run]:
            add_scaled(work.sums[run, total], work.sums[run, other], work.cell[0])


@compiled
def execute(work: Any, end: int) -> None:
    """The instructions up to place ``end`` of ``codes``."""
    codes, numbers = work.codes, work.numbers
    at, number = work.state[NEXT_CODE], work.state[NEXT_NUMBER]
    while at < end:
        code = codes[at]
        if code == ARRIVE:
            arrive(work)
            at += 1
        elif code == APPLY:
            apply(work, numbers[number])
            at, number = at + 1, number + 1
        elif code == STEP:
            step(work, codes[at + 1] - FIRST_SUM, numbers[number], numbers[number + 1])
            at, number = at + 2, number + 2
        elif code == ADD:
            add(work, codes[at + 1] - FIRST_SUM, numbers[number])
            at, number = at + 2, number + 1
        elif code == MERGE:
            merge(work, codes[at + 1] - FIRST_SUM, codes[at + 2] - FIRST_SUM, numbers[number])
            at, number = at + 3, number + 1
        elif code == CLEAR:
            work.sums[:, codes[at + 1] - FIRST_SUM] = 0.0
            at += 2
        else:  # EVENT
            at += 1
    work.state[NEXT_CODE], work.state[NEXT_NUMBER] = at, number


# The schedule of methods that apply every arrival at once


class Schedule(NamedTuple):
    """Who arrives when: a heap with one entry per worker, and what each worker computes."""

    formula: Formula
    workers: Any
    """Their numbers. The arrays that follow are by place in this one, but for those of the heap."""
    times: Any
    """The heap: when tickets arrive, which ones they are, and at which place their workers are."""
    tickets: Any
    places: Any
    seconds: Any
    started: Any
    jobs: Any
    versions: Any
    counts: Any
    """How many steps and how many gradients there were."""


@compiled
def sift_down(schedule: Any, place: int) -> None:
    """Restore the order of the heap (four children per entry) below ``place``."""
    times, tickets, places = schedule.times, schedule.tickets, schedule.places
    time, ticket, own = times[place], tickets[place], places[place]
    while True:
        first = 4 * place + 1
        if first >= times.size:
            break
        best = first
        for other in range(first + 1, min(first + 4, times.size)):
            if times[other] < times[best] or (times[other] == times[best] and tickets[other] < tickets[best]):
                best = other
        if not (times[best] < time or (times[best] == time and tickets[best] < ticket)):
            break
        times[place], tickets[place], places[place] = times[best], tickets[best], places[best]
        place = best
    times[place], tickets[place], places[place] = time, ticket, own


@compiled
def start_schedule(schedule: Any) -> None:
    """Everybody begins with a first ticket."""
    for place in range(schedule.workers.size):
        worker = schedule.workers[place]
        schedule.seconds[place] = seconds_of(schedule.formula, worker, 0)
        schedule.times[place] = finish_of(schedule.formula, worker, schedule.seconds[place], 0.0)
        schedule.tickets[place] = schedule.places[place] = place
    for place in range((schedule.workers.size - 2) // 4, -1, -1):
        sift_down(schedule, place)


@compiled
def write_arrival(schedule: Any, row: Any, max_delay: int, applied: int, dropped: int) -> None:
    """The ticket on top of the heap has arrived: write its row, which makes a step or is dropped."""
    counts, place = schedule.counts, schedule.places[0]
    delay = counts[0] + 1 - schedule.versions[place]
    row.ticket, row.worker = schedule.tickets[0], schedule.workers[place]
    row.job, row.version, row.delay = schedule.jobs[place], schedule.versions[place], delay
    row.time, row.started, row.compute_seconds = schedule.times[0], schedule.started[place], schedule.seconds[place]
    row.live_workers, row.gradient_norm, row.stepsize = schedule.workers.size, 0.0, 0.0
    if delay <= max_delay:
        counts[0] += 1
        row.outcome, row.step, row.weight = applied, counts[0], 1.0
    else:
        row.outcome, row.step, row.weight = dropped, 0, 0.0
    counts[1] += 1


@compiled
def write_arrivals(
    schedule: Any, arrivals: Any, max_delay: int, most_steps: int, end: float, applied: int, dropped: int
) -> Any:
    """Write the next arrivals, until ``arrivals`` is full or the run ends; how many were written."""
    written = 0
    while written < arrivals.size and schedule.counts[0] < most_steps and schedule.times[0] <= end:
        time, place = schedule.times[0], schedule.places[0]
        write_arrival(schedule, arrivals[written], max_delay, applied, dropped)
        written += 1
        worker, job = schedule.workers[place], schedule.jobs[place] + 1
        schedule.jobs[place], schedule.versions[place], schedule.started[place] = job, schedule.counts[0], time
        schedule.seconds[place] = seconds_of(schedule.formula, worker, job)
        schedule.times[0] = finish_of(schedule.formula, worker, schedule.seconds[place], time)
        schedule.tickets[0] = schedule.workers.size + schedule.counts[1] - 1
        sift_down(schedule, 0)
    return written
