"""The sum lemma: how much stepsize a delay-adaptive rule keeps, for all delays."""

from __future__ import annotations

import math

from nowait.core import Constant, DelayAdaptive, ExponentialDelayAdaptive

MOST_HALVINGS = 200


def least_share(rule: Constant | DelayAdaptive | ExponentialDelayAdaptive, M: int) -> float:
    """Return the largest s with Σ γ̂_k ≥ s·K·γ for all delays, K ≥ M.

    The delays τ̂_k of the gradients computed at x_1 … x_K are at least 1 and add up to at most K·M. So with γ_k = γ·φ(τ)
    the mean of φ(τ̂_k) is at least the lower convex envelope of φ on [1, ∞) at M. All rules here are constant up to some
    delay and convex from there on, so the envelope is the tangent from (1, φ(1)) up to the point where it touches φ,
    and φ itself after it. A fast worker that alternates with a cycle of the M − 1 others comes close to it for large M.

    >>> least_share(Constant(0.1), 8), round(least_share(DelayAdaptive(0.1, cut=8.0), 8), 4)
    (1.0, 0.7664)
    """
    if isinstance(rule, Constant):
        return 1.0
    cut, rate = _shape(rule, M)
    if _factor(1.0, cut, rate) < 1.0:  # φ is convex everywhere
        return _factor(float(M), cut, rate)
    touching = _tangent_point(cut, rate)
    if touching <= M:
        return _factor(float(M), cut, rate)
    slope = (1.0 - _factor(touching, cut, rate)) / (touching - 1.0)
    return 1.0 - (M - 1) * slope


def _shape(rule: DelayAdaptive | ExponentialDelayAdaptive, M: int) -> tuple[float, float]:
    """Return c and r of φ(t) = min(1, c·exp(−r·t)/t)."""
    if isinstance(rule, ExponentialDelayAdaptive):
        return rule.cut, rule.rate
    return (float(M) if rule.cut is None else rule.cut), 0.0


def _factor(delay: float, cut: float, rate: float) -> float:
    return min(1.0, cut * math.exp(-rate * delay) / delay)


def _tangent_point(cut: float, rate: float) -> float:
    """Return the t at which the line from (1, 1) touches c·exp(−r·t)/t; without r it is c + √(c² − c)."""
    low, high = 1.0, cut + math.sqrt(cut * cut - cut)  # the exponential moves the point to the left
    if rate == 0.0:
        return high

    def is_before(t: float) -> bool:
        """Return True if the chord from (1, 1) to t is still getting steeper."""
        share = cut * math.exp(-rate * t) / t
        return share >= 1.0 or share * ((1 / t + rate) * (t - 1) + 1) > 1.0

    for _ in range(MOST_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if is_before(middle) else (low, middle)
    return high
