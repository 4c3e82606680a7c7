"""Checks of the paper's lemmas on the trace of a run of asynchronous SGD.

They hold for every order of arrivals and all stepsizes, so a run that violates one has a bookkeeping error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import Constant, DelayAdaptive, ExponentialDelayAdaptive, Problem, Stepsize, as_stepsize, sampler
from nowait.core.capabilities import Capabilities
from nowait.core.problem import initial_params
from nowait.core.types import Floats, Integers, Vector
from nowait.theory.theorems import sum_share

TOLERANCE, SINGLE_TOLERANCE = 1e-9, 1e-4
"""Allowed rounding error, relative to params of size 1; the second is for params in float32."""
BLOCK = 4_000_000
"""How many numbers are kept in memory at the same time."""


@final
@dataclass(frozen=True)
class LemmaCheck:
    """One lemma on one run: the difference of its two sides (0 where an inequality holds), and whether it holds."""

    lemma: str
    """What was checked."""
    deviation: float
    """The difference of its two sides; 0 where an inequality holds."""
    holds: bool
    """True if it holds up to rounding."""


def check_lemmas(
    trace: Any, stepsize: Stepsize | float, problem: Problem, *, seed: int = 0, initial: Any = None, last: Any = None
) -> list[LemmaCheck]:
    """Check the delay identity, the sum of the stepsizes and Lemma 1 on ``run.trace``.

    ``stepsize``, ``problem``, ``seed`` and ``initial`` are those of the run, ``last`` is ``run.last``. The run is
    recomputed with its gradients and must end at the same params (compared by norm, if ``last`` is not given). The sum
    is checked for ``Constant``, ``DelayAdaptive`` and ``ExponentialDelayAdaptive``; for other rules the check is left
    out.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
    >>> stepsize = nw.DelayAdaptive(0.1)
    >>> run = nw.simulate(
    ...     problem,
    ...     nw.AsynchronousSGD(stepsize),
    ...     nw.speeds.Pareto(1.0, 1.1, workers=5),
    ...     steps=100,
    ... )
    >>> [(check.lemma, check.holds) for check in check_lemmas(run.trace, stepsize, problem)]
    [('delay identity', True), ('Lemma 1', True), ('sum of the stepsizes', True)]
    """
    if Capabilities.of(problem).num_statistics:
        raise ValueError("Lemma 1 needs params that are all trained: models with buffers cannot be checked")
    order = Order(trace)
    start = initial_params(problem, initial)
    checks = [check_delays(order, trace), check_lemma_1(order, trace, problem, seed, start, last)]
    rule = as_stepsize(stepsize)
    if isinstance(rule, Constant | DelayAdaptive):
        checks.append(check_stepsize_sum(order, rule))
    if isinstance(rule, ExponentialDelayAdaptive):
        checks.append(check_weight_sum(order, rule))
    return checks


class Order:
    """The order of arrivals: the paper's m_k, prev and next (erratum E3: prev is 0 and next is ∞ if there is none).

    Gradients are numbered by the step they make, from 1 to K; those in flight at the end are K + 1 + m.
    """

    def __init__(self, trace: Any) -> None:
        self.K, self.M = len(trace.worker), trace.num_workers
        if self.K == 0 or not np.array_equal(trace.step, np.arange(1, self.K + 1)) or len(trace.events):
            raise ValueError(
                "the lemmas hold for runs that apply every arrival immediately and whose workers do not change: "
                "pass the trace of a run of AsynchronousSGD without faults, with at least one step"
            )
        numbers = {worker: place for place, worker in enumerate(np.sort(trace.initial_workers).tolist())}
        self.worker: Integers = np.array([-1, *(numbers[worker] for worker in trace.worker.tolist())])
        """m_k as a number from 0 to M − 1, for k = 1 … K; entry 0 is unused."""
        self.next = np.empty((self.K + 2, self.M), np.int64)
        """next(k, m): the first gradient of worker m at k or later."""
        self.next[self.K + 1] = self.K + 1 + np.arange(self.M)
        for k in range(self.K, 0, -1):
            self.next[k] = self.next[k + 1]
            self.next[k, self.worker[k]] = k
        self.previous = np.zeros(self.K + 1 + self.M, np.int64)
        """prev of every gradient: the version of its point."""
        latest = np.zeros(self.M, np.int64)
        for k in range(1, self.K + 1):
            self.previous[k] = latest[self.worker[k]]
            latest[self.worker[k]] = k
        self.previous[0], self.previous[self.K + 1 :] = 0, latest

    def final_stepsizes(self, rule: Stepsize) -> Floats:
        """Return the stepsize of every gradient; gradients in flight at the end have the delay max(1, K − prev)."""
        k = np.arange(self.K + 1 + self.M)
        in_flight = k > self.K
        delays = np.where(in_flight, np.maximum(1, self.K - self.previous), k - self.previous)
        stepsizes = np.zeros(len(k))
        stepsizes[1:] = rule(delays[1:], self.M, np.minimum(k, self.K)[1:])
        return stepsizes

    def of_points(self, stepsizes: Floats) -> Floats:
        """Return γ̂_1 … γ̂_K: the stepsize of the gradient computed at x_k, which is number next(k + 1, m_k)."""
        k = np.arange(1, self.K + 1)
        return stepsizes[self.next[k + 1, self.worker[1:]]]


def check_delays(order: Order, trace: Any) -> LemmaCheck:
    """Check that recorded delays are τ(k) = k − prev, and Σ_{k<K} τ(k) + Σ_m τ(K, m) = K·M exactly (erratum E25)."""
    k = np.arange(1, order.K + 1)
    delays = k - order.previous[1 : order.K + 1]
    wrong = int((delays != trace.delay).sum())
    at_the_end = sum(order.K - order.previous[order.next[order.K, worker]] for worker in range(order.M))
    apart = abs(int(delays[:-1].sum()) + int(at_the_end) - order.K * order.M)
    return LemmaCheck("delay identity", float(wrong + apart), wrong + apart == 0)


def check_stepsize_sum(order: Order, rule: Constant | DelayAdaptive) -> LemmaCheck:
    """Check Σ γ̂_k ≥ γ_max·K·(1 − M/(4·cut)), which holds for all delays (equality for ``Constant``: cut = ∞)."""
    if isinstance(rule, Constant):
        largest, cut = rule.gamma, math.inf
    else:
        largest, cut = rule.gamma, float(order.M) if rule.cut is None else rule.cut
    total = float(order.of_points(order.final_stepsizes(rule)).sum())
    missing = largest * order.K * sum_share(order.M, cut) - total
    return LemmaCheck("sum of the stepsizes", max(0.0, missing), missing <= TOLERANCE * largest * order.K)


def check_weight_sum(order: Order, rule: ExponentialDelayAdaptive) -> LemmaCheck:
    """Check Σ γ̂_k·P̂_k ≥ max{2Kγ_max/21, (γ_max/7)·exp(Kμγ_max/84)}, P̂_k = exp((μ/2)·Σ_{j≤k} γ̂_j), for K ≥ 3M.

    Theorem 3.2 uses it in place of the sum of the stepsizes; μ is computed from the rule that the theorem prescribes.
    """
    hats = order.of_points(order.final_stepsizes(rule))
    mu = order.M * rule.rate / (rule.cut * rule.gamma)
    logs = mu / 2 * np.cumsum(hats)
    total = float(np.log(hats @ np.exp(logs - logs[-1])) + logs[-1])
    least = max(math.log(2 * order.K * rule.gamma / 21), math.log(rule.gamma / 7) + order.K * mu * rule.gamma / 84)
    missing = least - total if 3 * order.M <= order.K else 0.0
    return LemmaCheck("sum of the stepsizes", max(0.0, missing), missing <= TOLERANCE)


def check_lemma_1(order: Order, trace: Any, problem: Any, seed: int, start: Vector, last: Vector | None) -> LemmaCheck:
    """Check x_k − x̂_k = Σ_{m≠m_k} γ_{next(k,m)}·∇f(x_{prev(k,m)}; ξ), the gradients in flight just after step k.

    x̂_1 = x_0 − Σ_m γ_{next(1,m)}·∇f(x_0; ξ_m) and x̂_{k+1} = x̂_k − γ̂_k·∇f(x_k; ξ_k). The stepsizes are those of the
    trace. Stepsizes of gradients that never arrived appear on both sides, and the last step's stepsize is used for
    them.
    """
    iterates, moves = _run_again(order, trace, problem, seed, start)
    k = np.arange(1, order.K + 1)
    virtual = np.empty_like(iterates)
    virtual[1] = iterates[0] - moves[order.next[1]].sum(axis=0)
    of_points = moves[order.next[k + 1, order.worker[1:]]]
    virtual[2:] = virtual[1] - np.cumsum(of_points[:-1], axis=0)
    apart = 0.0
    block = max(1, BLOCK // moves.shape[1] // order.M)
    for first in range(1, order.K + 1, block):
        some = slice(first, min(first + block, order.K + 1))
        in_flight = moves[order.next[some]].sum(axis=1) - moves[some]
        apart = max(apart, float(np.abs(iterates[some] - virtual[some] - in_flight).max()))
    arrived = abs(float(np.linalg.norm(iterates[-1])) - trace.last_norm)
    if last is not None:
        arrived = float(np.abs(iterates[-1] - last).max())
    deviation = max(apart, arrived) / max(1.0, float(np.abs(iterates).max()))
    single = start.dtype == np.float32
    return LemmaCheck("Lemma 1", deviation, bool(deviation <= (SINGLE_TOLERANCE if single else TOLERANCE)))


def _run_again(order: Order, trace: Any, problem: Any, seed: int, start: Vector) -> tuple[Floats, Floats]:
    """Return x_0 … x_K, and γ·∇f of every gradient by its number, computed from the trace alone."""
    fill, samples = Capabilities.of(problem).fill_with_gradient(), sampler(seed)
    workers, jobs, stepsizes = trace.worker.tolist(), trace.job.tolist(), trace.stepsize.tolist()
    iterates = np.empty((order.K + 1, problem.dimension))
    moves = np.zeros((order.K + 1 + order.M, problem.dimension))
    iterates[0] = start
    gradient = np.empty_like(start)
    for k in range(1, order.K + 1):
        point = iterates[order.previous[k]].astype(start.dtype)
        fill(point, samples.sample(workers[k - 1], jobs[k - 1]), gradient)
        moves[k] = stepsizes[k - 1] * gradient.astype(np.float64)
        iterates[k] = (iterates[k - 1] - moves[k]).astype(start.dtype)
    given = dict.fromkeys(np.sort(trace.initial_workers).tolist(), 0)
    given |= {worker: job + 1 for worker, job in zip(workers, jobs, strict=True)}
    for place, (worker, job) in enumerate(sorted(given.items())):
        number = order.K + 1 + place
        fill(iterates[order.previous[number]].astype(start.dtype), samples.sample(worker, job), gradient)
        moves[number] = stepsizes[-1] * gradient.astype(np.float64)
    return iterates, moves
