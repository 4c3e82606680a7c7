"""Fixed and random durations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from nowait.core import Sample, checks, sampler
from nowait.core.randomness import Stream
from nowait.speeds.formula import (
    EXPONENTIAL,
    FIXED,
    HALF_NORMAL,
    LOG_NORMAL,
    PARETO,
    Formula,
    FormulaTiming,
    stream_key,
)
from nowait.speeds.speeds import PerWorker, Speeds, Timing, count_workers, per_worker

Values = float | Sequence[float]


@final
@dataclass
class Fixed(Speeds):
    """Every worker takes the same time for each of its gradients: the setting of the paper's Table 2.

    ``seconds`` is a number for all workers, which needs ``workers``, or a list with one for each.

    >>> Fixed([1.0, 1.0, 10.0]).num_workers
    3
    >>> Fixed(0.5, workers=8).num_workers
    8
    """

    seconds: Values
    workers: int | None = None
    num_workers: int = field(init=False, repr=False)
    _seconds: PerWorker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.num_workers = count_workers(self.seconds, self.workers, "seconds")
        self._seconds = per_worker(self.seconds, self.num_workers, "seconds")

    def timing(self, seed: int) -> Timing:
        """Return a function that gives the worker's fixed seconds."""
        values = self._seconds.values
        length = len(values)

        def fixed(worker: int, job: int, start: float) -> tuple[float, float]:  # noqa: ARG001
            seconds = values[worker % length]
            return seconds, start + seconds

        return fixed

    def formula(self, seed: int) -> Formula:
        """Return the fixed seconds as a formula."""
        return Formula(FIXED, stream_key(Stream(seed, "speed")), self._seconds.array)


@final
@dataclass
class Exponential(Speeds):
    """Exponentially distributed durations with the given ``means``.

    A number is the mean of all workers, and needs ``workers``; a list has one for each.
    """

    means: Values
    workers: int | None = None
    num_workers: int = field(init=False, repr=False)
    _means: PerWorker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.num_workers = count_workers(self.means, self.workers, "means")
        self._means = per_worker(self.means, self.num_workers, "means")

    def timing(self, seed: int) -> Timing:
        """Return a function that draws −mean·ln(u)."""
        return FormulaTiming(self.formula(seed))

    def formula(self, seed: int) -> Formula:
        """Return the distribution with these means."""
        return Formula(EXPONENTIAL, stream_key(Stream(seed, "speed")), self._means.array)


@final
@dataclass
class LogNormal(Speeds):
    """Durations median·exp(sigma·z) with z standard normal: typical of shared machines.

    ``medians`` and ``sigma`` are numbers for all workers, or lists with one for each; without a list, ``workers`` is
    needed.
    """

    medians: Values
    sigma: Values
    workers: int | None = None
    num_workers: int = field(init=False, repr=False)
    _medians: PerWorker = field(init=False, repr=False, compare=False)
    _sigma: PerWorker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.num_workers = count_workers(self.medians, self.workers, "medians")
        self._medians = per_worker(self.medians, self.num_workers, "medians")
        self._sigma = per_worker(self.sigma, self.num_workers, "sigma", zero_allowed=True)

    def timing(self, seed: int) -> Timing:
        """Return a function that draws median·exp(sigma·z)."""
        return FormulaTiming(self.formula(seed))

    def formula(self, seed: int) -> Formula:
        """Return the distribution with these medians and sigmas."""
        return Formula(LOG_NORMAL, stream_key(Stream(seed, "speed")), self._medians.array, self._sigma.array)


@final
@dataclass
class HalfNormal(Speeds):
    """Durations minimum + scale·|z| with z standard normal: never faster than ``minimum``, sometimes slower.

    ``minimum`` and ``scale`` are numbers for all workers, or lists with one for each; without a list, ``workers`` is
    needed. Simulations of Ringmaster and Ringleader ASGD use these durations, and those of FedBuff use them without a
    minimum.

    >>> HalfNormal([1.0, 2.0], scale=0.5).num_workers
    2
    """

    minimum: Values
    scale: Values
    workers: int | None = None
    num_workers: int = field(init=False, repr=False)
    _minimum: PerWorker = field(init=False, repr=False, compare=False)
    _scale: PerWorker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.num_workers = count_workers(self.minimum, self.workers, "minimum")
        self._minimum = per_worker(self.minimum, self.num_workers, "minimum")
        self._scale = per_worker(self.scale, self.num_workers, "scale", zero_allowed=True)

    def timing(self, seed: int) -> Timing:
        """Return a function that draws minimum + scale·|z|."""
        return FormulaTiming(self.formula(seed))

    def formula(self, seed: int) -> Formula:
        """Return the distribution with these minima and scales."""
        return Formula(HALF_NORMAL, stream_key(Stream(seed, "speed")), self._minimum.array, self._scale.array)


@final
@dataclass
class Pareto(Speeds):
    """Heavy tails: P(duration > t) = (minimum/t)^shape. With a shape of 1 or less the mean is infinite.

    ``minimum`` and ``shape`` are numbers for all workers, or lists with one for each; without a list, ``workers`` is
    needed.
    """

    minimum: Values
    shape: Values
    workers: int | None = None
    num_workers: int = field(init=False, repr=False)
    _minimum: PerWorker = field(init=False, repr=False, compare=False)
    _shape: PerWorker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.num_workers = count_workers(self.minimum, self.workers, "minimum")
        self._minimum = per_worker(self.minimum, self.num_workers, "minimum")
        self._shape = per_worker(self.shape, self.num_workers, "shape")

    def timing(self, seed: int) -> Timing:
        """Return a function that draws minimum·u^(−1/shape)."""
        return FormulaTiming(self.formula(seed))

    def formula(self, seed: int) -> Formula:
        """Return the distribution with these minima and shapes."""
        return Formula(PARETO, stream_key(Stream(seed, "speed")), self._minimum.array, self._shape.array)


@final
@dataclass
class BySample(Speeds):
    """Durations that depend on the data: seconds times ``factor(sample)``.

    The guarantees for delay-adaptive stepsizes assume that delays do not depend on the samples (Assumption 1);
    this model shows what happens when they do. ``factor`` gets the sample of the worker's gradient.
    ``seconds`` is a number for all workers, which needs ``workers``, or a list with one for each.
    """

    seconds: Values
    factor: Callable[[Sample], float]
    workers: int | None = None
    num_workers: int = field(init=False, repr=False)
    _seconds: PerWorker = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.factor):
            raise TypeError(f"factor must be a function of the sample, got {self.factor!r}")
        self.num_workers = count_workers(self.seconds, self.workers, "seconds")
        self._seconds = per_worker(self.seconds, self.num_workers, "seconds")

    def timing(self, seed: int) -> Timing:
        """Return a function that computes seconds·factor(sample)."""
        samples, seconds = sampler(seed), self._seconds

        def timing(worker: int, job: int, start: float) -> tuple[float, float]:
            factor = self.factor(samples.sample(worker, job))
            took = seconds[worker] * checks.positive(factor, "factor(sample)", "it multiplies a duration")
            return took, start + took

        return timing
