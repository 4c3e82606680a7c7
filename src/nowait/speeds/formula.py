"""Durations that depend on nothing but worker and job, as numbers that compiled code understands."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from nowait.core.randomness import Stream
from nowait.core.types import Floats

FIXED, EXPONENTIAL, LOG_NORMAL, PARETO = range(4)
NOTHING = np.zeros(1)
LONGEST_BLOCK = 64


class Formula(NamedTuple):
    """A distribution of durations. Worker w has the parameters at place w modulo their number."""

    kind: int
    stream: np.uint64
    """The key of the stream that durations are drawn from."""
    first: Floats
    second: Floats = NOTHING
    down: Floats = NOTHING
    """Seconds on the network before the worker computes."""
    up: Floats = NOTHING
    """Seconds on the network after that."""


def stream_key(stream: Stream) -> np.uint64:
    """The key of a stream, for compiled code."""
    return np.uint64(stream.own_key)


class FormulaTiming:
    """The ``Timing`` of a formula. Durations are drawn in blocks, longer ones for workers that come often."""

    __slots__ = ("_blocks", "_draw", "_formula")

    def __init__(self, formula: Formula) -> None:
        self._formula = formula
        self._blocks: dict[int, tuple[int, list[float]]] = {}
        self._draw = _kernels().draw_block

    def __call__(self, worker: int, job: int, start: float) -> tuple[float, float]:
        """How long the worker computes, and when its gradient arrives."""
        first, block = self._blocks.get(worker, (0, ()))
        place = job - first
        if not 0 <= place < len(block):
            block = self._draw(self._formula, worker, job, min(LONGEST_BLOCK, job + 1)).tolist()
            self._blocks[worker] = (job, block)
            place = 0
        seconds = block[place]
        return seconds, start + seconds


@cache
def _kernels() -> Any:
    from nowait.speeds import kernels

    return kernels
