"""Delay patterns for ``nw.certify``: the theorems allow arbitrary delays."""

from __future__ import annotations

from collections.abc import Callable

from nowait.core.randomness import CounterRandom
from nowait.speeds import Adversary, Fixed, Pareto, Speeds, UpDown

STRAGGLER = 100.0


def equal(workers: int) -> Speeds:
    """Return equal speeds: after the first M steps every delay is M."""
    return Fixed(1.0, workers=workers)


def straggler(workers: int) -> Speeds:
    """Return speeds with one worker a hundred times slower than the others."""
    return Fixed([1.0] * (workers - 1) + [STRAGGLER])


def pareto(workers: int) -> Speeds:
    """Return heavy-tailed compute times: their mean is finite, their variance is not."""
    return Pareto(1.0, shape=1.1, workers=workers)


def time_varying(workers: int) -> Speeds:
    """Return speeds with outages: every worker pauses its computation for three quarters of the time."""
    return UpDown(1.0, up=20.0, down=60.0, workers=workers)


def adversarial(workers: int) -> Speeds:
    """Return an order of arrivals: one worker alone for a random time, then all others with old gradients."""
    random = CounterRandom(0, "adversary")
    order: list[int] = []
    while len(order) < 2_000 * workers:
        order += [random.integer(workers)] * (1 + random.integer(workers * 4 ** random.integer(5)))
        order += random.permutation(workers)
    return Adversary(order, workers=workers)


PATTERNS: dict[str, Callable[[int], Speeds]] = {
    "equal": equal,
    "straggler": straggler,
    "pareto": pareto,
    "time-varying": time_varying,
    "adversarial": adversarial,
}
"""By name: a function of the number of workers."""
