"""Speedups from the workers' speeds: the paper's Section 1.2 and Table 2, and the time to a given accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import checks
from nowait.core.types import Floats
from nowait.theory.constants import Constants, constants_of
from nowait.theory.rates import Rate
from nowait.theory.regimes import SpeedupRange, speedup_range

OLD = "Asynchronous SGD, constant stepsize (by the longest delay)"
ASYNCHRONOUS = "Asynchronous SGD, delay-adaptive"
MINIBATCH = "Minibatch SGD"


def speedup(seconds: Iterable[float]) -> Speedup:
    """Return the speedup of asynchronous over minibatch SGD for workers with these seconds per gradient.

    >>> gain = speedup([1.0, 1.0, 1.0, 10.0])
    >>> gain.speedup, gain.max_delay
    (7.75, 31.0)
    >>> gain.async_steps(100), gain.minibatch_steps(100)
    (310, 10)
    >>> gain.worth_removing
    [3]
    """
    return Speedup(checked_seconds(seconds))


@final
@dataclass(frozen=True, eq=False)
class Speedup:
    """The numbers of Section 1.2 and Table 2, for fixed seconds s_m per gradient."""

    seconds: Floats

    @property
    def workers(self) -> int:
        """The number of workers M."""
        return len(self.seconds)

    @property
    def rate(self) -> float:
        """Gradients per second of all workers together: Σ 1/s_m."""
        return float((1 / self.seconds).sum())

    @property
    def harmonic_mean(self) -> float:
        """The harmonic mean of the seconds: HM(s) = M/Σ(1/s_m)."""
        return self.workers / self.rate

    @property
    def max_delay(self) -> float:
        """τ_max ≈ Σ s_max/s_m: the number of steps made while the slowest worker computes one gradient."""
        return float(self.seconds.max() * self.rate)

    @property
    def speedup(self) -> float:
        """s_max/HM(s), at least 1: the speedup over minibatch SGD in the optimisation terms (Table 2)."""
        return float(self.seconds.max() / self.harmonic_mean)

    @property
    def ceiling(self) -> float:
        """s_max/s_min: the fastest worker computes so many gradients in a row while minibatch SGD makes one step."""
        return float(self.seconds.max() / self.seconds.min())

    def expected(self, noise: float | None = None) -> SpeedupRange:
        """Return between what the speedup is expected to be in a run, for the noise σ²/(M·L·ε) of ``relative_noise``.

        With little noise ``speedup`` is roughly the least and ``ceiling`` the most. With much noise it is 0.5 to 1.6
        times ``speedup``. None is unknown noise. If compute times vary, minibatch SGD waits for the longest of every
        round, and both numbers are too low.

        >>> gain = speedup([1.0, 1.0, 1.0, 10.0])
        >>> print(gain.expected(noise=0.0), "|", gain.expected(noise=5.0), "|", gain.expected())
        5.42 to 10 | 3.88 to 10 | 3.88 to 10
        """
        return speedup_range(self.speedup, self.ceiling, noise)

    @property
    def delays(self) -> Floats:
        """The delay of each worker's gradients in the steady state: s_m·Σ 1/s. The mean delay over steps is M."""
        return self.seconds * self.rate

    def async_steps(self, budget_seconds: float) -> int:
        """Return K_async = Σ ⌊S/s_m⌋, the steps of asynchronous SGD in S seconds."""
        budget = checks.not_negative(budget_seconds, "budget_seconds", "it is a duration")
        return sum(map(int, _whole(budget / self.seconds)))

    def minibatch_steps(self, budget_seconds: float) -> int:
        """Return K_mini = ⌊S/s_max⌋, the steps of minibatch SGD in S seconds."""
        budget = checks.not_negative(budget_seconds, "budget_seconds", "it is a duration")
        return int(_whole(budget / self.seconds.max()))

    def worth_adding(self, seconds: float) -> bool:
        """Return True if one more worker makes M/K smaller, that is, if its seconds are at most HM(s) (erratum E9).

        This looks at the optimisation term only. The noise term improves with every worker: see ``best_subset``.
        """
        return checks.positive(seconds, "seconds", "it is how long a gradient takes") <= self.harmonic_mean * (
            1 + 1e-12
        )

    @property
    def worth_removing(self) -> list[int]:
        """Workers whose removal makes M/K smaller: those with more seconds than the harmonic mean of the others.

        This holds for removing one of them: after that, the mean is different. With equal workers the list is empty.
        """
        return np.flatnonzero(self.seconds > self.harmonic_mean * (1 + 1e-12)).tolist() if self.workers > 1 else []

    def fastest(self, count: int) -> list[int]:
        """Return the ``count`` fastest workers, sorted by number."""
        count = checks.at_least(0, count, "count", "it is a number of workers")
        return sorted(np.argsort(self.seconds, kind="stable")[:count].tolist())

    def best_subset(self, setting: str, constants: Constants, accuracy: float) -> list[int]:
        """Return the workers with which delay-adaptive asynchronous SGD is predicted to reach the accuracy first.

        It compares the m fastest workers, for every m, by the rates of Table 1. In the non-convex setting this is
        "Naive Optimal ASGD" of Maranjyan, Tyurin and Richtárik, "Ringmaster ASGD" (2025).
        """
        if setting == "heterogeneous":
            raise ValueError("no worker can be left out when workers have data of their own: that would change F")
        times = np.array(self._times_of_fastest(Rate.of(setting, constants), accuracy))
        return self.fastest(1 + int(np.flatnonzero(times <= times.min() * (1 + 1e-9))[-1]))

    def times(self, setting: str, constants: Constants, accuracy: float) -> dict[str, float]:
        """Return the seconds to the accuracy by method, up to a common constant factor and without logarithms.

        The accuracy is in terms of ``prescribe``'s guarantee: F − F*, or ‖∇F‖² in non-convex settings. Optimal time
        complexities (Rennala, Ringmaster, Malenia, Ringleader) are known for the non-convex settings.
        """
        rate, constants = Rate.of(setting, constants), constants_of(constants)
        waiting = Rate.of("nonconvex", constants) if setting == "nonconvex-lipschitz" else rate
        apart = rate.case.need("zeta") ** 2 if setting == "heterogeneous" else 0.0
        times = {
            MINIBATCH: waiting.steps_to(accuracy, self.workers) / self.workers * float(self.seconds.max()),
            OLD: _unless_biased(rate, accuracy - apart, self.max_delay) / self.rate,
            ASYNCHRONOUS: _unless_biased(rate, accuracy - apart, self.workers) / self.rate,
        }
        if setting == "nonconvex":
            times[f"{ASYNCHRONOUS}, best subset"] = min(self._times_of_fastest(rate, accuracy))
            times["Rennala SGD"] = times["Ringmaster ASGD"] = rennala_time(self.seconds, constants, accuracy)
        if setting == "heterogeneous":
            times["Malenia SGD"] = times["Ringleader ASGD"] = malenia_time(self.seconds, constants, accuracy)
        return times

    def _times_of_fastest(self, rate: Rate, accuracy: float) -> list[float]:
        rates = np.cumsum(1 / np.sort(self.seconds))
        return [rate.steps_to(accuracy, count) / float(rates[count - 1]) for count in range(1, self.workers + 1)]

    def __repr__(self) -> str:
        return (
            f"Speedup({self.workers} workers, {self.seconds.min():g} to {self.seconds.max():g} s per gradient: "
            f"{self.speedup:.3g} x by s_max/HM, up to {self.ceiling:.3g} x by s_max/s_min, "
            f"longest delay {self.max_delay:.4g})"
        )


