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
    Output,
    RandomIterate,
    Sgd,
    Stepsize,
    StepsizeWeightedAverage,
    StronglyConvexAverage,
    UniformAverage,
    UniformIterate,
    as_stepsize,
    checks,
)
from nowait.theory.bounds import best_alpha
from nowait.theory.case import Case
from nowait.theory.constants import Constants, constants_of
from nowait.theory.flights import Flights
from nowait.theory.guarantee import SQUARED_GRADIENT, SUBOPTIMALITY, Guarantee
from nowait.theory.latex import certificate_text
from nowait.theory.runs import checked_run
from nowait.theory.theorems import check_same_data, known_case

RULES: tuple[type[Stepsize], ...] = (Constant, DelayAdaptive, ExponentialDelayAdaptive)
"""The stepsize rules that are rebuilt from the configuration of a run."""
TOLERANCE = 1e-9
SAME_RULE = 1e-6
"""The largest relative difference between recorded stepsizes and those of the rule."""


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

    def latex(self) -> str:
        """Return a paragraph in LaTeX, for a paper: the run, its delays and stepsizes, and the guarantee for them."""
        return certificate_text(self)

    def prediction_row(self, name: str) -> tuple[str, str, str]:
        """Return a row for ``nw.report(…, predictions=[…])``: what is guaranteed and measured for the run ``name``."""
        promised = f"≤ {float(self.guarantee):.4g}" if self.holds else "no guarantee: a condition is violated"
        vacuous = " (vacuous)" if self.holds and self.guarantee.is_vacuous else ""
        measured = "not known" if self.measured is None else f"{self.measured:.4g}"
        return f"{name}: {self.guarantee.measure}", promised + vacuous, measured

    def __str__(self) -> str:
        lines = [
            f"{self.setting}, {self.workers:,} workers, {self.steps:,} steps, longest delay {self.longest_delay:,}, "
            f"stepsizes up to {self.largest_stepsize:.4g} with the sum {self.stepsize_sum:.4g}",
            f"  guarantee  {self.guarantee.terms()}" if self.holds else "  guarantee  none: a condition is violated",
            f"  for        {self.output}"
            + ("" if self.is_for_the_answer else f", but the run had {self.given_output}"),
            *([] if self.measured is None else [f"  measured   {self.measured:.4g}"]),
            *(f"  needs      {condition}" for condition in self.conditions),
            f"  assumed    {self.constants}, and delays and a number of steps that do not depend on the samples",
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
    run, constants = checked_run(run), constants_of(constants)
    check_method(run.config)
    rule = rule_of(run.config) if stepsize is None else as_stepsize(stepsize)
    flights = Flights(run.trace, rule)
    _check_rule(run.trace, rule)
    given = _given_output(run.config)
    chosen = _setting_of(constants, given) if setting is None else setting
    case = known_case(chosen, constants, flights.M, flights.K)
    check_same_data(case)
    bound, conditions = bound_of(case, flights)
    return RunCertificate(
        setting=chosen,
        constants=case.constants,
        workers=flights.M,
        steps=flights.K,
        guarantee=bound.with_start(case.error_at_start(bound.measure)),
        output=_output_of(chosen, given, rule),
        given_output=given + _other_weights(run.config, case),
        conditions=tuple(conditions),
        stepsize_sum=float(flights.hats.sum()),
        largest_stepsize=float(flights.stepsize.max()),
        longest_delay=int(run.trace.delay.max()),
        measured=None if measured is None else checks.not_negative(measured, "measured", "it is an error"),
    )


def bound_of(case: Case, flights: Flights) -> tuple[Guarantee, list[Condition]]:
    """Return the bound for the delays and stepsizes of a run, infinite if a condition is violated, and the conditions.

    It takes the run for one of asynchronous SGD: see ``check_method``.
    """
    bound, conditions = case.solved_by(lambda same: BOUNDS[case.setting](same, flights))
    if not all(condition.holds for condition in conditions):
        bound = Guarantee(bound.measure, math.inf)
    return bound, conditions


def check_method(config: dict[str, Any]) -> None:
    """Raise ValueError unless the run made plain steps along the gradients, as ``AsynchronousSGD`` does by default.

    Other methods, such as those that clip gradients, may also apply every arrival at once; no bound is known for them.
    """
    method, update = (str((config.get(part) or {}).get("type")) for part in ("method", "update"))
    if method != "AsynchronousSGD":
        raise ValueError(f"a certificate is known for runs of AsynchronousSGD only, got a run of {method}")
    if update not in (Sgd.__name__, "None"):
        raise ValueError(f"a certificate is known for plain steps along the gradients only, got update={update}")


def _check_rule(trace: Any, rule: Stepsize) -> None:
    """Raise ValueError if the recorded stepsizes are not those of the rule."""
    expected = np.asarray(rule(trace.delay, trace.num_workers, trace.step), dtype=np.float64)
    if not np.allclose(trace.stepsize, expected, rtol=SAME_RULE, atol=0.0):
        raise ValueError(f"the run did not have the stepsizes of {rule!r}: pass the rule that it had as stepsize=")


def _given_output(config: dict[str, Any]) -> str:
    return str(config.get("output", {}).get("type", "LastIterate"))


def _other_weights(config: dict[str, Any], case: Case) -> str:
    """Return what to add to the name of the run's output if it is a strongly convex average with other weights."""
    if case.setting != "strongly-convex" or _given_output(config) != StronglyConvexAverage.__name__:
        return ""
    given, needed = float(config["output"]["mu"]), case.need_positive("mu") / 2
    return (
        "" if math.isclose(given, needed) else f"({given:g}) in place of {StronglyConvexAverage.__name__}({needed:g})"
    )


def _setting_of(constants: Constants, output: str) -> str:
    """Return the setting that the constants and the output rule point to."""
    if constants.zeta:
        return "heterogeneous"
    if constants.L is None:
        return "convex-lipschitz"
    if output == StronglyConvexAverage.__name__ and constants.mu:
        return "strongly-convex"
    is_random = output in (RandomIterate.__name__, UniformIterate.__name__)
    return "nonconvex" if is_random or constants.B is None else "convex"


def _output_of(setting: str, given: str, rule: Stepsize) -> str:
    """Return the name of the output rule that a bound is for."""
    if setting == "strongly-convex":
        return StronglyConvexAverage.__name__
    by_stepsize: type[Output] = StepsizeWeightedAverage
    uniform: type[Output] = UniformAverage
    if setting not in ("convex", "convex-lipschitz"):
        by_stepsize, uniform = RandomIterate, UniformIterate
    same = isinstance(rule, Constant) and given == uniform.__name__  # equal weights are the stepsizes then
    return given if same else by_stepsize.__name__


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
