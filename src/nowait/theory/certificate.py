"""A guarantee for a run that was made: the bounds of docs/proofs.md with its own delays and stepsizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import (
    Constant,
    DelayAdaptive,
    ExponentialDelayAdaptive,
    RandomIterate,
    Stepsize,
    StepsizeWeightedAverage,
    StronglyConvexAverage,
    as_stepsize,
    checks,
)
from nowait.theory.bounds import best_alpha
from nowait.theory.case import Case
from nowait.theory.constants import Constants
from nowait.theory.flights import Flights
from nowait.theory.guarantee import SQUARED_GRADIENT, SUBOPTIMALITY, Guarantee
from nowait.theory.theorems import known_case

RULES: tuple[type[Stepsize], ...] = (Constant, DelayAdaptive, ExponentialDelayAdaptive)
"""The stepsize rules that are rebuilt from the configuration of a run."""
TOLERANCE = 1e-9


@final
@dataclass(frozen=True)
class Condition:
    """A condition of the proof, checked on the run: it holds if ``value`` is at most ``limit``."""

    name: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """True if the condition is met."""
        return self.value <= self.limit * (1 + TOLERANCE)

    def __str__(self) -> str:
        sign = "≤" if self.holds else "> (violated)"
        return f"{self.name}: {self.value:.4g} {sign} {self.limit:.4g}"


@final
@dataclass(frozen=True)
class RunCertificate:
    """The result of ``nw.theory.certificate``: what the theory guarantees for one run, given its delays."""

    setting: str
    constants: Constants
    workers: int
    steps: int
    guarantee: Guarantee
    """The bound; infinite if a condition is violated."""
    output: str
    """The answer that the bound is for."""
    given_output: str
    """The output rule of the run."""
    conditions: tuple[Condition, ...]
    """What the proof needs of the stepsizes and delays, checked on the run."""
    stepsize_sum: float
    """S = Σ γ̂_k, which the bound depends on most."""
    largest_stepsize: float
    longest_delay: int
    measured: float | None = None
    """The error of the run's answer, if it is known."""

    @property
    def holds(self) -> bool:
        """True if all conditions hold, so that the guarantee applies."""
        return all(condition.holds for condition in self.conditions)

    @property
    def is_for_the_answer(self) -> bool:
        """True if the guarantee is for ``run.params``: the run had the output rule of the theorem."""
        return self.output == self.given_output

    def __str__(self) -> str:
        lines = [
            f"{self.setting}, {self.workers:,} workers, {self.steps:,} steps, longest delay {self.longest_delay:,}, "
            f"stepsizes up to {self.largest_stepsize:.4g} with the sum {self.stepsize_sum:.4g}",
            f"  guarantee  {self.guarantee.terms()}" if self.holds else "  guarantee  none: a condition is violated",
            f"  for        {self.output}"
            + ("" if self.is_for_the_answer else f", but the run had {self.given_output}"),
            *([] if self.measured is None else [f"  measured   {self.measured:.4g}"]),
            *(f"  needs      {condition}" for condition in self.conditions),
            f"  assumed    {self.constants}, and delays that do not depend on the samples",
        ]
        return "\n".join(lines)


