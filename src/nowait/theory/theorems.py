"""The paper's theorems as code: the stepsize, the output and the guarantee.

Mishchenko, Bach, Even and Woodworth, "Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays" (NeurIPS 2022).
Every delay-adaptive stepsize is γ_max·min(1, cut/τ(k)). Printed bounds have the constants of the paper's proofs; the
sharpened ones keep the proofs' last lines and use the actual γ_max and the *sum lemma*: for all delays,
Σ γ̂_k ≥ γ_max·K·(1 − M/(4·cut)), because min(1, c/t) ≥ 1 − t/(4c) and Σ τ̂_k ≤ K·M. Errata (E1, E20, …) are numbered as
in docs/theory.md.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

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
from nowait.theory.constants import Constants, constants_of
from nowait.theory.guarantee import SQUARED_GRADIENT, SUBOPTIMALITY, Guarantee, Prescription

PRINTED_LOG_FACTOR = 504.0
ASSUMPTION_1 = "delays must not depend on the samples (Assumption 1): inputs of different lengths violate it"


def prescribe(
    setting: str, constants: Constants, *, workers: int, steps: int, log_factor: float | None = None
) -> Prescription:
    """Return the stepsize, the output and the guarantee of a theorem, for M = ``workers`` and K = ``steps``.

    ``setting``: "convex-lipschitz" (Theorem 1), "nonconvex-lipschitz" (2), "convex" (3.1), "strongly-convex" (3.2),
    "nonconvex" (3.3) or "heterogeneous" (4). ``constants`` are ``problem.constants()``, ``nw.theory.estimate(problem)``
    or your own. ``log_factor`` replaces the 504 in the third stepsize of Theorem 3.2; 84 is enough.

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
    if log_factor is None:
        return case.solved_by(THEOREMS[setting])
    if setting != "strongly-convex":
        raise ValueError(f"log_factor applies to the setting 'strongly-convex' only (Theorem 3.2), got {setting!r}")
    factor = checks.positive(log_factor, "log_factor", "it multiplies the stepsize")
    return case.solved_by(lambda same: strongly_convex(same, factor))


@final
@dataclass(frozen=True)
class Case:
    """A setting with checked constants, M and K."""

    setting: str
    constants: Constants
    M: int
    K: int

    def need(self, name: str) -> float:
        """Return a constant; raise ValueError if it is missing, with a hint on how to get it."""
        return self.constants.need(name, f"the setting {self.setting!r}")

    def need_positive(self, name: str) -> float:
        """Return a constant; raise ValueError if it is missing or 0."""
        return self.constants.need_positive(name, f"the setting {self.setting!r}")

    def solved_by(self, make: Callable[[Case], Prescription]) -> Prescription:
        """Return ``make(self)``; raise ValueError if the constants overflow or underflow floating point."""
        try:
            return make(self)
        except ArithmeticError as error:
            raise ValueError(f"{self.constants} with K={self.K:.3g} exceeds floating-point range: {error}") from None

    def prescription(self, theorem: str, stepsize: Any, output: Any, guarantee: Guarantee, *notes: str) -> Prescription:
        """Return a ``Prescription`` for this case."""
        return Prescription(
            theorem, self.setting, self.constants, self.M, self.K, stepsize, output, guarantee, tuple(notes)
        )


def checked_case(setting: str, constants: Any, workers: int, steps: int) -> Case:
    """Return the case; raise ValueError if it does not meet the theorem's assumptions, such as K ≥ M."""
    case = known_case(setting, constants, workers, steps)
    needed, least = ("3M", 3 * case.M) if setting == "strongly-convex" else ("M", case.M)
    if least > case.K:
        raise ValueError(
            f"the setting {setting!r} needs K ≥ {needed}, got steps={case.K} for workers={case.M}: "
            f"take at least {least} steps"
        )
    if setting != "heterogeneous" and case.constants.zeta:
        raise ValueError(
            f"zeta is {case.constants.zeta:g}: the workers' data differ, and only the setting 'heterogeneous' "
            f"(Theorem 4) covers that"
        )
    return case


