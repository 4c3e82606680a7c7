"""The paper's theorems as code: the stepsize, the output and the guarantee.

Mishchenko, Bach, Even and Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays" (NeurIPS 2022).
Every delay-adaptive stepsize is γ_max·min(1, cut/τ(k)). Printed bounds have the constants of the paper's proofs; the
sharpened ones are nowait's own, for the same stepsizes (``bounds`` and ``envelope``; proofs in docs/proofs.md). Errata
(E1, E20, …) are numbered as in docs/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from nowait.core import (
    Constant,
    DelayAdaptive,
    ExponentialDelayAdaptive,
    RandomIterate,
    StepsizeWeightedAverage,
    StronglyConvexAverage,
    UniformAverage,
    checks,
)
from nowait.theory.bounds import (
    convex_bound,
    convex_lipschitz_bound,
    heterogeneous_bound,
    nonconvex_bound,
    nonconvex_lipschitz_bound,
    scaled,
    strongly_convex_bound,
)
from nowait.theory.case import Case
from nowait.theory.constants import Constants, constants_of
from nowait.theory.envelope import least_share
from nowait.theory.guarantee import SQUARED_GRADIENT, SUBOPTIMALITY, Guarantee, Prescription

PRINTED_LOG_FACTOR = 504.0
ASSUMPTION_1 = "delays must not depend on the samples (Assumption 1): inputs of different lengths violate it"
SECOND_MOMENT = "if delays do not depend on the samples, G² ≥ E‖∇f(x; ξ)‖² for every x is enough"


def prescribe(
    setting: str,
    constants: Constants,
    *,
    workers: int,
    steps: int,
    log_factor: float | None = None,
    doubled: bool = False,
) -> Prescription:
    """Return the stepsize, the output and the guarantee of a theorem, for M = ``workers`` and K = ``steps``.

    ``setting``: "convex-lipschitz" (Theorem 1), "nonconvex-lipschitz" (2), "convex" (3.1), "strongly-convex" (3.2),
    "nonconvex" (3.3) or "heterogeneous" (4). ``constants`` are ``problem.constants()``, ``nw.theory.estimate(problem)``
    or your own. ``log_factor`` replaces the 504 in the third stepsize of Theorem 3.2; 2.4 is enough. ``doubled``
    doubles the stepsizes of Theorem 3.1 ("convex"), which nowait's sharper bound allows.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, L=1.0, mu=0.0, sigma=1.0)
    >>> p = prescribe("convex", problem.constants(), workers=4, steps=10_000)
    >>> p.stepsize
    DelayAdaptive(gamma=0.01, cut=25.0)
    >>> run = nw.simulate(
    ...     problem,
    ...     nw.AsynchronousSGD(p.stepsize),
    ...     nw.speeds.Fixed([1, 1, 1, 100]),
    ...     steps=p.steps,
    ...     output=p.output,
    ... )
    >>> problem.loss(run.params) < float(p.guarantee)
    True
    """
    case = checked_case(setting, constants, workers, steps)
    if checks.flag(doubled, "doubled"):
        if setting != "convex":
            raise ValueError(f"doubled applies to the setting 'convex' only (Theorem 3.1), got {setting!r}")
        return case.solved_by(lambda same: convex(same, 2.0))
    if log_factor is None:
        return case.solved_by(THEOREMS[setting])
    if setting != "strongly-convex":
        raise ValueError(f"log_factor applies to the setting 'strongly-convex' only (Theorem 3.2), got {setting!r}")
    factor = checks.positive(log_factor, "log_factor", "it multiplies the stepsize")
    return case.solved_by(lambda same: strongly_convex(same, factor))


def checked_case(setting: str, constants: Any, workers: int, steps: int) -> Case:
    """Return the case; raise ValueError if it does not meet the theorem's assumptions, such as K ≥ M."""
    case = known_case(setting, constants, workers, steps)
    needed, least = ("3M", 3 * case.M) if setting == "strongly-convex" else ("M", case.M)
    if least > case.K:
        raise ValueError(
            f"the setting {setting!r} needs K ≥ {needed}, got steps={case.K} for workers={case.M}: "
            f"take at least {least} steps"
        )
    check_same_data(case)
    return case


def check_same_data(case: Case) -> None:
    """Raise ValueError if the workers' data differ in a setting that does not cover it."""
    if case.setting != "heterogeneous" and case.constants.zeta:
        raise ValueError(
            f"zeta is {case.constants.zeta:g}: the workers' data differ, and only the setting 'heterogeneous' "
            f"(Theorem 4) covers that"
        )