def certificate(
    run: Any,
    constants: Constants,
    *,
    setting: str | None = None,
    stepsize: Stepsize | float | None = None,
    measured: float | None = None,
) -> RunCertificate:
    """Return what the theory guarantees for a run of ``AsynchronousSGD``, given the delays that really happened.

    The bounds are those of docs/proofs.md, with the sums of the run's own stepsizes in place of the worst case over all
    delays. The conditions on stepsizes and delays are checked, so any stepsizes may have been used; where one is
    violated there is no guarantee. ``constants`` are ``problem.constants()``, ``nw.theory.estimate(problem)`` or your
    own. ``setting`` is one of ``prescribe``; None chooses it by the constants and the output rule. ``stepsize`` is the
    rule of the run; None takes it from ``run.config``. ``measured`` is the error of the answer, to be shown beside it.

    It works on unfinished runs too: ``nw.theory.certificate(nw.load(folder, unfinished=True), constants)``.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, L=1.0, mu=0.0, sigma=0.1)
    >>> p = nw.theory.prescribe("convex", problem.constants(), workers=4, steps=10_000)
    >>> run = nw.simulate(
    ...     problem,
    ...     nw.AsynchronousSGD(p.stepsize),
    ...     nw.speeds.Fixed([1, 1, 1, 100]),
    ...     steps=p.steps,
    ...     output=p.output,
    ... )
    >>> found = certificate(run, problem.constants())
    >>> problem.loss(run.params) < float(found.guarantee) < float(p.guarantee.sharpened)
    True
    """
    rule = rule_of(run.config) if stepsize is None else as_stepsize(stepsize)
    flights = Flights(run.trace, rule)
    given = str(run.config.get("output", {}).get("type", "LastIterate"))
    chosen = _setting_of(constants, given) if setting is None else setting
    case = known_case(chosen, constants, flights.M, flights.K)
    bound, conditions = case.solved_by(lambda same: BOUNDS[chosen](same, flights))
    if not all(condition.holds for condition in conditions):
        bound = Guarantee(bound.measure, math.inf)
    return RunCertificate(
        setting=chosen,
        constants=case.constants,
        workers=flights.M,
        steps=flights.K,
        guarantee=bound.with_start(case.error_at_start(bound.measure)),
        output=_output_of(chosen, given, rule),
        given_output=given,
        conditions=tuple(conditions),
        stepsize_sum=float(flights.hats.sum()),
        largest_stepsize=float(flights.stepsize.max()),
        longest_delay=int(run.trace.delay.max()),
        measured=None if measured is None else checks.not_negative(measured, "measured", "it is an error"),
    )


def _setting_of(constants: Constants, output: str) -> str:
    """Return the setting that the constants and the output rule point to."""
    if constants.zeta:
        return "heterogeneous"
    if constants.L is None:
        return "convex-lipschitz"
    if output == StronglyConvexAverage.__name__ and constants.mu:
        return "strongly-convex"
    return "nonconvex" if output == RandomIterate.__name__ or constants.B is None else "convex"


def _output_of(setting: str, given: str, rule: Stepsize) -> str:
    """Return the name of the output rule that a bound is for."""
    if setting == "strongly-convex":
        return StronglyConvexAverage.__name__
    if setting in ("convex", "convex-lipschitz"):
        same = isinstance(rule, Constant) and given == "UniformAverage"  # equal weights are the stepsizes then
        return given if same else StepsizeWeightedAverage.__name__
    return RandomIterate.__name__


def rule_of(config: dict[str, Any]) -> Stepsize:
    """Return the stepsize rule of a run of asynchronous SGD, rebuilt from its configuration."""
    described = config.get("method", {}).get("stepsize")
    known = {rule.__name__: rule for rule in RULES}
    if isinstance(described, dict) and described.get("type") in known:
        return known[described["type"]](**{name: value for name, value in described.items() if name != "type"})
    raise ValueError(
        f"the stepsize rule of the run is not known ({described!r}): pass it as stepsize=, "
        f"as it was given to AsynchronousSGD"
    )


def _convex_lipschitz(case: Case, flights: Flights) -> tuple[Guarantee, list[Condition]]:
    """Return G²(B²/G² + Γ² + Σ γ̂_k² + 2 Σ_k γ̂_k·Σ_{in flight} γ)/(2S)."""
    G, B, hats = case.need_positive("G"), case.need_positive("B"), flights.hats
    first = float(flights.stepsize[flights.at_start].sum())
    moved = first**2 + float((hats**2).sum()) + 2 * float(hats @ flights.others_in_flight)
    return Guarantee(SUBOPTIMALITY, (B**2 + G**2 * moved) / (2 * float(hats.sum()))), []


