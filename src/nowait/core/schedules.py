"""Schedules: factors of the stepsize as functions of the step, for ``Scheduled``. The first step is step 1."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import checks
from nowait.numerics.elementary import cos_of_turns


class Schedule(ABC):
    """A function of the step. It takes numbers or numpy arrays. The product of two schedules is a schedule."""

    @abstractmethod
    def __call__(self, step: Any) -> Any:
        """Return the factor, elementwise."""

    def __mul__(self, other: Schedule) -> ScheduleProduct:
        return ScheduleProduct(self, other)


@final
@dataclass(frozen=True)
class Warmup(Schedule):
    """A line from ``1/steps`` at step 1 to 1 at step ``steps``, and 1 afterwards.

    >>> [Warmup(4)(step) for step in (1, 2, 4, 100)]
    [0.25, 0.5, 1.0, 1.0]
    """

    steps: int

    def __post_init__(self) -> None:
        checks.store(self, steps=checks.at_least(1, self.steps, "steps", "it is how long the stepsize rises"))

    def __call__(self, step: Any) -> Any:
        """Return min(1, step/steps)."""
        return _like(step, np.minimum(1.0, np.asarray(step) / self.steps))


@final
@dataclass(frozen=True)
class LinearDecay(Schedule):
    """A line from 1 at step 1 to ``final`` after ``steps`` steps, where it stays.

    >>> [LinearDecay(4, final=0.5)(step) for step in (1, 3, 5, 100)]
    [1.0, 0.75, 0.5, 0.5]
    """

    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _store_decay(self)

    def __call__(self, step: Any) -> Any:
        """Return final + (1 − final)·(1 − progress)."""
        return _like(step, self.final + (1.0 - self.final) * (1.0 - _progress(step, self.steps)))


@final
@dataclass(frozen=True)
class CosineDecay(Schedule):
    """Half a cosine wave from 1 at step 1 to ``final`` after ``steps`` steps, where it stays.

    >>> [CosineDecay(4)(step) for step in (1, 3, 5, 100)]
    [1.0, 0.5, 0.0, 0.0]
    """

    steps: int
    final: float = 0.0

    def __post_init__(self) -> None:
        _store_decay(self)

    def __call__(self, step: Any) -> Any:
        """Return final + (1 − final)·(1 + cos(π·progress))/2."""
        wave = 0.5 * (1.0 + cos_of_turns(0.5 * _progress(step, self.steps)))
        return _like(step, self.final + (1.0 - self.final) * wave)


@final
@dataclass(frozen=True)
class ScheduleProduct(Schedule):
    """The product of two schedules, which ``*`` makes: ``Warmup(100) * CosineDecay(10_000)``."""

    first: Schedule
    second: Schedule

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            checks.instance(getattr(self, name), Schedule, name, "nw.schedules.warmup(100)")

    def __call__(self, step: Any) -> Any:
        """Return the product of both factors."""
        return self.first(step) * self.second(step)


def factors(schedule: Callable[[Any], Any], step: Any) -> Any:
    """Return the factors of a step or of an array of them; raise unless all are finite and at least 0.

    A function that is no ``Schedule`` is called with one step at a time, as a Python integer.
    """
    if isinstance(schedule, Schedule):
        return schedule(step)
    if not isinstance(step, np.ndarray):
        return _checked_factor(schedule(int(step)), step)
    return np.array([_checked_factor(schedule(int(one)), one) for one in step.ravel()]).reshape(step.shape)


def _checked_factor(value: Any, step: Any) -> float:
    try:
        factor = float(value)
    except (TypeError, ValueError):
        factor = math.nan
    if not 0.0 <= factor < math.inf:
        raise ValueError(f"the schedule must return a finite factor of at least 0, got {value!r} for step {step}")
    return factor


def _store_decay(schedule: Any) -> None:
    checks.store(schedule, steps=checks.at_least(1, schedule.steps, "steps", "it is how long the stepsize falls"))
    checks.store(schedule, final=checks.not_negative(schedule.final, "final", "it is the last factor"))


def _progress(step: Any, steps: int) -> Any:
    return np.minimum(1.0, (np.asarray(step) - 1.0) / steps)


def _like(argument: Any, value: Any) -> Any:
    """Return the value as a float if the argument was a plain number."""
    return value if isinstance(argument, np.ndarray) else float(value)
