"""Compiled durations. Imports numba, so it is imported only when a run starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from nowait.numerics.compiled import compiled
from nowait.numerics.elementary_kernels import exp, log, power
from nowait.numerics.random_kernels import child, normal, ticket_key, unit
from nowait.speeds.formula import EXPONENTIAL, FIXED, HALF_NORMAL, LOG_NORMAL, RECORDED

FIRST, SECOND = np.int64(0), np.int64(1)
"""Draw numbers, typed: with literals numba would compile further specialisations of the functions called."""


@compiled
def seconds_of(formula: Any, worker: int, job: int) -> Any:
    """Return how long a worker computes a job."""
    first = formula.first[worker % formula.first.size]
    if formula.kind == FIXED:
        return first
    if formula.kind == RECORDED:
        place = worker % (formula.offsets.size - 1)
        begin = formula.offsets[place]
        return formula.times[begin + job % (formula.offsets[place + 1] - begin)]
    key = ticket_key(formula.stream, worker, job)
    if formula.kind == EXPONENTIAL:
        return -first * log(unit(child(key, FIRST)))
    second = formula.second[worker % formula.second.size]
    if formula.kind == LOG_NORMAL:
        return first * exp(second * normal(child(key, FIRST), child(key, SECOND)))
    if formula.kind == HALF_NORMAL:
        return first + second * abs(normal(child(key, FIRST), child(key, SECOND)))
    return first * power(unit(child(key, FIRST)), -1.0 / second)


@compiled
def finish_of(formula: Any, worker: int, seconds: float, start: float) -> Any:
    """Return when the gradient arrives of a worker that starts at ``start`` and computes for ``seconds``."""
    down, up = formula.down[worker % formula.down.size], formula.up[worker % formula.up.size]
    return ((start + down) + seconds) + up


@compiled
def draw_block(formula: Any, worker: int, job: int, size: int) -> Any:
    """Return how long a worker computes each of ``size`` jobs, starting with ``job``."""
    seconds = np.empty(size)
    for i in range(size):
        seconds[i] = seconds_of(formula, worker, job + i)
    return seconds
