"""Guarantees of asynchronous methods that limit the delays themselves: Ringmaster and Ringleader ASGD.

Their proofs follow the iterates x_k, not the virtual ones, since a dropped gradient has no place in those. The rules
and the rates are those of the papers; the constants are nowait's own (docs/proofs.md).
"""

from __future__ import annotations

import math
from dataclasses import replace

from nowait.core import Constant, Output, RandomIterate, UniformAverage, UniformIterate, checks
from nowait.theory.case import Case
from nowait.theory.constants import Constants
from nowait.theory.goal import prescribed
from nowait.theory.guarantee import SQUARED_GRADIENT, SUBOPTIMALITY, Guarantee, Prescription
from nowait.theory.rounds import same_data_case
from nowait.theory.theorems import ASSUMPTION_1, known_case


def prescribe_ringmaster(
    setting: str,
    constants: Constants,
    *,
    workers: int,
    max_delay: int | None = None,
    steps: int | None = None,
    accuracy: float | None = None,
) -> Prescription:
    """Return largest delay, stepsize, output and guarantee of Ringmaster ASGD ("convex" or "nonconvex").

    Maranjyan, Tyurin and Richtárik (2025). ``max_delay``, their R, is ⌈σ²/ε⌉ for an ``accuracy`` ε in the non-convex
    setting, as in the paper, and ⌈σ²/(Lε)⌉ in the convex one. With D = R − 1 and Lγ + 2(LγD)² ≤ 1,

    * convex: B²/(2γK) + (1 + 1/K)·γσ²(1 + 2LγD)/2 for the mean of x_1 … x_K;
    * non-convex: 2Δ/(γK) + (1 + 1/K)·Lγσ²(1 + 2LγD) for a uniformly random one of them.

    The paper has 2Δ/(γK) + 2Lγσ² for γ ≤ 1/(2LR). It also holds for asynchronous SGD whose delays happen to be ≤ R.

    >>> c = Constants(L=1.0, sigma=1.0, Delta=1.0)
    >>> p = prescribe_ringmaster("nonconvex", c, workers=8, accuracy=0.1)
    >>> p.call, p.steps
    ('RingmasterASGD(stepsize, max_delay=10)', 1431)
    """
    case = same_data_case(setting, constants, workers, "Ringmaster ASGD", "Ringleader ASGD (prescribe_ringleader)")
    if setting not in ("convex", "nonconvex"):
        raise ValueError(f"for Ringmaster ASGD the settings are 'convex' and 'nonconvex', got {setting!r}")
    R = _largest_delay(case, max_delay, accuracy)

    def make(count: int) -> Prescription:
        return replace(case, K=known_case(setting, constants, workers, count).K).solved_by(lambda c: _ringmaster(c, R))

    return prescribed(make, steps, accuracy)


def prescribe_ringleader(
    setting: str,
    constants: Constants,
    *,
    workers: int,
    gradients_each: float = 1.0,
    steps: int | None = None,
    accuracy: float | None = None,
) -> Prescription:
    """Return stepsize, output and guarantee of Ringleader ASGD ("heterogeneous" or "nonconvex").

    Maranjyan and Richtárik (2025). F_m must be L-smooth for every worker m; ζ does not matter. ``gradients_each``, b,
    is a lower bound of the harmonic mean over the workers of the gradients that a worker contributes to a step; 1
    always holds. With n workers, D = 2n − 2, v = σ²/(n·b) and Lγn + (LγD)² ≤ ½, which holds for γ ≤ 1/(4nL),

        E‖∇F(x̃)‖² ≤ 2Δ/(γK) + (1 + 1/K)·2Lγv·(1 + 1.5·D + LγD²).

    The paper has γ ≤ 1/(8nL).

    >>> c = Constants(L=1.0, sigma=0.1, Delta=1.0, zeta=5.0)
    >>> p = prescribe_ringleader("heterogeneous", c, workers=8, steps=100_000)
    >>> p.call, p.guarantee.heterogeneity
    ('RingleaderASGD(stepsize)', 0.0)
    """
    if setting not in ("heterogeneous", "nonconvex"):
        raise ValueError(f"for Ringleader ASGD the settings are 'heterogeneous' and 'nonconvex', got {setting!r}")
    known_case(setting, constants, workers, 1)
    each = checks.positive(gradients_each, "gradients_each", "it is a number of gradients")
    if each < 1:
        raise ValueError(
            f"gradients_each must be at least 1, got {gradients_each!r}: every worker contributes a gradient"
        )

    def make(count: int) -> Prescription:
        return known_case(setting, constants, workers, count).solved_by(lambda case: _ringleader(case, each))

    return prescribed(make, steps, accuracy)


def _largest_delay(case: Case, max_delay: int | None, accuracy: float | None) -> int:
    if max_delay is not None:
        return checks.at_least(1, max_delay, "max_delay", "a fresh gradient has delay 1")
    if accuracy is None:
        raise ValueError("max_delay= is missing: it can be chosen for an accuracy= only, not for a number of steps")
    aim = checks.positive(accuracy, "accuracy", "it is the error to guarantee")
    share = case.need_positive("L") if case.setting == "convex" else 1.0
    return max(1, math.ceil(case.need("sigma") ** 2 / (share * aim) - 1e-9))


def _ringmaster(case: Case, R: int) -> Prescription:
    K, L, sigma, D = case.K, case.need_positive("L"), case.need("sigma"), R - 1
    largest = 2 / (L * (1 + math.sqrt(1 + 8 * D**2)))
    output: Output
    if case.setting == "convex":
        B = case.need_positive("B")
        gamma = min(largest, B / (sigma * math.sqrt(K)) if sigma else math.inf)
        noise = (1 + 1 / K) * gamma * sigma**2 * (1 + 2 * L * gamma * D) / 2
        bound, output = Guarantee(SUBOPTIMALITY, B**2 / (2 * gamma * K), noise), UniformAverage()
    else:
        Delta = case.need_positive("Delta")
        gamma = min(largest, math.sqrt(2 * Delta / (K * L)) / sigma if sigma else math.inf)
        noise = (1 + 1 / K) * L * gamma * sigma**2 * (1 + 2 * L * gamma * D)
        bound, output = Guarantee(SQUARED_GRADIENT, 2 * Delta / (gamma * K), noise), UniformIterate()
    made = case.prescription("Ringmaster ASGD", Constant(gamma), output, bound, *_notes("1/(2LR)"))
    return replace(made, method="RingmasterASGD", parameters={"max_delay": R})


def _ringleader(case: Case, each: float) -> Prescription:
    K, n, L = case.K, case.M, case.need_positive("L")
    Delta, D = case.need_positive("Delta"), 2 * n - 2
    variance = case.need("sigma") ** 2 / (n * each)
    gamma = 1 / (L * (n + math.sqrt(n**2 + 2 * D**2)))
    if variance:
        gamma = min(gamma, math.sqrt(Delta / (K * L * variance * (1 + 1.5 * D))))
    noise = (1 + 1 / K) * 2 * L * gamma * variance * (1 + 1.5 * D + L * gamma * D**2)
    bound = Guarantee(SQUARED_GRADIENT, 2 * Delta / (gamma * K), noise)
    made = case.prescription("Ringleader ASGD", Constant(gamma), RandomIterate(), bound, *_notes("1/(8nL)"))
    return replace(made, method="RingleaderASGD")


def _notes(of_paper: str) -> tuple[str, str]:
    return f"the constants are nowait's own; the paper's largest stepsize is {of_paper}", ASSUMPTION_1
