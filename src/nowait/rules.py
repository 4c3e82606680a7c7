"""The delay rules as plain functions, for code that does not use nowait's engines.

Each returns the factor by which a gradient's step is multiplied. ``delay`` counts from 1: a fresh gradient, computed at
the params that it changes, has delay 1. Numbers, numpy arrays and JAX arrays are accepted, also traced ones.

>>> from nowait import rules
>>> rules.delay_adaptive(delay=8, workers=4)
0.5
>>> rules.polynomial_decay(delay=4, power=0.5)
0.5
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nowait.core import checks
from nowait.core.stepsizes import (
    Constant,
    CosineGate,
    DelayAdaptive,
    ExponentialDelayAdaptive,
    HingeDecay,
    PolynomialDecay,
    Stepsize,
    Threshold,
)

__all__ = [
    "constant",
    "cosine_gate",
    "delay_adaptive",
    "exponential_delay_adaptive",
    "factor_of",
    "hinge_decay",
    "polynomial_decay",
    "threshold",
]

Rule = Callable[[Any, Any], Any]
"""``rule(delay, workers)`` returns a factor."""
SCALES = ("step", "gradient")
"""What a factor multiplies: the step that an optimiser makes, or the gradient that it gets."""


def constant(delay: Any, workers: Any = 1) -> Any:
    """Return 1 whatever the delay is: classical asynchronous SGD."""
    return Constant(1.0)(delay, workers, 1)


def delay_adaptive(delay: Any, workers: Any, cut: float | None = None) -> Any:
    """Return min(1, cut/delay); ``cut`` is the number of workers unless given.

    Mishchenko, Bach, Even and Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays" (2022).
    """
    return DelayAdaptive(1.0, cut)(delay, workers, 1)


def exponential_delay_adaptive(delay: Any, workers: Any = 1, *, cut: float, rate: float) -> Any:
    """Return min(1, cut·exp(−rate·delay)/delay), the rule of the same paper for strongly convex functions."""
    return ExponentialDelayAdaptive(1.0, cut, rate)(delay, workers, 1)


def polynomial_decay(delay: Any, workers: Any = 1, *, power: float = 1.0) -> Any:
    """Return delay^(−power): 1 is Zhang et al. (2016), 1/2 the discount of FedAsync and FedBuff."""
    return PolynomialDecay(1.0, power)(delay, workers, 1)


def hinge_decay(delay: Any, workers: Any = 1, *, slope: float = 10.0, patience: float = 4.0) -> Any:
    """Return 1 while delay − 1 ≤ patience, then 1/(slope·(delay − 1 − patience) + 1): Xie, Koyejo and Gupta (2019)."""
    return HingeDecay(1.0, slope, patience)(delay, workers, 1)


def cosine_gate(delay: Any, workers: Any = 1, *, rate: float = 0.1, cutoff: float = 16.0) -> Any:
    """Return exp(−rate·δ)·(1 + cos(π·δ/cutoff))/2 for δ = delay − 1 below ``cutoff``, then 0; see ``nw.CosineGate``."""
    return CosineGate(1.0, rate, cutoff)(delay, workers, 1)


def threshold(delay: Any, workers: Any, *, concurrency: float | None = None, beyond: float = 0.0) -> Any:
    """Return 1 while delay − 1 ≤ concurrency (workers unless given), then min(1, beyond/(delay − 1)).

    Koloskova, Stich and Jaggi (2022), Theorem 8.
    """
    return Threshold(1.0, concurrency, beyond)(delay, workers, 1)


def factor_of(rule: Stepsize | Rule) -> Rule:
    """Return ``rule(delay, workers)`` for a function as it is, and for a stepsize rule what it multiplies γ by.

    >>> import nowait as nw
    >>> factor_of(nw.DelayAdaptive(0.01))(8, 4)
    0.5
    """
    if not isinstance(rule, Stepsize):
        if not callable(rule):
            raise TypeError(f"a delay rule must be a function of (delay, workers) or a stepsize rule, got {rule!r}")
        return rule
    unit = rule.with_size(1.0)
    return lambda delay, workers: unit(delay, workers, 1)


def checked_factor(factor: Rule, delay: object, workers: int) -> float:
    """Return the factor of a delay; raise if the delay is below 1, or the factor is negative or infinite."""
    delay = checks.at_least(1, delay, "delay", "a fresh gradient has delay 1")
    value = float(factor(delay, workers))
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"the rule returned {value} for delay {delay}: a factor must be finite and at least 0")
    return value
