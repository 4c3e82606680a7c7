"""Compiled schedules of methods that apply every arrival at once: a heap of arrivals. It imports numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nowait.numerics.compiled import compiled
from nowait.problems.kernels import FIRST
from nowait.speeds.formula import Formula
from nowait.speeds.kernels import finish_of, seconds_of


class Schedule(NamedTuple):
    """The running ticket of every worker, and a heap of their arrival times."""

    formula: Formula
    workers: Any
    """The numbers of the workers."""
    times: Any
    """The heap: the times at which tickets arrive."""
    places: Any
    """Parallel to the heap: the index of each ticket's worker in ``workers``."""
    running: Any
    """The ticket that each worker computes, with the fields of ``TICKET``."""
    counts: Any
    """The number of steps and the number of gradients so far."""


CHILDREN = 4
"""The number of children of a heap entry."""
TICKET = np.dtype([("id", "i8"), ("job", "i8"), ("version", "i8"), ("started", "f8"), ("seconds", "f8")])


@compiled
def sift_down(times: Any, places: Any, running: Any, at: int) -> None:
    """Restore the heap order below an entry. Of equal times, the ticket with the smaller id comes first."""
    time, place = times[at], places[at]
    while True:
        first = CHILDREN * at + 1
        if first >= times.size:
            break
        best = first
        for other in range(first + 1, min(first + CHILDREN, times.size)):
            if times[other] < times[best] or (
                times[other] == times[best] and running[places[other]].id < running[places[best]].id
            ):
                best = other
        if not (times[best] < time or (times[best] == time and running[places[best]].id < running[place].id)):
            break
        times[at], places[at] = times[best], places[best]
        at = best
    times[at], places[at] = time, place


@compiled
def start_schedule(schedule: Any) -> None:
    """Give every worker its first ticket."""
    times, places, running = schedule.times, schedule.places, schedule.running
    for place in range(schedule.workers.size):
        worker, ticket = schedule.workers[place], running[place]
        ticket.seconds = seconds_of(schedule.formula, worker, FIRST)
        ticket.id, ticket.job, ticket.version, ticket.started = place, 0, 0, 0.0
        times[place] = finish_of(schedule.formula, worker, ticket.seconds, 0.0)
        places[place] = place
    for at in range((times.size - 2) // CHILDREN, -1, -1):
        sift_down(times, places, running, at)


@compiled
def write_arrivals(
    schedule: Any, arrivals: Any, max_delay: int, most_steps: int, end: float, applied: int, dropped: int
) -> Any:
    """Write the next arrivals until ``arrivals`` is full or the run ends. Returns how many were written."""
    formula, workers, times, places, running = (
        schedule.formula,
        schedule.workers,
        schedule.times,
        schedule.places,
        schedule.running,
    )
    steps, gradients = schedule.counts[0], schedule.counts[1]
    written = 0
    while written < arrivals.size and steps < most_steps and times[0] <= end:
        time, place = times[0], places[0]
        row, ticket, worker = arrivals[written], running[place], workers[place]
        delay = steps + 1 - ticket.version
        row.ticket, row.worker, row.job, row.version, row.delay = ticket.id, worker, ticket.job, ticket.version, delay
        row.time, row.started, row.compute_seconds = time, ticket.started, ticket.seconds
        row.live_workers, row.gradient_norm, row.stepsize = workers.size, 0.0, 0.0
        if delay <= max_delay:
            steps += 1
            row.outcome, row.step, row.weight = applied, steps, 1.0
        else:
            row.outcome, row.step, row.weight = dropped, 0, 0.0
        ticket.id, ticket.job, ticket.version, ticket.started = workers.size + gradients, ticket.job + 1, steps, time
        ticket.seconds = seconds_of(formula, worker, ticket.job)
        times[0] = finish_of(formula, worker, ticket.seconds, time)
        sift_down(times, places, running, FIRST)
        written, gradients = written + 1, gradients + 1
    schedule.counts[0], schedule.counts[1] = steps, gradients
    return written
