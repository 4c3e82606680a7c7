"""Guarantees of the baselines: minibatch SGD, and asynchronous SGD with a constant stepsize chosen by τ_max.

The rates are those that the paper compares with (its Table 1). It gives no constants for them; those here come from
short proofs, outlined in the docstrings, so that the guarantees can be computed, compared and checked.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from nowait.core import Constant, RandomIterate, StronglyConvexAverage, UniformAverage, checks
from nowait.theory.bounds import (
    convex_bound,
    convex_lipschitz_bound,
    heterogeneous_bound,
    inverse_of_growth,
    nonconvex_bound,
    nonconvex_lipschitz_bound,
    scaled,
    strongly_convex_bound,
)
from nowait.theory.case import Case
from nowait.theory.constants import Constants
from nowait.theory.guarantee import SQUARED_GRADIENT, SUBOPTIMALITY, Guarantee, Prescription
from nowait.theory.theorems import checked_case, known_case, lipschitz_stepsize, log_term, noise_stepsize


def prescribe_minibatch(setting: str, constants: Constants, *, workers: int, steps: int) -> Prescription:
    """Return stepsize, output and guarantee of minibatch SGD: ``steps`` rounds of M = ``workers`` gradients each.

    ``setting`` is one of those of ``prescribe``. These are R steps of SGD whose gradients have the variance σ²/M;
    differences between the workers' data do not matter. The textbook proofs, for outputs made from x_1 … x_R (x_1 has
    one step's noise more than x_0), give:

    * convex, γ ≤ 1/(2L): (B² + γ²v)/(2γR) + γv/2 with v = σ²/M;
    * strongly convex, γ ≤ 1/(2L), weights exp(μγt): [(B² + γ²v)·μ/(exp(μγR) − 1) + γv]/(2(1 − Lγ));
    * non-convex, γ ≤ 1/L: [Δ/(γR) + Lγv(1 + 1/R)/2]/(1 − Lγ/2);
    * convex, G-Lipschitz: (B² + γ²G²)/(2γR) + γG²/2.

    >>> p = prescribe_minibatch(
    ...     "convex", Constants(L=1.0, sigma=0.0, B=1.0), workers=8, steps=100
    ... )
    >>> float(p.guarantee)
    0.01
    """
    case = known_case(setting, constants, workers, steps)
    own = {
        "convex-lipschitz": _minibatch_lipschitz,
        "convex": _minibatch_convex,
        "strongly-convex": _minibatch_strongly_convex,
    }
    return case.solved_by(own.get(setting, _minibatch_nonconvex))


def prescribe_constant(
    setting: str, constants: Constants, *, workers: int, steps: int, max_delay: float
) -> Prescription:
    """Return stepsize, output and guarantee of asynchronous SGD with a constant stepsize and delays ≤ ``max_delay``.

    ``max_delay`` is τ_max. The rates with τ_max in place of M are those of Stich and Karimireddy, "The Error-Feedback
    Framework" (2020), and of earlier work. The constants here: a constant γ ≤ 1/(4L·max(M, τ_max)) is at most what
    Theorems 3 and 4 allow for every gradient, so their proofs hold, and the stepsizes add up to K·γ. (8 in place of 4
    for strongly convex and heterogeneous problems. For Lipschitz losses Theorems 1 and 2 need no τ_max; this is the
    earlier result.) Gradients still in flight at the end count too: their age must be at most ``max_delay``.

    >>> c = Constants(L=1.0, sigma=0.0, B=1.0)
    >>> short, long = (
    ...     prescribe_constant("convex", c, workers=8, steps=10_000, max_delay=d)
    ...     for d in (8, 8_000)
    ... )
    >>> float(long.guarantee) / float(short.guarantee)
    1000.0
    """
    case = checked_case(setting, constants, workers, steps)
    longest = checks.positive(max_delay, "max_delay", "it is the longest delay, in steps; a fresh gradient has delay 1")
    make = _constant_lipschitz if setting.endswith("lipschitz") else _constant_smooth
    return case.solved_by(lambda same: make(same, max(same.M, longest)))


def _minibatch_lipschitz(case: Case) -> Prescription:
    gamma = case.need_positive("B") / (case.need_positive("G") * math.sqrt(case.K))
    return _minibatch(case, gamma, UniformAverage(), convex_lipschitz_bound(_one_worker(case), gamma))


def _minibatch_convex(case: Case) -> Prescription:
    R, L, B, sigma = case.K, case.need_positive("L"), case.need_positive("B"), case.need("sigma")
    gamma = min(1 / (2 * L), B * math.sqrt(case.M / (2 * R)) / sigma if sigma else math.inf)
    return _minibatch(case, gamma, UniformAverage(), convex_bound(_one_worker(case), gamma, R * gamma))


def _minibatch_strongly_convex(case: Case) -> Prescription:
    R, L, mu = case.K, case.need_positive("L"), case.need_positive("mu")
    B, sigma = case.need_positive("B"), case.need("sigma")
    variance = sigma**2 / case.M
    gamma = 1 / (2 * L)
    if sigma:
        gamma = min(gamma, log_term(mu * R * B / math.sqrt(variance)) / (mu * R))
    decay = mu * inverse_of_growth(mu * gamma * R)
    bound = Guarantee(SUBOPTIMALITY, B**2 * decay, variance * gamma * (gamma * decay + 1))
    return _minibatch(case, gamma, StronglyConvexAverage(mu), scaled(bound, 1 / (2 * (1 - L * gamma))))


def _minibatch_nonconvex(case: Case) -> Prescription:
    R, L, Delta, sigma = case.K, case.need_positive("L"), case.need_positive("Delta"), case.need("sigma")
    variance = sigma**2 / case.M
    gamma = min(1 / L, math.sqrt(Delta / (L * R * variance)) if sigma else math.inf)
    bound = Guarantee(SQUARED_GRADIENT, Delta / (gamma * R), L * gamma * variance * (1 + 1 / R) / 2)
    return _minibatch(case, gamma, RandomIterate(), scaled(bound, 1 / (1 - L * gamma / 2)))


def _one_worker(case: Case) -> Case:
    """Return the case of SGD with the mean of M gradients: one worker, whose gradients have the variance σ²/M."""
    sigma = case.constants.sigma
    less = None if sigma is None else sigma / math.sqrt(case.M)
    return replace(case, M=1, constants=replace(case.constants, sigma=less))


def _minibatch(case: Case, gamma: float, output: Any, bound: Guarantee) -> Prescription:
    return case.prescription("Minibatch SGD", Constant(gamma), output, bound)


def _constant_lipschitz(case: Case, longest: float) -> Prescription:
    """Return Theorems 1 and 2 with τ_max in place of M in the stepsize."""
    if case.setting == "convex-lipschitz":
        gamma = case.need_positive("B") / (case.need_positive("G") * math.sqrt(case.K * longest))
        return _constant(case, gamma, UniformAverage(), convex_lipschitz_bound(case, gamma))
    gamma = lipschitz_stepsize(case, longest)
    return _constant(case, gamma, RandomIterate(), nonconvex_lipschitz_bound(case, gamma))


def _constant_smooth(case: Case, longest: float) -> Prescription:
    """Return Theorems 3 and 4 with a stepsize that is small enough for every delay; the stepsizes add up to K·γ."""
    K, L, sigma = case.K, case.need_positive("L"), case.need("sigma")
    if case.setting == "strongly-convex":
        gamma = 1 / (8 * longest * L)
        if sigma:
            mu, B = case.need_positive("mu"), case.need_positive("B")
            gamma = min(gamma, 2 * log_term(mu * K * B / sigma) / (mu * K))
        output = StronglyConvexAverage(case.need_positive("mu") / 2)
        return _constant(case, gamma, output, strongly_convex_bound(case, gamma, K * gamma))
    if case.setting == "convex":
        gamma = min(1 / (4 * longest * L), case.need_positive("B") / (sigma * math.sqrt(K)) if sigma else math.inf)
        return _constant(case, gamma, UniformAverage(), convex_bound(case, gamma, K * gamma))
    if case.setting == "nonconvex":
        gamma = min(1 / (4 * longest * L), noise_stepsize(case))
        return _constant(case, gamma, RandomIterate(), nonconvex_bound(case, gamma, K * gamma))
    gamma = min(1 / (8 * longest * L), noise_stepsize(case))
    return _constant(case, gamma, RandomIterate(), heterogeneous_bound(case, gamma, K * gamma))


def _constant(case: Case, gamma: float, output: Any, bound: Guarantee) -> Prescription:
    return case.prescription("constant stepsize, by the longest delay", Constant(gamma), output, bound)