def rennala_time(seconds: Iterable[float], constants: Constants, accuracy: float) -> float:
    """Return min over m of (1/m·Σ_{i≤m} 1/s_i)^{−1}·(LΔ/ε + σ²LΔ/(mε²)), optimal if all workers have the same data.

    For E‖∇F‖² ≤ ε and L-smooth F, up to a constant: Tyurin and Richtárik, "Optimal Time Complexities of Parallel
    Stochastic Optimization Methods" (2023), attained by Rennala SGD, and by Ringmaster ASGD (Maranjyan, Tyurin and
    Richtárik 2025) without knowing the speeds.

    >>> rennala_time([1.0, 100.0], Constants(L=1.0, sigma=0.0, Delta=1.0), accuracy=0.1)
    10.0
    """
    slow_last = np.sort(checked_seconds(seconds))
    first, noise = _terms(constants, accuracy, "the time of Rennala and Ringmaster")
    counts = np.arange(1, len(slow_last) + 1)
    means = counts / np.cumsum(1 / slow_last)
    return float((means * (first + noise / counts)).min())


def malenia_time(seconds: Iterable[float], constants: Constants, accuracy: float) -> float:
    """Return s_max·LΔ/ε + mean(s)·σ²LΔ/(M·ε²), optimal if workers have data of their own.

    For E‖∇F‖² ≤ ε and L-smooth F, up to a constant: Tyurin and Richtárik (2023) for Malenia SGD; Ringleader ASGD
    (Maranjyan and Richtárik 2025) attains it asynchronously.

    >>> malenia_time([1.0, 100.0], Constants(L=1.0, sigma=0.0, Delta=1.0), accuracy=0.1)
    1000.0
    """
    checked = checked_seconds(seconds)
    first, noise = _terms(constants, accuracy, "the time of Malenia and Ringleader")
    return float(checked.max() * first + checked.mean() * noise / len(checked))