def _nonconvex_lipschitz(case: Case, flights: Flights) -> tuple[Guarantee, list[Condition]]:
    """Return [Δ + (L/2)σ²Σγ² + (LG)²/(2α)·Σ_k γ̂_k(Σ_{in flight} γ)²]/(cS), c = 1 − α/2 − Lγ/2, with the best α."""
    L, G, hats = case.need_positive("L"), case.need_positive("G"), flights.hats
    total, most = float(hats.sum()), 1 - L * float(hats.max()) / 2
    noise = L * case.need("sigma") ** 2 * float((flights.stepsize**2).sum()) / 2 / total
    drift = (L * G) ** 2 * float(hats @ flights.others_in_flight**2) / 2 / total
    start = case.need_positive("Delta") / total
    conditions = [_descent(case, flights, 0.0, 1.0), Condition("L·γ, the largest stepsize", 2 * (1 - most), 1.0)]
    if most <= 0:
        return Guarantee(SQUARED_GRADIENT, math.inf), conditions
    alpha = best_alpha(start + noise, drift, most, 0.0)
    kept = most - alpha / 2
    return Guarantee(SQUARED_GRADIENT, (start + (drift / alpha if drift else 0.0)) / kept, noise / kept), conditions


def _convex(case: Case, flights: Flights) -> tuple[Guarantee, list[Condition]]:
    """Return (B² + σ²Σγ²)/(2S), if L·γ·(M + steps in flight) ≤ 1 for every gradient."""
    L, stepsize, total = case.need_positive("L"), flights.stepsize, float(flights.hats.sum())
    noise = case.need("sigma") ** 2 * float((stepsize**2).sum()) / (2 * total)
    late = L * stepsize * (case.M + flights.steps)
    start = flights.at_start
    first = float(stepsize[start].sum()) + float((stepsize**2 * flights.steps)[start].sum()) / _sum(stepsize[start])
    conditions = [
        Condition("L·γ·(M + steps in flight), the largest over all gradients", float(late[~start].max()), 1.0),
        Condition("the same for the gradients at x_0, together", L * first, 2.0),
    ]
    return Guarantee(SUBOPTIMALITY, case.need_positive("B") ** 2 / (2 * total), noise), conditions


def _strongly_convex(case: Case, flights: Flights) -> tuple[Guarantee, list[Condition]]:
    """Return the bound of Theorem 3.2 with the sums of the run, for weights with the stepsizes applied so far."""
    L, mu, M, hats = case.need_positive("L"), case.need_positive("mu"), case.M, flights.hats
    logs = np.concatenate([[0.0], mu / 2 * np.cumsum(hats)])
    growth = np.exp(logs[flights.end] - logs[flights.point])  # P̂ at the end of the flight over P̂ at its point
    inside = flights.sums(hats)
    start, stepsize = flights.at_start, flights.stepsize
    late = growth * (flights.steps + (M - 1) * mu * inside)
    beta, first = L * stepsize * (M + late), stepsize[start]
    needed = _sum(first) + float(first**2 @ late[start]) / _sum(first)
    conditions = [
        Condition("β, the largest over all gradients", float(beta[~start].max()), 1.0 - TOLERANCE),
        Condition("the same for the gradients at x_0, together", L * needed, 2.0),
    ]
    kept = 1 - conditions[0].value
    if kept <= 0:
        return Guarantee(SUBOPTIMALITY, math.inf), conditions
    weight = float(np.log(hats @ np.exp(logs[1:] - logs[-1])) + logs[-1])  # of Σ γ̂_k·P̂_k
    own = np.exp(logs[flights.point] - weight)
    noise = case.need("sigma") ** 2 * float((stepsize**2 * own * (1 + mu * inside * growth)).sum())
    applied = mu / 2 * np.cumsum(stepsize[: flights.K]) - logs[1:]
    worse = math.exp(float(np.ptp(applied))) / (2 * kept)
    return Guarantee(SUBOPTIMALITY, worse * case.need_positive("B") ** 2 * math.exp(-weight), worse * noise), conditions