def known_case(setting: str, constants: Any, workers: int, steps: int) -> Case:
    """Return the case; raise an error if the setting is unknown or the constants are no ``Constants``."""
    if not isinstance(setting, str) or setting not in THEOREMS:
        nearest = checks.did_you_mean(setting, THEOREMS)
        raise ValueError(f"unknown setting {checks.shown(setting)}: choose one of {', '.join(THEOREMS)}{nearest}")
    constants = constants_of(constants)
    M = checks.at_least(1, workers, "workers", "at least one worker has to compute gradients")
    K = checks.at_least(1, steps, "steps", "the stepsizes depend on K")
    return Case(setting, constants, M, K)


def convex_lipschitz(case: Case) -> Prescription:
    """Theorem 1: convex and G-Lipschitz, not necessarily smooth. A constant stepsize; Assumption 1 is not needed.

    Printed: 3GB·√(M/K). Sharpened: (3/2 + M/(2K) − 1/(2M))·GB·√(M/K).
    """
    M, K, G, B = case.M, case.K, case.need_positive("G"), case.need_positive("B")
    gamma = B / (G * math.sqrt(K * M))
    guarantee = Guarantee(SUBOPTIMALITY, 3 * G * B * math.sqrt(M / K), sharpened=convex_lipschitz_bound(case, gamma))
    return case.prescription("Theorem 1", Constant(gamma), UniformAverage(), guarantee, SECOND_MOMENT)


def nonconvex_lipschitz(case: Case) -> Prescription:
    """Theorem 2: L-smooth and G-Lipschitz. A constant stepsize; Assumption 1 is not needed.

    Printed without constants. Its proof ends with 4Δ/(γK) + 4γLσ² + 2γ²L²M²G²; with γ inserted that is at most
    8MLΔ/K + 8·√(LΔσ²/K) + 6·(MLΔG/K)^⅔.
    """
    M, K, L, G = case.M, case.K, case.need_positive("L"), case.need_positive("G")
    sigma, Delta = case.need("sigma"), case.need_positive("Delta")
    gamma = lipschitz_stepsize(case, M)
    guarantee = Guarantee(
        SQUARED_GRADIENT,
        8 * M * L * Delta / K + 6 * (M * L * Delta * G / K) ** (2 / 3),
        8 * math.sqrt(L * Delta * sigma**2 / K),
        sharpened=nonconvex_lipschitz_bound(case, gamma),
    )
    return case.prescription("Theorem 2", Constant(gamma), RandomIterate(), guarantee, SECOND_MOMENT)


def convex(case: Case, scale: float = 1.0) -> Prescription:
    """Theorem 3.1: convex and L-smooth.

    Printed: 180·MLB²/K + 15·σB/√K. Sharpened: (B² + Mσ²γ²)/(2S) + σ²γ/2, which holds for stepsizes up to ``scale`` = 2
    times those of the paper.
    """
    M, K, L, B, sigma = case.M, case.K, case.need_positive("L"), case.need_positive("B"), case.need("sigma")
    gamma = min(scale / (4 * M * L), B / (sigma * math.sqrt(K)) if sigma else math.inf)
    rule = DelayAdaptive(gamma, cut=scale / (4 * L * gamma))
    sharpened = convex_bound(case, gamma, K * gamma * least_share(rule, M))
    guarantee = Guarantee(SUBOPTIMALITY, 180 * M * L * B**2 / K, 15 * sigma * B / math.sqrt(K), sharpened=sharpened)
    return case.prescription(
        "Theorem 3.1",
        rule,
        StepsizeWeightedAverage(),
        guarantee if scale == 1.0 else sharpened,
        "B² bounds ‖x_0 − x*‖², which the statement prints as B (E1)",
        ASSUMPTION_1,
        *([] if scale == 1.0 else ["the stepsizes are twice those of the paper; the guarantee is nowait's own"]),
    )


def strongly_convex(case: Case, log_factor: float = PRINTED_LOG_FACTOR) -> Prescription:
    """Theorem 3.2: mu-strongly convex and L-smooth, K ≥ 3M.

    The weights of the average grow with exp(+(mu/2)·Σγ̂): the paper prints a minus sign (E20), and its step from x_k
    to x̂_k loses half of mu (E22). Printed: (35B²/γ_max)·exp(−Kμγ_max/504) + 252σ²γ_max. The sharpened bound has
    e^(μS/2) − 1 in the denominator. It is multiplied by exp(Mμγ_max), because ``StronglyConvexAverage`` uses the
    stepsizes applied so far in place of the γ̂, some of which are not known yet; the two sums differ by at most M·γ_max.
    """
    M, K, L, mu = case.M, case.K, case.need_positive("L"), case.need_positive("mu")
    B, sigma = case.need_positive("B"), case.need("sigma")
    gamma = 1 / (8 * M * L)
    if sigma:
        gamma = min(gamma, log_factor * log_term(mu * K * B / sigma) / (mu * K))
    rule = ExponentialDelayAdaptive(gamma, cut=1 / (4 * L * gamma), rate=mu / (4 * M * L))
    bound = strongly_convex_bound(case, gamma, K * gamma * least_share(rule, M))
    sharpened = scaled(bound, math.exp(M * mu * gamma))
    guarantee = Guarantee(
        SUBOPTIMALITY,
        35 * B**2 / gamma * math.exp(-K * mu * gamma / 504),
        252 * sigma**2 * gamma,
        sharpened=sharpened,
    )
    return case.prescription(
        "Theorem 3.2",
        rule,
        StronglyConvexAverage(mu / 2),
        guarantee,
        "the average's weights grow, exp(+…), where the paper prints exp(−…) (E20), with mu/2 in place of mu (E22)",
        ASSUMPTION_1,
    )