def lower_bound_time(
    seconds: Iterable[float], constants: Constants, accuracy: float, setting: str = "nonconvex"
) -> float:
    """Return the seconds that every method needs for E‖∇F‖² ≤ ``accuracy`` in the worst case, up to a constant.

    Tyurin and Richtárik (2023): for every method that only uses these workers' stochastic gradients there is an
    L-smooth F with these constants on which it needs a constant times this time; the constant does not depend on
    anything, and its value is not known. ``setting`` is "nonconvex" if all workers have the same data, or
    "heterogeneous". Up to a constant it is the time of Rennala or Malenia SGD (``rennala_time``, ``malenia_time``),
    which are therefore optimal. A given F may be easier: then a method may be faster than this. So may one with
    different data whose ζ² is below the accuracy, because the bound is for functions with any ζ.

    >>> lower_bound_time([1.0, 100.0], Constants(L=1.0, sigma=0.0, Delta=1.0), accuracy=0.1)
    10.0
    """
    times = {"nonconvex": rennala_time, "heterogeneous": malenia_time}
    return times[checks.one_of(setting, tuple(times), "setting")](seconds, constants, accuracy)


def _terms(constants: Constants, accuracy: float, by: str) -> tuple[float, float]:
    """Return LΔ/ε and σ²LΔ/ε²."""
    constants, accuracy = constants_of(constants), checks.positive(accuracy, "accuracy", "it is the error to reach")
    first = constants.need_positive("L", by) * constants.need_positive("Delta", by) / accuracy
    return first, first * constants.need("sigma", by) ** 2 / accuracy


def _unless_biased(rate: Rate, accuracy: float, width: float) -> float:
    """Return the steps to the accuracy; ∞ if the workers' different data keep the error above it."""
    return rate.steps_to(accuracy, width) if accuracy > 0 else math.inf


def _whole(number: Any) -> Any:
    """Return ⌊·⌋ with a tolerance for rounding, so that 0.3/0.1 counts as 3."""
    return np.floor(number * (1 + 1e-12))


def checked_seconds(seconds: Any, name: str = "seconds") -> Floats:
    """Return each worker's seconds per gradient as an array, or raise an error that calls the argument ``name``."""
    return np.array(
        [
            checks.positive(value, f"{name}[{worker}]", "it is how long a gradient takes")
            for worker, value in enumerate(checks.listed(seconds, name, "numbers, one for each worker"))
        ]
    )
