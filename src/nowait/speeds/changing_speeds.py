"""Speeds that change with time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from nowait.core import checks
from nowait.core.randomness import Stream
from nowait.numerics.elementary import log
from nowait.speeds.random_speeds import Values
from nowait.speeds.speeds import WHY_WORKERS, PerWorker, Speeds, Timing, count_workers, per_worker

MOST_PIECES = 20_000
"""Integration steps after which a ticket counts as never ending."""
SMALLEST_PIECE = 1e-9


@final
@dataclass
class TimeVarying(Speeds):
    """A ticket ends when the integral of ``rate(worker, time)`` since its start reaches 1.

    The rate is in gradients per second and may be 0 for a while. It must not change much within ``resolution``
    seconds, otherwise a short burst can be missed. A ticket that takes longer than 20,000 times ``resolution`` never
    ends. This is the universal computation model of Tyurin, "Tight Time Complexities in Parallel Stochastic
    Optimization with Arbitrary Computation Dynamics" (2024).

    >>> speeds = TimeVarying(lambda worker, time: 2.0 if time < 10 else 0.5, workers=4)
    >>> seconds, finish = speeds.timing(seed=0)(0, 0, 9.75)
    >>> round(finish, 6)
    11.0
    """

    rate: Callable[[int, float], float]
    workers: int
    resolution: float = 1.0
    num_workers: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.rate):
            raise TypeError(f"rate must be a function of (worker, time), got {self.rate!r}")
        checks.positive(self.resolution, "resolution", "it is the longest integration step, in seconds")
        self.num_workers = checks.at_least(1, self.workers, "workers", WHY_WORKERS)

    def timing(self, seed: int) -> Timing:
        """Return a function that computes when the integral of the rate reaches 1."""

        def timing(worker: int, job: int, start: float) -> tuple[float, float]:  # noqa: ARG001
            finish = self._finish(worker, start)
            return finish - start, finish

        return timing

    def _finish(self, worker: int, start: float) -> float:
        """Return the time at which the integral reaches 1, by the adaptive Simpson rule; infinity if it never does."""
        left, time = 1.0, start
        for _ in range(MOST_PIECES):
            rate = self._rate(worker, time)
            piece = min(self.resolution, 0.25 / rate) if rate > 0 else self.resolution
            piece = max(piece, SMALLEST_PIECE * max(1.0, abs(time)))
            piece, done = self._work(worker, time, piece)
            if done >= left * (1 - 1e-12):
                return self._crossing(worker, time, piece, left)
            left, time = left - done, time + piece
        return math.inf

    def _work(self, worker: int, time: float, piece: float) -> tuple[float, float]:
        """Halve the piece of time until Simpson's rule is accurate; return the piece and its integral."""
        first, middle, last = (self._rate(worker, time + piece * part) for part in (0.0, 0.5, 1.0))
        while True:
            early, late = self._rate(worker, time + piece * 0.25), self._rate(worker, time + piece * 0.75)
            whole = piece / 6 * (first + 4 * middle + last)
            halves = piece / 12 * (first + 4 * early + 2 * middle + 4 * late + last)
            if abs(whole - halves) <= 1e-9 or piece <= SMALLEST_PIECE * max(1.0, abs(time)):
                return piece, halves
            piece, middle, last = piece / 2, early, middle

    def _crossing(self, worker: int, time: float, piece: float, left: float) -> float:
        """Return the time inside the piece at which the integral reaches ``left``, by bisection."""
        low, high = 0.0, piece
        while high - low > 1e-12 * max(1.0, time):
            part = (low + high) / 2
            first, middle, last = (self._rate(worker, time + part * share) for share in (0.0, 0.5, 1.0))
            if part / 6 * (first + 4 * middle + last) < left:
                low = part
            else:
                high = part
        return time + high

    def _rate(self, worker: int, time: float) -> float:
        return checks.not_negative(self.rate(worker, time), f"rate({worker}, {time:.6g})", "it is a speed")


MOST_OUTAGES = 1e6
"""How many outages a gradient may expect: each takes time to simulate."""


@final
@dataclass
class UpDown(Speeds):
    """Workers with outages: up and down for exponentially distributed times with these means, and up at the start.

    A ticket takes ``seconds`` of up time: an outage pauses it. Each of the three is a number for all workers, or a
    list with one for each; without a list, ``workers`` is needed.
    """

    seconds: Values
    up: Values
    down: Values
    workers: int | None = None
    num_workers: int = field(init=False, repr=False)
    _seconds: PerWorker = field(init=False, repr=False, compare=False)
    _up: PerWorker = field(init=False, repr=False, compare=False)
    _down: PerWorker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.num_workers = count_workers(self.seconds, self.workers, "seconds")
        self._seconds = per_worker(self.seconds, self.num_workers, "seconds")
        self._up = per_worker(self.up, self.num_workers, "up")
        self._down = per_worker(self.down, self.num_workers, "down")
        for worker in range(self.num_workers):
            if self._up[worker] * MOST_OUTAGES < self._seconds[worker]:
                raise ValueError(
                    f"up={self._up[worker]} is less than a millionth of seconds={self._seconds[worker]:g} "
                    f"(worker {worker}): a gradient would be paused by more than a million outages"
                )

    def timing(self, seed: int) -> Timing:
        """Return a function that adds the outages to the worker's seconds."""
        periods = _Periods(Stream(seed, "speed"), self._up, self._down)

        def timing(worker: int, job: int, start: float) -> tuple[float, float]:  # noqa: ARG001
            left, time = self._seconds[worker], start
            while True:
                began, ended = periods.next_up(worker, time)
                time = max(time, began)
                if time + left <= ended:
                    return time + left - start, time + left
                left, time = left - (ended - time), ended

        return timing


@final
class _Periods:
    """The up periods of every worker, drawn lazily."""

    def __init__(self, stream: Stream, up: PerWorker, down: PerWorker) -> None:
        self._stream, self._up, self._down = stream, up, down
        self._begins: dict[int, list[float]] = {}
        self._ends: dict[int, list[float]] = {}

    def next_up(self, worker: int, time: float) -> tuple[float, float]:
        """Return start and end of the first up period that ends after ``time``."""
        begins = self._begins.setdefault(worker, [0.0])
        ends = self._ends.setdefault(worker, [self._draw(self._up, worker, 0)])
        while ends[-1] <= time:
            begins.append(ends[-1] + self._draw(self._down, worker, 2 * len(begins) - 1))
            ends.append(begins[-1] + self._draw(self._up, worker, 2 * len(ends)))
        index = bisect_right(ends, time)
        return begins[index], ends[index]

    def _draw(self, means: PerWorker, worker: int, number: int) -> float:
        seconds: float = -means[worker] * log(self._stream.uniform(worker, number))
        return seconds