def nonconvex(case: Case) -> Prescription:
    """Theorem 3.3: L-smooth.

    Printed: 162·MLΔ/K + 105·√(LΔσ²/K). Its proof has two gaps (E27, E28), which the sharpened bound does not have.
    """
    M, K, L = case.M, case.K, case.need_positive("L")
    sigma, Delta = case.need("sigma"), case.need_positive("Delta")
    gamma = min(1 / (2 * M * L), noise_stepsize(case))
    rule = DelayAdaptive(gamma, cut=1 / (4 * L * gamma))
    sharpened = nonconvex_bound(case, gamma, K * gamma * least_share(rule, M))
    guarantee = Guarantee(
        SQUARED_GRADIENT,
        162 * M * L * Delta / K,
        105 * math.sqrt(L * Delta * sigma**2 / K),
        sharpened=sharpened,
    )
    return case.prescription("Theorem 3.3", rule, RandomIterate(), guarantee, ASSUMPTION_1)


def heterogeneous(case: Case) -> Prescription:
    """Theorem 4: L-smooth, every worker with data of its own, ‖∇F_m − ∇F‖ ≤ zeta.

    The paper gives no constants, and its proof needs γ ≤ 1/(8ML) where 1/(4ML) is printed (E31). With that stepsize and
    the proof's last line corrected (E32, E33), its bound is at most 356·MLΔ/K + 73·√(LΔσ²/K) + 28ζ². The sharpened
    bound holds for the printed 1/(4ML), which is used here, and is below that one: the theorem is true as printed.
    """
    M, K, L = case.M, case.K, case.need_positive("L")
    sigma, Delta, zeta = case.need("sigma"), case.need_positive("Delta"), case.need("zeta")
    gamma = min(1 / (4 * M * L), noise_stepsize(case))
    rule = DelayAdaptive(gamma, cut=1 / (8 * L * gamma))
    sharpened = heterogeneous_bound(case, gamma, K * gamma * least_share(rule, M))
    guarantee = Guarantee(
        SQUARED_GRADIENT,
        356 * M * L * Delta / K,
        73 * math.sqrt(L * Delta * sigma**2 / K),
        28 * zeta**2,
        sharpened=sharpened,
    )
    return case.prescription(
        "Theorem 4",
        rule,
        RandomIterate(),
        guarantee,
        "the paper gives no constants, and its proof does not cover its stepsize 1/(4ML) (E31); sharpened does",
        ASSUMPTION_1,
    )


THEOREMS: dict[str, Callable[[Case], Prescription]] = {
    "convex-lipschitz": convex_lipschitz,
    "nonconvex-lipschitz": nonconvex_lipschitz,
    "convex": convex,
    "strongly-convex": strongly_convex,
    "nonconvex": nonconvex,
    "heterogeneous": heterogeneous,
}


def log_term(ratio: float) -> float:
    """Return ln(e + ratio²) without overflow."""
    return math.log(math.e + ratio**2) if ratio < 1e100 else 2 * math.log(ratio)


def noise_stepsize(case: Case) -> float:
    """Return √(Δ/(K·L·σ²)), above which noise dominates a smooth non-convex problem; ∞ without noise."""
    sigma = case.need("sigma")
    return math.sqrt(case.need_positive("Delta") / (case.K * case.need_positive("L"))) / sigma if sigma else math.inf


def lipschitz_stepsize(case: Case, width: float) -> float:
    """Return Theorem 2's stepsize; ``width`` is M, or τ_max for earlier results."""
    K, L, G, Delta = case.K, case.need_positive("L"), case.need_positive("G"), case.need_positive("Delta")
    drift = math.pow(Delta / ((L * width * G) ** 2 * K), 1 / 3)
    return min(1 / (2 * width * L), noise_stepsize(case), drift)
