"""The interface of a speed model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, final

import numpy as np

from nowait.core import checks
from nowait.core.types import Floats
from nowait.speeds.clock import Clock, HeapClock
from nowait.speeds.formula import Formula

Timing = Callable[[int, int, float], tuple[float, float]]
"""``timing(worker, job, start)`` returns how long the worker computes and when its gradient arrives."""

WHY_WORKERS = "somebody has to compute gradients"


class Speeds(ABC):
    """How long workers take, in virtual seconds.

    A model of your own needs ``num_workers`` and ``timing``. Random durations are drawn from ``Stream(seed,
    "speed")`` by worker and job, so that every method meets the same ones. Workers that join with a number past
    the given ones have the speeds of the given ones in turn.
    """

    num_workers: int

    @abstractmethod
    def timing(self, seed: int) -> Timing:
        """The durations of one run; state of the run lives in the function returned."""

    def formula(self, seed: int) -> Formula | None:
        """The same durations for compiled code; None if they are more than a formula."""
        return None

    def clock(self, seed: int) -> Clock:
        """What decides who arrives next."""
        return HeapClock(self.timing(seed))


@final
class PerWorker:
    """One value for each worker, in turn: worker w has the value at place w modulo their number."""

    __slots__ = ("array", "values")

    def __init__(self, array: Floats) -> None:
        self.array = array
        self.values: list[float] = array.tolist()

    def __getitem__(self, worker: int) -> float:
        return self.values[worker % len(self.values)]


def count_workers(values: object, workers: object, name: str) -> int:
    """The number of workers that ``values`` and ``workers=`` agree on."""
    given = None if workers is None else checks.at_least(1, workers, "workers", WHY_WORKERS)
    if isinstance(values, Real):
        if given is None:
            raise ValueError(f"{name} is one number for all workers: say how many there are with workers=")
        return given
    length = len(_sequence(values, name))
    if length == 0:
        raise ValueError(f"{name} is empty: {WHY_WORKERS}")
    if given not in (None, length):
        raise ValueError(f"{name} has {length} values, but workers={given}: leave workers= out or make them agree")
    return length


def per_worker(values: object, num_workers: int, name: str, *, zero_allowed: bool = False) -> PerWorker:
    """One checked value per worker, above 0, or of at least 0."""
    check = checks.not_negative if zero_allowed else checks.positive
    why = "it cannot be negative" if zero_allowed else "a worker's time must move on"
    if isinstance(values, Real):
        return PerWorker(np.array([check(values, name, why)]))
    items = _sequence(values, name)
    if len(items) != num_workers:
        raise ValueError(f"{name} has {len(items)} values for {num_workers} workers")
    array = np.array(items)
    if array.dtype.kind not in "iuf" or not (np.isfinite(array) & (array >= 0 if zero_allowed else array > 0)).all():
        array = np.array([check(item, f"{name}[{worker}]", why) for worker, item in enumerate(items)])
    return PerWorker(array.astype(np.float64))


def worker_numbers(values: object, name: str) -> list[int]:
    """A checked list of worker numbers."""
    numbers = list(_sequence(values, name))
    for place, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
            raise ValueError(f"{name}[{place}] must be a worker number of at least 0, got {number!r}")
    return [int(number) for number in numbers]


def _sequence(values: object, name: str) -> Sequence[Any]:
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values.tolist()  # type: ignore[no-any-return]
    if isinstance(values, list | tuple | range):
        return values
    raise TypeError(f"{name} must be a number or a list with one value per worker, got {values!r}")
