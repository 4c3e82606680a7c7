"""Bounds for the paper's own stepsizes with better constants. They are nowait's; docs/proofs.md has the proofs.

γ is the largest stepsize and S = Σ γ̂_k the sum of the stepsizes of the gradients computed at x_1 … x_K. Each bound
holds for given delays, so S may be the sum in a run that was made, or the least sum for all delays
(``envelope.least_share``). The paper bounds e_k = x_k − x̂_k with Young's inequality. These proofs use that the samples
of all gradients in flight are independent of x_0 … x_k (Assumption 1), which saves most of the constants.
"""

from __future__ import annotations

import math
from dataclasses import replace

from nowait.theory.case import Case
from nowait.theory.guarantee import SQUARED_GRADIENT, SUBOPTIMALITY, Guarantee


def convex_lipschitz_bound(case: Case, gamma: float) -> Guarantee:
    """Return (B² + γ²M²G²)/(2γK) + γG²·(M − ½), Theorem 1 with any constant stepsize."""
    M, K, G, B = case.M, case.K, case.need_positive("G"), case.need_positive("B")
    start = (B**2 + (gamma * M * G) ** 2) / (2 * gamma * K)
    return Guarantee(SUBOPTIMALITY, start + gamma * G**2 * (M - 0.5))


def nonconvex_lipschitz_bound(case: Case, gamma: float) -> Guarantee:
    """Return [Δ/(γK) + Lσ²γ(1 + M/K)/2 + (γL(M − 1)G)²/(2α)]/(1 − α/2 − Lγ/2) with the best α; γ ≤ 1/(2ML)."""
    M, K, L, G = case.M, case.K, case.need_positive("L"), case.need_positive("G")
    sigma, Delta = case.need("sigma"), case.need_positive("Delta")
    descent, noise = Delta / (gamma * K), L * sigma**2 * gamma * (1 + M / K) / 2
    drift = (gamma * L * (M - 1) * G) ** 2 / 2
    alpha = best_alpha(descent + noise, drift, 1 - L * gamma / 2, 0.0)
    kept = 1 - alpha / 2 - L * gamma / 2
    return Guarantee(SQUARED_GRADIENT, (descent + _over(drift, alpha)) / kept, noise / kept)


def convex_bound(case: Case, gamma: float, total: float) -> Guarantee:
    """Return (B² + Mσ²γ²)/(2S) + σ²γ/2, Theorem 3.1.

    It needs γ_k ≤ 1/(aLτ) and Mγ ≤ (1 − 1/a)/L for some a: true for a = 4 and γ ≤ 1/(4ML), as in the paper, and for
    a = 2 and γ ≤ 1/(2ML), which are stepsizes twice as large.
    """
    B, sigma = case.need_positive("B"), case.need("sigma")
    noise = case.M * (sigma * gamma) ** 2 / (2 * total) + sigma**2 * gamma / 2
    return Guarantee(SUBOPTIMALITY, B**2 / (2 * total), noise)


def strongly_convex_bound(case: Case, gamma: float, total: float) -> Guarantee:
    """Return [B² + nMσ²γ²]·μ/(4(1 − β)(e^(μS/2) − 1)) + nσ²γ/(2(1 − β)), Theorem 3.2 with weights γ̂_k·P̂_k.

    n = 1 + μ/(4L), β = MLγ + 1/4 + (M − 1)μγ/4 and P̂_k = exp((μ/2)·Σ_{j≤k} γ̂_j).
    """
    M, L, mu = case.M, case.need_positive("L"), case.need_positive("mu")
    B, sigma = case.need_positive("B"), case.need("sigma")
    kept = 1 - (M * L * gamma + 0.25 + (M - 1) * mu * gamma / 4)
    noisy = (1 + mu / (4 * L)) * sigma**2
    decay = inverse_of_growth(mu * total / 2) * mu / (4 * kept)
    return Guarantee(SUBOPTIMALITY, B**2 * decay, noisy * M * gamma**2 * decay + noisy * gamma / (2 * kept))


def nonconvex_bound(case: Case, gamma: float, total: float) -> Guarantee:
    """Return [Δ + nLMσ²γ²]/(cS) + nLσ²γ/c, Theorem 3.3, n = 1/2 + 1/(8α), with the best α.

    c = 1 − α/2 − q/(2α) − min(Lγ, 1/4)/2 and q = (M − 1)Lγ/4; γ_k ≤ 1/(4Lτ) and γ ≤ 1/(2ML).
    """
    M, L = case.M, case.need_positive("L")
    sigma, Delta = case.need("sigma"), case.need_positive("Delta")
    noise = L * M * (sigma * gamma) ** 2 / total + L * sigma**2 * gamma
    q, most = (M - 1) * L * gamma / 4, 1 - min(L * gamma, 0.25) / 2
    alpha = best_alpha(Delta / total + noise / 2, noise / 8, most, q)
    kept = most - alpha / 2 - _over(q, alpha) / 2
    return Guarantee(SQUARED_GRADIENT, Delta / total / kept, (noise / 2 + _over(noise / 8, alpha)) / kept)


def heterogeneous_bound(case: Case, gamma: float, total: float) -> Guarantee:
    """Return [Δ + Mγζ²(½ + MLγ + q/2) + (9/16)LMσ²γ²]/(cS) + [ζ²(½ + l + q/2) + (9/16)Lσ²γ]/c, Theorem 4.

    l = min(Lγ, 1/8), q = (M − 1)Lγ/4 and c = ½ − l − q/2; γ_k ≤ 1/(8Lτ) and γ ≤ 1/(4ML), as the paper prints.
    """
    M, L = case.M, case.need_positive("L")
    sigma, Delta, zeta = case.need("sigma"), case.need_positive("Delta"), case.need("zeta")
    q, short = (M - 1) * L * gamma / 4, min(L * gamma, 0.125)
    kept = 0.5 - short - q / 2
    noise = 9 / 16 * L * sigma**2 * gamma * (M * gamma / total + 1)
    apart = M * gamma * (0.5 + M * L * gamma + q / 2) / total + 0.5 + short + q / 2
    return Guarantee(SQUARED_GRADIENT, Delta / (kept * total), noise / kept, zeta**2 * apart / kept)


def scaled(bound: Guarantee, factor: float) -> Guarantee:
    """Return the bound with every term multiplied by a factor."""
    terms = (bound.optimisation, bound.noise, bound.heterogeneity)
    optimisation, noise, heterogeneity = (factor * term for term in terms)
    return replace(bound, optimisation=optimisation, noise=noise, heterogeneity=heterogeneity)


def best_alpha(fixed: float, falling: float, most: float, q: float) -> float:
    """Return the α > 0 with the least (A + N/α)/(m − α/2 − q/(2α)): the root of Aα²/2 + Nα = Aq/2 + Nm."""
    return (math.sqrt(falling**2 + fixed * (fixed * q + 2 * falling * most)) - falling) / fixed


def _over(value: float, alpha: float) -> float:
    """Return value/α; 0/0 is 0, because α is 0 only where nothing is divided by it."""
    return value / alpha if value else 0.0


def inverse_of_growth(exponent: float) -> float:
    """Return 1/(e^x − 1) without overflow."""
    return math.exp(-exponent) / -math.expm1(-exponent)
