"""Delay patterns for ``nw.tolerance``: three ways in which delays with the same mean can be spread.

Every pattern with mean delay τ has τ workers, because in asynchronous SGD with M workers the delays have the mean M: in
every step each of the M tickets in flight becomes one step older. τ = 1 is one worker, and plain SGD in all patterns.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heapreplace

from nowait.core.randomness import CounterRandom
from nowait.speeds import Adversary, Fixed, Speeds

STRAGGLER_EVERY = 5
"""In the straggler pattern one gradient in this many comes from a slow worker."""


def constant(delay: int, steps: int, seed: int) -> Speeds:  # noqa: ARG001 (all patterns are called alike)
    """Return τ equal workers: step k uses a gradient with delay min(k, τ)."""
    return Fixed(1.0, workers=delay)


def uniform(delay: int, steps: int, seed: int) -> Speeds:
    """Return τ workers, each of whose gradients takes a time drawn uniformly between 0 and twice the mean.

    Delays are spread almost evenly between 1 and 2τ; a few are longer, because time is not counted in steps exactly.
    """
    random = CounterRandom(seed, "tolerance")
    due = [(random.uniform(), worker) for worker in range(delay)]
    heapify(due)
    order = []
    for _ in range(steps):
        now, worker = due[0]
        order.append(worker)
        heapreplace(due, (now + random.uniform(), worker))
    return Adversary(order, workers=delay)


def straggler(delay: int, steps: int, seed: int) -> Speeds:  # noqa: ARG001 (all patterns are called alike)
    """Return one fast worker and τ − 1 slow ones that take turns: every fifth gradient is 5·(τ − 1) steps old.

    The gradients of the fast worker have delay 1, or 2 after that of a slow one, so that the mean is τ here too. In the
    first 5·(τ − 1) steps the old gradients are younger, because none is older than the run.
    """
    order: list[int] = []
    for slow in range(1, delay):
        order += [0] * (STRAGGLER_EVERY - 1) + [slow]
    return Adversary(order or [0], workers=delay)


PATTERNS: dict[str, Callable[[int, int, int], Speeds]] = {
    "constant": constant,
    "uniform": uniform,
    "straggler": straggler,
}
"""By name: a function of the mean delay, the steps of the run and its seed."""
