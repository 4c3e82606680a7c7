"""The interface of a speed model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import checks
from nowait.core.types import Floats
from nowait.speeds.clock import Clock, HeapClock
from nowait.speeds.formula import Formula

Timing = Callable[[int, int, float], tuple[float, float]]
"""``timing(worker, job, start)`` returns how long the worker computes and when its gradient arrives."""

WHY_WORKERS = "at least one worker has to compute gradients"


class Speeds(ABC):
    """How long workers take, in virtual seconds.

    A model of your own needs ``num_workers`` and ``timing``. Random durations are drawn from ``Stream(seed,
    "speed")`` by worker and job, so that they are the same for every method. Workers that join with a higher number
    than the given ones use the speeds of the given ones in turn.
    """

    num_workers: int

    @abstractmethod
    def timing(self, seed: int) -> Timing:
        """Return the function that gives the durations of one run; it holds the run's state, if there is any."""

    def formula(self, seed: int) -> Formula | None:
        """Return the same durations for compiled code; None if they cannot be written as a ``Formula``."""
        return None

    def clock(self, seed: int) -> Clock:
        """Return the clock that decides which worker arrives next."""
        return HeapClock(self.timing(seed))


@final
class PerWorker:
    """One value for each worker: worker w has the value at index w modulo the number of values."""

    __slots__ = ("array", "values")

    def __init__(self, array: Floats) -> None:
        self.array = array
        self.values: list[float] = array.tolist()

    def __getitem__(self, worker: int) -> float:
        return self.values[worker % len(self.values)]


def count_workers(values: object, workers: object, name: str) -> int:
    """Return the number of workers given by ``values`` and ``workers=``; raise ValueError if they disagree."""
    given = None if workers is None else checks.at_least(1, workers, "workers", WHY_WORKERS)
    if isinstance(values, Real):
        if given is None:
            raise ValueError(f"{name} is one number for all workers: pass the number of workers as workers=")
        return given
    length = len(_sequence(values, name))
    if length == 0:
        raise ValueError(f"{name} is empty: {WHY_WORKERS}")
    if given not in (None, length):
        raise ValueError(f"{name} has {length} values, but workers={given}: leave workers= out or make them agree")
    return length


def per_worker(values: object, num_workers: int, name: str, *, zero_allowed: bool = False) -> PerWorker:
    """Check and return one value per worker, above 0 (with ``zero_allowed``, at least 0)."""
    check = checks.not_negative if zero_allowed else checks.positive
    why = "it cannot be negative" if zero_allowed else "a gradient must take some time"
    if isinstance(values, Real):
        return PerWorker(np.array([check(values, name, why)]))
    items = _sequence(values, name)
    if len(items) != num_workers:
        raise ValueError(f"{name} has {len(items)} values for {num_workers} workers")
    array = _as_array(items)
    if (
        array.ndim != 1
        or array.dtype.kind not in "iuf"
        or not (np.isfinite(array) & (array >= 0 if zero_allowed else array > 0)).all()
    ):
        array = np.array([check(item, f"{name}[{worker}]", why) for worker, item in enumerate(items)])
    return PerWorker(array.astype(np.float64))


def _as_array(items: Sequence[Any]) -> NDArray[Any]:
    try:
        return np.array(items)
    except ValueError:  # lists of different lengths
        return np.empty(0, dtype=object)


def worker_numbers(values: object, name: str) -> list[int]:
    """Check and return a list of worker numbers."""
    numbers = list(_sequence(values, name))
    for index, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
            raise ValueError(f"{name}[{index}] must be a worker number of at least 0, got {checks.shown(number)}")
    return [int(number) for number in numbers]


def _sequence(values: object, name: str) -> Sequence[Any]:
    checks.unmasked(values, name)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        return values.tolist()  # type: ignore[no-any-return]
    if isinstance(values, list | tuple | range):
        return values
    raise TypeError(f"{name} must be a number or a list with one value per worker, got {checks.shown(values)}")
