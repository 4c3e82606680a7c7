"""Delay patterns: arbitrary delays, as the theorems allow them."""

from __future__ import annotations

from collections.abc import Callable

from nowait.core.randomness import CounterRandom
from nowait.speeds import Adversary, Fixed, Pareto, Speeds, UpDown

STRAGGLER = 100.0


def equal(workers: int) -> Speeds:
    """All take the same time: after the first M steps every delay is M."""
    return Fixed(1.0, workers=workers)


def straggler(workers: int) -> Speeds:
    """One worker is a hundred times slower than the others."""
    return Fixed([1.0] * (workers - 1) + [STRAGGLER])


def pareto(workers: int) -> Speeds:
    """Heavy tails: the mean is finite, the variance is not."""
    return Pareto(1.0, shape=1.1, workers=workers)


def time_varying(workers: int) -> Speeds:
    """Every worker has outages, three quarters of the time, in which its ticket rests."""
    return UpDown(1.0, up=20.0, down=60.0, workers=workers)


def adversarial(workers: int) -> Speeds:
    """One worker alone for a while of random length, then everybody at once with old gradients; then another one."""
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
"""Functions of the number of workers, by name."""
