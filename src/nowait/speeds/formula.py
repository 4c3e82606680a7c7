"""Durations that depend only on worker and job, in a form that compiled code can use."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from nowait.core.randomness import Stream
from nowait.core.types import Floats, Integers

FIXED, EXPONENTIAL, LOG_NORMAL, PARETO, RECORDED, HALF_NORMAL = range(6)
NO_SECONDS = np.zeros(1)
NO_OFFSETS = np.zeros(1, np.int64)
LONGEST_BLOCK = 64


class Formula(NamedTuple):
    """A distribution of durations. Worker w uses the parameters at index w modulo the array's length."""

    kind: int
    stream: np.uint64
    """The key of the stream that durations are drawn from."""
    first: Floats
    """The distribution's first parameter, about as long as a worker takes; for RECORDED the mean of its times."""
    second: Floats = NO_SECONDS
    down: Floats = NO_SECONDS
    """Communication seconds before the worker computes."""
    up: Floats = NO_SECONDS
    """Communication seconds after the worker has computed."""
    times: Floats = NO_SECONDS
    """For RECORDED: the times of all workers, one worker after the other."""
    offsets: Integers = NO_OFFSETS
    """For RECORDED: where the times of each worker begin, and where the last ones end."""

    def mean_seconds(self) -> Floats:
        """Return the mean duration with communication, for each parameter; infinite if the tail is too heavy."""
        return np.asarray(self._mean_computing() + self.down + self.up)

    def _mean_computing(self) -> Floats:
        if self.kind == LOG_NORMAL:
            return self.first * np.exp(self.second**2 / 2)
        if self.kind == HALF_NORMAL:
            return self.first + self.second * math.sqrt(2 / math.pi)
        if self.kind == PARETO:
            beyond = np.maximum(self.second - 1, 0.0)
            return self.first * np.divide(self.second, beyond, out=np.full_like(beyond, np.inf), where=beyond > 0)
        return self.first


def stream_key(stream: Stream) -> np.uint64:
    """Return the key of a stream in the type that compiled code uses."""
    return np.uint64(stream.own_key)


class FormulaTiming:
    """The ``Timing`` of a formula. Durations are drawn in blocks; they grow with the worker's number of jobs."""

    __slots__ = ("_blocks", "_draw", "_formula")

    def __init__(self, formula: Formula) -> None:
        self._formula = formula
        self._blocks: dict[int, tuple[int, list[float]]] = {}
        self._draw = _kernels().draw_block

    def __call__(self, worker: int, job: int, start: float) -> tuple[float, float]:
        """Return how long the worker computes, and when its gradient arrives."""
        first, block = self._blocks.get(worker, (0, ()))
        index = job - first
        if not 0 <= index < len(block):
            block = self._draw(self._formula, worker, job, min(LONGEST_BLOCK, job + 1)).tolist()
            self._blocks[worker] = (job, block)
            index = 0
        seconds = block[index]
        return seconds, start + seconds


@cache
def _kernels() -> Any:
    from nowait.speeds import kernels

    return kernels
