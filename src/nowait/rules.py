"""The delay rules as plain functions, for code that does not use nowait's engines.

Each returns the factor by which a gradient's step is multiplied. ``delay`` counts from 1: a fresh gradient, computed at
the params that it changes, has delay 1. Numbers, numpy arrays, PyTorch tensors and JAX arrays (also traced
ones) are accepted; the result is of the same kind.

>>> from nowait import rules
>>> rules.delay_adaptive(delay=8, workers=4)
0.5
>>> rules.polynomial_decay(delay=4, power=0.5)
0.5
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

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
    return _evaluated(Constant(1.0), delay, workers)


def delay_adaptive(delay: Any, workers: Any, cut: float | None = None) -> Any:
    """Return min(1, cut/delay); ``cut`` is the number of workers unless given.

    Mishchenko, Bach, Even and Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays" (2022).
    """
    return _evaluated(DelayAdaptive(1.0, cut), delay, workers)


def exponential_delay_adaptive(delay: Any, workers: Any = 1, *, cut: float, rate: float) -> Any:
    """Return min(1, cut·exp(−rate·delay)/delay), the rule of the same paper for strongly convex functions."""
    return _evaluated(ExponentialDelayAdaptive(1.0, cut, rate), delay, workers)


def polynomial_decay(delay: Any, workers: Any = 1, *, power: float = 1.0) -> Any:
    """Return delay^(−power): 1 is Zhang et al. (2016), 1/2 the discount of FedAsync and FedBuff."""
    return _evaluated(PolynomialDecay(1.0, power), delay, workers)


def hinge_decay(delay: Any, workers: Any = 1, *, slope: float = 10.0, patience: float = 4.0) -> Any:
    """Return 1 while delay − 1 ≤ patience, then 1/(slope·(delay − 1 − patience) + 1): Xie, Koyejo and Gupta (2019)."""
    return _evaluated(HingeDecay(1.0, slope, patience), delay, workers)


def cosine_gate(delay: Any, workers: Any = 1, *, rate: float = 0.1, cutoff: float = 16.0) -> Any:
    """Return exp(−rate·δ)·(1 + cos(π·δ/cutoff))/2 for δ = delay − 1 below ``cutoff``, then 0; see ``nw.CosineGate``."""
    return _evaluated(CosineGate(1.0, rate, cutoff), delay, workers)


def threshold(delay: Any, workers: Any, *, concurrency: float | None = None, beyond: float = 0.0) -> Any:
    """Return 1 while delay − 1 ≤ concurrency (workers unless given), then min(1, beyond/(delay − 1)).

    Koloskova, Stich and Jaggi (2022), Theorem 8.
    """
    return _evaluated(Threshold(1.0, concurrency, beyond), delay, workers)


def factor_of(rule: Stepsize | Rule) -> Rule:
    """Return ``rule(delay, workers)`` for a function as it is, and for a stepsize rule what it multiplies γ by.

    A stepsize rule that depends on the step, such as ``nw.Scheduled``, is refused: these functions know the delay, and
    the learning rates of other training code have schedules of their own.

    >>> import nowait as nw
    >>> factor_of(nw.DelayAdaptive(0.01))(8, 4)
    0.5
    """
    if not isinstance(rule, Stepsize):
        if not callable(rule):
            raise TypeError(f"a delay rule must be a function of (delay, workers) or a stepsize rule, got {rule!r}")
        return rule
    if _reads_step(rule):
        raise ValueError(
            f"{type(rule).__name__} depends on the number of the step, which is not known here, so its schedule would "
            f"stay at step 1: give the delay rule alone, and a schedule of learning rates to the optimiser"
        )
    try:
        unit = rule.with_size(1.0)
    except TypeError:
        raise TypeError(
            f"{type(rule).__name__} has no with_size(size), which would set its γ to 1: give a function of (delay, "
            f"workers) that returns the factor"
        ) from None
    return lambda delay, workers: _evaluated(unit, delay, workers)


def _reads_step(rule: Stepsize) -> bool:
    """Whether a rule reads its step: then it cannot be computed for a step that allows no operation."""
    rule(1, 1, 1)  # an error that has another cause is raised here
    try:
        rule(1, 1, _UnknownStep())
    except Exception:
        return True
    return False


class _UnknownStep:
    """Stands for a step. Reading its value raises: Python and NumPy find no arithmetic in it, and no order."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("the step is not known")

    def __bool__(self) -> bool:
        raise TypeError("the step is not known")


def checked_factor(factor: Rule, delay: object, workers: int) -> float:
    """Return the factor of a delay; raise if the delay is below 1, or the factor is negative or infinite."""
    delay = checks.at_least(1, delay, "delay", "a fresh gradient has delay 1")
    value = float(factor(delay, workers))
    if not 0.0 <= value < float("inf"):
        raise ValueError(f"the rule returned {value} for delay {delay}: a factor must be finite and at least 0")
    return value


def _evaluated(rule: Stepsize, delay: Any, workers: Any) -> Any:
    """Return the factor of a delay; for PyTorch tensors a tensor on their device, computed with numpy in float64."""
    tensors = [value for value in (delay, workers) if _is_tensor(value)]
    if not tensors:
        return rule(delay, workers, 1)
    factors = rule(_on_host(delay), _on_host(workers), 1)
    return tensors[0].new_tensor(np.asarray(factors), dtype=(tensors[0] * 1.0).dtype)


def _on_host(value: Any) -> Any:
    return value.double().numpy(force=True) if _is_tensor(value) else value


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    return torch is not None and isinstance(value, torch.Tensor)