def _nonconvex(case: Case, flights: Flights) -> tuple[Guarantee, list[Condition]]:
    """Return [Δ + (L/2)σ²Σγ² + L²σ²/(2α)·Σ_n γ²·H]/(cS) with the best α; H is Σ γ̂ over a gradient's flight."""
    L, M, stepsize, hats = case.need_positive("L"), case.M, flights.stepsize, flights.hats
    sigma, total, inside = case.need("sigma"), float(hats.sum()), flights.sums(hats)
    q = (M - 1) * L**2 * float((stepsize * inside)[~flights.at_start].max())
    most = 1 - L * float(hats.max()) / 2
    noise = L * sigma**2 * float((stepsize**2).sum()) / 2 / total
    drift = (L * sigma) ** 2 * float(stepsize**2 @ inside) / 2 / total
    start = case.need_positive("Delta") / total
    alpha = max(_least_alpha(case, flights), best_alpha(start + noise, drift, most, q) if most > 0 else 1.0)
    kept = most - alpha / 2 - (q / alpha / 2 if q else 0.0)
    conditions = [
        Condition("1 − c, the loss of descent", 1 - kept, 1.0 - TOLERANCE),
        _descent(case, flights, (M - 1) * L / (2 * alpha) if alpha > 0 else 0.0, 1.0),
    ]
    if kept <= 0:
        return Guarantee(SQUARED_GRADIENT, math.inf), conditions
    return Guarantee(SQUARED_GRADIENT, start / kept, (noise + (drift / alpha if drift else 0.0)) / kept), conditions


def _heterogeneous(case: Case, flights: Flights) -> tuple[Guarantee, list[Condition]]:
    """Return the bound of Theorem 4 with the sums of the run."""
    L, M, stepsize, hats = case.need_positive("L"), case.M, flights.stepsize, flights.hats
    sigma, zeta, total, inside = case.need("sigma"), case.need("zeta"), float(hats.sum()), flights.sums(hats)
    late = (M - 1) * L**2 * stepsize * inside
    kept = 0.5 - L * float(hats.max()) - float(late[~flights.at_start].max())
    conditions = [
        Condition("½ − c, the loss of descent", 0.5 - kept, 0.5 - TOLERANCE),
        _descent(case, flights, (M - 1) * L, 0.5, square=1.0),
    ]
    if kept <= 0:
        return Guarantee(SQUARED_GRADIENT, math.inf), conditions
    first = _sum(stepsize[flights.at_start])
    apart = (first + total) / 2 + L * (first**2 + float((hats**2).sum())) + float(stepsize @ late)
    noise = sigma**2 * (L * float((stepsize**2).sum()) + L**2 * float(stepsize**2 @ inside)) / 2
    kept *= total
    bound = Guarantee(SQUARED_GRADIENT, case.need_positive("Delta") / kept, noise / kept, zeta**2 * apart / kept)
    return bound, conditions


def _least_alpha(case: Case, flights: Flights) -> float:
    """Return the α from which on the gradients at x_0 do not increase F in the non-convex setting, if there is one."""
    L, first = case.need_positive("L"), flights.stepsize[flights.at_start]
    drift = (case.M - 1) * L**2 * float(first**2 @ flights.sums(flights.hats)[flights.at_start]) / 2
    left = 1 - L * _sum(first) / 2
    return drift / (left * _sum(first)) if left > 0 else 1.0


def _descent(case: Case, flights: Flights, drift: float, limit: float, square: float = 0.5) -> Condition:
    """Return the condition under which the gradients at x_0 do not increase F: square·LΓ + drift·L·Σγ²H/Γ ≤ limit."""
    L, start = case.need_positive("L"), flights.at_start
    first, inside = flights.stepsize[start], flights.sums(flights.hats)[start]
    value = square * L * _sum(first) + drift * L * float(first**2 @ inside) / _sum(first)
    return Condition("the increase of F by the gradients at x_0", value, limit)


def _sum(values: Any) -> float:
    return float(values.sum())


BOUNDS: dict[str, Callable[[Case, Flights], tuple[Guarantee, list[Condition]]]] = {
    "convex-lipschitz": _convex_lipschitz,
    "nonconvex-lipschitz": _nonconvex_lipschitz,
    "convex": _convex,
    "strongly-convex": _strongly_convex,
    "nonconvex": _nonconvex,
    "heterogeneous": _heterogeneous,
}
"""The bound and the conditions of every setting."""