def known_case(setting: str, constants: Any, workers: int, steps: int) -> Case:
    """Return the case; raise an error if the setting is unknown or the constants are no ``Constants``."""
    if not isinstance(setting, str) or setting not in THEOREMS:
        near = difflib.get_close_matches(str(setting), THEOREMS, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown setting {setting!r}: choose one of {', '.join(THEOREMS)}{meant}")
    constants = constants_of(constants)
    M = checks.at_least(1, workers, "workers", "at least one worker has to compute gradients")
    K = checks.at_least(1, steps, "steps", "the stepsizes depend on K")
    return Case(setting, constants, M, K)


def convex_lipschitz(case: Case) -> Prescription:
    """Theorem 1: convex and G-Lipschitz, not necessarily smooth. A constant stepsize; Assumption 1 is not needed."""
    M, K, G, B = case.M, case.K, case.need_positive("G"), case.need_positive("B")
    rate = G * B * math.sqrt(M / K)
    sharpened = Guarantee(SUBOPTIMALITY, rate * (3 - 1 / (2 * M)))
    guarantee = Guarantee(SUBOPTIMALITY, 3 * rate, sharpened=sharpened)
    return case.prescription("Theorem 1", Constant(B / (G * math.sqrt(K * M))), UniformAverage(), guarantee)


def nonconvex_lipschitz(case: Case) -> Prescription:
    """Theorem 2: L-smooth and G-Lipschitz. A constant stepsize; Assumption 1 is not needed.

    Printed without constants. Its proof ends with 4Δ/(γK) + 4γLσ² + 2γ²L²M²G², the sharpened bound; with γ inserted
    that is at most 8MLΔ/K + 8·√(LΔσ²/K) + 6·(MLΔG/K)^⅔.
    """
    M, K, L, G = case.M, case.K, case.need_positive("L"), case.need_positive("G")
    sigma, Delta = case.need("sigma"), case.need_positive("Delta")
    gamma, sharpened = lipschitz_bound(case, M)
    guarantee = Guarantee(
        SQUARED_GRADIENT,
        8 * M * L * Delta / K + 6 * (M * L * Delta * G / K) ** (2 / 3),
        8 * math.sqrt(L * Delta * sigma**2 / K),
        sharpened=sharpened,
    )
    return case.prescription("Theorem 2", Constant(gamma), RandomIterate(), guarantee)


def convex(case: Case) -> Prescription:
    """Theorem 3.1: convex and L-smooth.

    Printed: 180·MLB²/K + 15·σB/√K. The proof's (2/Σγ̂)·(B²/16 + ‖x̂_1 − x*‖² + σ²Σγ̂²), with ‖x̂_1 − x*‖² ≤
    B² + Mσ²γ_max² in expectation (erratum E17) and the sum lemma, is the sharpened bound.
    """
    M, K, L, B, sigma = case.M, case.K, case.need_positive("L"), case.need_positive("B"), case.need("sigma")
    gamma = min(1 / (4 * M * L), B / (sigma * math.sqrt(K)) if sigma else math.inf)
    cut = 1 / (4 * L * gamma)
    sharpened = convex_bound(case, gamma, sum_share(M, cut))
    guarantee = Guarantee(SUBOPTIMALITY, 180 * M * L * B**2 / K, 15 * sigma * B / math.sqrt(K), sharpened=sharpened)
    return case.prescription(
        "Theorem 3.1",
        DelayAdaptive(gamma, cut=cut),
        StepsizeWeightedAverage(),
        guarantee,
        "B² bounds ‖x_0 − x*‖², which the statement prints as B (E1)",
        ASSUMPTION_1,
    )


def strongly_convex(case: Case, log_factor: float = PRINTED_LOG_FACTOR) -> Prescription:
    """Theorem 3.2: mu-strongly convex and L-smooth, K ≥ 3M.

    The weights of the average grow with exp(+(mu/2)·Σγ̂): the paper prints a minus sign (E20), and its step from x_k
    to x̂_k loses half of mu (E22). Printed: (35B²/γ_max)·exp(−Kμγ_max/504) + 252σ²γ_max. Sharpened:
    (19.2B²/γ_max)·exp(−Kμγ_max/84) + 30σ²γ_max, times exp(Mμγ_max), because ``StronglyConvexAverage`` uses the
    stepsizes applied so far in place of the γ̂, some of which are not known yet; the two sums differ by at most M·γ_max.
    """
    M, K, L, mu = case.M, case.K, case.need_positive("L"), case.need_positive("mu")
    B, sigma = case.need_positive("B"), case.need("sigma")
    gamma = 1 / (8 * M * L)
    if sigma:
        gamma = min(gamma, log_factor * log_term(mu * K * B / sigma) / (mu * K))
    worse = math.exp(M * mu * gamma)
    sharpened = Guarantee(
        SUBOPTIMALITY,
        worse * 19.2 * B**2 / gamma * math.exp(-K * mu * gamma / 84),
        worse * 30 * sigma**2 * gamma,
    )
    guarantee = Guarantee(
        SUBOPTIMALITY,
        35 * B**2 / gamma * math.exp(-K * mu * gamma / 504),
        252 * sigma**2 * gamma,
        sharpened=sharpened,
    )
    return case.prescription(
        "Theorem 3.2",
        ExponentialDelayAdaptive(gamma, cut=1 / (4 * L * gamma), rate=mu / (4 * M * L)),
        StronglyConvexAverage(mu / 2),
        guarantee,
        "the average's weights grow, exp(+…), where the paper prints exp(−…) (E20), with mu/2 in place of mu (E22)",
        ASSUMPTION_1,
    )


def nonconvex(case: Case) -> Prescription:
    """Theorem 3.3: L-smooth.

    Printed: 162·MLΔ/K + 105·√(LΔσ²/K). The proof's (9Δ + 6MLσ²γ_max²)/Σγ̂ + 6Lσ²γ_max, with the noise of the M
    initial gradients (E28) and the sum lemma, which repairs E27, is the sharpened bound.
    """
    M, K, L = case.M, case.K, case.need_positive("L")
    sigma, Delta = case.need("sigma"), case.need_positive("Delta")
    gamma = min(1 / (2 * M * L), noise_stepsize(case))
    cut = 1 / (4 * L * gamma)
    sharpened = nonconvex_bound(case, gamma, sum_share(M, cut))
    guarantee = Guarantee(
        SQUARED_GRADIENT,
        162 * M * L * Delta / K,
        105 * math.sqrt(L * Delta * sigma**2 / K),
        sharpened=sharpened,
    )
    return case.prescription("Theorem 3.3", DelayAdaptive(gamma, cut=cut), RandomIterate(), guarantee, ASSUMPTION_1)


def heterogeneous(case: Case) -> Prescription:
    """Theorem 4: L-smooth, every worker with data of its own, ‖∇F_m − ∇F‖ ≤ zeta.

    The paper prints the stepsize 1/(4ML), but the proof needs 1/(8ML) (E31), and gives no constants. With the proof's
    last line corrected (E32, E33), (33.25Δ + 12MLσ²γ² + 40LM²γ²ζ²)/Σγ̂ + 12Lσ²γ + 21ζ², the bound is at most
    356·MLΔ/K + 73·√(LΔσ²/K) + 28ζ².
    """
    M, K, L = case.M, case.K, case.need_positive("L")
    sigma, Delta, zeta = case.need("sigma"), case.need_positive("Delta"), case.need("zeta")
    gamma = min(1 / (8 * M * L), noise_stepsize(case))
    cut = 1 / (8 * L * gamma)
    sharpened = heterogeneous_bound(case, gamma, sum_share(M, cut))
    guarantee = Guarantee(
        SQUARED_GRADIENT,
        356 * M * L * Delta / K,
        73 * math.sqrt(L * Delta * sigma**2 / K),
        28 * zeta**2,
        sharpened=sharpened,
    )
    return case.prescription(
        "Theorem 4",
        DelayAdaptive(gamma, cut=cut),
        RandomIterate(),
        guarantee,
        "the largest stepsize is 1/(8ML), where the paper prints 1/(4ML) (E31); the paper gives no constants",
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


# The last lines of the proofs. The stepsizes γ̂_k add up to at least ``share`` times K·γ.


def lipschitz_bound(case: Case, width: float) -> tuple[float, Guarantee]:
    """Return Theorem 2's stepsize and 4Δ/(γK) + 4γLσ² + 2γ²L²w²G²; w is M, or τ_max for earlier results."""
    K, L, G = case.K, case.need_positive("L"), case.need_positive("G")
    sigma, Delta = case.need("sigma"), case.need_positive("Delta")
    gamma = min(1 / (2 * width * L), noise_stepsize(case), (Delta / ((L * width * G) ** 2 * K)) ** (1 / 3))
    optimisation = 4 * Delta / (gamma * K) + 2 * (gamma * L * width * G) ** 2
    return gamma, Guarantee(SQUARED_GRADIENT, optimisation, 4 * gamma * L * sigma**2)


def convex_bound(case: Case, gamma: float, share: float) -> Guarantee:
    """Return (2.125·B² + 2Mσ²γ²)/Σγ̂ + 2γσ²."""
    B, sigma, total = case.need_positive("B"), case.need("sigma"), case.K * gamma * share
    noise = 2 * case.M * (sigma * gamma) ** 2 / total + 2 * gamma * sigma**2
    return Guarantee(SUBOPTIMALITY, 2.125 * B**2 / total, noise)


def nonconvex_bound(case: Case, gamma: float, share: float) -> Guarantee:
    """Return (9Δ + 6MLσ²γ²)/Σγ̂ + 6Lσ²γ."""
    L, sigma, total = case.need_positive("L"), case.need("sigma"), case.K * gamma * share
    noise = 6 * case.M * L * (sigma * gamma) ** 2 / total + 6 * L * sigma**2 * gamma
    return Guarantee(SQUARED_GRADIENT, 9 * case.need_positive("Delta") / total, noise)


def heterogeneous_bound(case: Case, gamma: float, share: float) -> Guarantee:
    """Return (33.25Δ + 12MLσ²γ² + 40LM²γ²ζ²)/Σγ̂ + 12Lσ²γ + 21ζ²."""
    L, sigma, zeta = case.need_positive("L"), case.need("sigma"), case.need("zeta")
    total = case.K * gamma * share
    return Guarantee(
        SQUARED_GRADIENT,
        33.25 * case.need_positive("Delta") / total,
        12 * case.M * L * (sigma * gamma) ** 2 / total + 12 * L * sigma**2 * gamma,
        40 * L * (case.M * gamma * zeta) ** 2 / total + 21 * zeta**2,
    )


def sum_share(M: int, cut: float) -> float:
    """Return the share of K·γ_max that the stepsizes γ̂_k add up to at least, for all delays (the sum lemma)."""
    return 1 - M / (4 * cut)


def log_term(ratio: float) -> float:
    """Return ln(e + ratio²) without overflow."""
    return math.log(math.e + ratio**2) if ratio < 1e100 else 2 * math.log(ratio)


def noise_stepsize(case: Case) -> float:
    """Return √(Δ/(K·L·σ²)), above which noise dominates a smooth non-convex problem; ∞ without noise."""
    sigma = case.need("sigma")
    return math.sqrt(case.need_positive("Delta") / (case.K * case.need_positive("L"))) / sigma if sigma else math.inf
