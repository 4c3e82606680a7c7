"""Guarantees of methods that make a step along the mean of a batch of fresh gradients.

Rennala SGD, m-synchronous SGD, Malenia SGD and asynchronous mini-batching are SGD whose gradients have the variance
σ²/b, where b is the batch, if which gradients are in the batch does not depend on their samples. The bounds of
minibatch SGD with b workers (``rivals``) therefore hold as they are; their constants are nowait's own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from nowait.core import checks
from nowait.theory.case import Case
from nowait.theory.constants import Constants
from nowait.theory.goal import prescribed
from nowait.theory.guarantee import Prescription
from nowait.theory.rivals import prescribe_minibatch
from nowait.theory.theorems import ASSUMPTION_1, known_case


def prescribe_rennala(
    setting: str,
    constants: Constants,
    *,
    workers: int,
    batch: int | None = None,
    steps: int | None = None,
    accuracy: float | None = None,
) -> Prescription:
    """Return batch, stepsize, output and guarantee of Rennala SGD, for given ``steps`` or a given ``accuracy``.

    Tyurin and Richtárik (2023). ``batch`` None, with an ``accuracy`` ε, is ⌈σ²/ε⌉ in the non-convex setting, as in the
    paper, ⌈σ²/(2Lε)⌉ in the convex and ⌈σ²/(Lε)⌉ in the strongly convex one. A larger batch would save few steps.
    The settings are those of ``prescribe`` for workers with the same data.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, L=1.0, mu=0.1, sigma=1.0)
    >>> p = prescribe_rennala("nonconvex", problem.constants(), workers=4, accuracy=0.1)
    >>> method = nw.RennalaSGD(p.stepsize, **p.parameters)
    >>> method.batch, p.steps, round(float(p.guarantee), 3)
    (10, 9, 0.097)
    """
    case = same_data_case(setting, constants, workers, "Rennala SGD", "Malenia SGD (prescribe_malenia)")
    size = _checked_batch(batch) if batch is not None else batch_for(case, accuracy)
    return prescribed(
        lambda count: _of_rounds(case, "Rennala SGD", size, count, "RennalaSGD", {"batch": size}), steps, accuracy
    )


def prescribe_m_synchronous(
    setting: str,
    constants: Constants,
    *,
    workers: int,
    m: int,
    cancel: bool = False,
    steps: int | None = None,
    accuracy: float | None = None,
) -> Prescription:
    """Return stepsize, output and guarantee of m-synchronous SGD: steps along the mean of the first ``m`` gradients.

    Begunov and Tyurin (2026). The best m depends on the speeds: ``ranking`` finds it. ``cancel`` is an argument of the
    method; the guarantee is the same with and without it.

    >>> c = Constants(L=1.0, sigma=1.0, B=1.0)
    >>> prescribe_m_synchronous("convex", c, workers=8, m=6, steps=1_000).call
    'MSynchronousSGD(stepsize, m=6)'
    """
    case = same_data_case(setting, constants, workers, "m-synchronous SGD", "minibatch SGD (prescribe_minibatch)")
    size = checks.at_least(1, m, "m", "a step needs at least one gradient")
    if size > case.M:
        raise ValueError(f"m must be at most the number of workers, {case.M}, got {m}: each sends one gradient a round")
    parameters = {"m": size} | ({"cancel": True} if cancel else {})
    return prescribed(
        lambda count: _of_rounds(case, "m-synchronous SGD", size, count, "MSynchronousSGD", parameters), steps, accuracy
    )


def prescribe_malenia(
    setting: str,
    constants: Constants,
    *,
    workers: int,
    batch: int | None = None,
    steps: int | None = None,
    accuracy: float | None = None,
) -> Prescription:
    """Return batch, stepsize, output and guarantee of Malenia SGD, whose workers may have different data.

    Tyurin and Richtárik (2023). A round ends when Σ 1/B_i ≤ n²/batch for the counts B_i of the n workers, and the
    variance of its mean is σ²·Σ(1/B_i)/n² ≤ σ²/batch. ``batch`` None is the one of ``prescribe_rennala``, but at least
    the number of workers, since every worker sends a gradient. ζ does not matter.

    >>> c = Constants(L=1.0, sigma=1.0, Delta=1.0, zeta=5.0)
    >>> p = prescribe_malenia("heterogeneous", c, workers=8, accuracy=0.1)
    >>> p.parameters, p.steps
    ({'batch': 10}, 41)
    """
    case = known_case(setting, constants, workers, 1)
    size = max(case.M, _checked_batch(batch) if batch is not None else batch_for(case, accuracy))
    return prescribed(
        lambda count: _of_rounds(case, "Malenia SGD", size, count, "MaleniaSGD", {"batch": size}), steps, accuracy
    )


def prescribe_quantile(
    setting: str,
    constants: Constants,
    *,
    workers: int,
    quantile: float,
    delay: int,
    gradients: int | None = None,
    accuracy: float | None = None,
) -> Prescription:
    """Return the guarantee of asynchronous mini-batching, which depends on a quantile of the delays.

    Attia, Gaash and Koren (2024). Of ``gradients`` arrivals, T, a share q = ``quantile`` or more must have a delay of
    at most τ = ``delay``, counted in arrivals. The batch is τ. A gradient with a delay of at most τ is dropped only if
    it is one of the τ − 1 arrivals after a step, so K steps are made by the time that q·T ≥ K·(2τ − 1) + τ − 1. The
    constants are nowait's. ``QuantileMinibatchSGD`` follows the quantile as it changes; the guarantee is for a fixed
    batch, ``RennalaSGD(stepsize, batch, cancel=False)``.

    >>> c = Constants(L=1.0, sigma=1.0, Delta=1.0)
    >>> p = prescribe_quantile(
    ...     "nonconvex", c, workers=8, quantile=0.9, delay=10, gradients=10_000
    ... )
    >>> p.call, p.steps
    ('RennalaSGD(stepsize, batch=10, cancel=False)', 473)
    """
    case = same_data_case(setting, constants, workers, "asynchronous mini-batching", "prescribe_malenia")
    share = checks.positive(quantile, "quantile", "it is the share of gradients with short delays")
    if share > 1:
        raise ValueError(
            f"quantile must be at most 1, got {quantile!r}: it is the share of gradients with short delays"
        )
    tau = checks.at_least(1, delay, "delay", "a fresh gradient has delay 1")
    steps = None
    if gradients is not None:
        count = checks.at_least(1, gradients, "gradients", "it is the number of arrivals")
        steps = int((share * count - tau + 1) // (2 * tau - 1))
        if steps < 1:
            raise ValueError(
                f"{count} gradients are not enough for one step: with quantile={share:g} and delay={tau}, take at "
                f"least {math.ceil((3 * tau - 2) / share)}"
            )
    parameters = {"batch": tau, "cancel": False}
    found = prescribed(
        lambda count: _of_rounds(case, "asynchronous mini-batching", tau, count, "RennalaSGD", parameters),
        steps,
        accuracy,
    )
    needed = math.ceil((found.steps * (2 * tau - 1) + tau - 1) / share)
    note = f"its steps need at most {needed:,} gradients if a share of {share:g} of them have delays up to {tau}"
    return replace(found, notes=(*found.notes, note))


def batch_for(case: Case, accuracy: float | None) -> int:
    """Return the batch with which noise costs about as many steps as the distance to the minimum does."""
    if accuracy is None:
        raise ValueError("batch= is missing: it can be chosen for an accuracy= only, not for a number of steps")
    aim = checks.positive(accuracy, "accuracy", "it is the error to guarantee")
    if case.setting == "convex-lipschitz":
        return 1
    share = {"convex": 2 * case.need_positive("L"), "strongly-convex": case.need_positive("L")}.get(case.setting, 1.0)
    return max(1, math.ceil(case.need("sigma") ** 2 / (share * aim) - 1e-9))


def same_data_case(setting: str, constants: Any, workers: int, method: str, instead: str) -> Case:
    """Return the case; raise ValueError if the workers' data differ, for a method that would then be biased."""
    case = known_case(setting, constants, workers, 1)
    if setting == "heterogeneous" or case.constants.zeta:
        raise ValueError(f"{method} is biased if workers have different data: use {instead}")
    return case


def _checked_batch(batch: int) -> int:
    return checks.at_least(1, batch, "batch", "a step needs at least one gradient")


def _of_rounds(case: Case, name: str, batch: int, steps: int, method: str, parameters: dict[str, Any]) -> Prescription:
    """Return the prescription of minibatch SGD with ``batch`` workers, under the method's name."""
    found = prescribe_minibatch(case.setting, case.constants, workers=batch, steps=steps)
    return replace(
        found,
        theorem=name,
        workers=case.M,
        method=method,
        parameters=parameters,
        notes=(f"minibatch SGD with batches of {batch}: the constants are nowait's own", ASSUMPTION_1),
    )
