"""Checks of the paper's lemmas on the trace of a run of asynchronous SGD.

They hold for every order of arrivals and all stepsizes, so a run that violates one has a bookkeeping error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core import (
    Constant,
    DelayAdaptive,
    ExponentialDelayAdaptive,
    LastIterate,
    Output,
    Problem,
    RandomIterate,
    Stepsize,
    StronglyConvexAverage,
    UniformAverage,
    as_stepsize,
    checks,
    sampler,
)
from nowait.core.capabilities import Capabilities
from nowait.core.problem import checked_problem, initial_params
from nowait.core.types import Floats, Integers, Vector
from nowait.theory.envelope import least_share
from nowait.theory.runs import checked_trace

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
    trace: Any,
    stepsize: Stepsize | float,
    problem: Problem,
    *,
    seed: int = 0,
    initial: Any = None,
    last: Any = None,
    output: Output | None = None,
    params: Any = None,
) -> list[LemmaCheck]:
    """Check the delays, the stepsizes, their sum and Lemma 1 on ``run.trace``, and the output rule's answer.

    ``stepsize``, ``problem``, ``seed`` and ``initial`` are those of the run, ``last`` is ``run.last``. The run is
    recomputed with its gradients and must end at the same params (compared by norm, if ``last`` is not given). The sum
    is checked for ``Constant``, ``DelayAdaptive`` and ``ExponentialDelayAdaptive``; for other rules the check is left
    out. With ``output`` and ``params``, the output rule and ``run.params``, the answer is recomputed as well.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=3, sigma=0.1)
    >>> stepsize = nw.DelayAdaptive(0.1)
    >>> run = nw.simulate(
    ...     problem,
    ...     nw.AsynchronousSGD(stepsize),
    ...     nw.speeds.Pareto(1.0, 1.1, workers=5),
    ...     steps=100,
    ... )
    >>> [check.lemma for check in check_lemmas(run.trace, stepsize, problem) if check.holds]
    ['delay identity', 'stepsizes', 'Lemma 1', 'sum of the stepsizes']
    """
    again = Replayed(checked_trace(trace), problem, seed=seed, initial=initial)
    last, params = _checked(last, "last", problem.dimension), _checked(params, "params", problem.dimension)
    return again.checks(as_stepsize(stepsize), last=last, output=output, params=params)


def _checked(params: Any, name: str, dimension: int) -> Vector | None:
    """Return params of a run as an array; they may not be finite."""
    if params is None:
        return None
    numbers: Vector = checks.array(params, name)
    if numbers.shape != (dimension,) or numbers.dtype.kind not in "fciu":
        what = f"run.{name}, {dimension} numbers"
        raise TypeError(f"{name} must be {what}, got {checks.shown(params)}")
    return numbers


@final
class Replayed:
    """A run of asynchronous SGD, recomputed from its trace."""

    def __init__(self, trace: Any, problem: Problem, *, seed: int = 0, initial: Any = None) -> None:
        if Capabilities.of(checked_problem(problem)).num_statistics:
            raise ValueError("Lemma 1 needs params that are all trained: models with buffers cannot be checked")
        self.order, self._trace = Order(trace), trace
        start = initial_params(problem, initial)
        self._single = start.dtype == np.float32
        self.iterates, self._moves = _run_again(self.order, trace, problem, seed, start)

    def checks(
        self, rule: Stepsize, *, last: Any = None, output: Output | None = None, params: Any = None
    ) -> list[LemmaCheck]:
        """Return all checks that apply."""
        order = self.order
        found = [check_delays(order, self._trace), check_stepsizes(order, self._trace, rule), self._lemma_1(last)]
        if isinstance(rule, Constant | DelayAdaptive | ExponentialDelayAdaptive):
            found.append(check_stepsize_sum(order, rule))
        if output is not None and params is not None:
            found.append(self._output(rule, output, params))
        return found

    def weighted_mean(self, rule: Stepsize, values: Callable[[Vector], float], most: int) -> float:
        """Return Σ γ̂_k·v(x_k)/Σ γ̂_k; with more than ``most`` iterates, over evenly spaced ones."""
        hats = self.order.of_points(self.order.final_stepsizes(rule))
        some = np.unique(np.linspace(1, self.order.K, min(most, self.order.K)).round().astype(np.int64))
        found = np.array([values(self.iterates[k]) for k in some.tolist()])
        return float(hats[some - 1] @ found / hats[some - 1].sum())

    def _lemma_1(self, last: Any) -> LemmaCheck:
        deviation = lemma_1_deviation(self.order, self.iterates, self._moves)
        arrived = abs(float(np.linalg.norm(self.iterates[-1])) - self._trace.last_norm)
        if last is not None:
            arrived = float(np.abs(self.iterates[-1] - last).max())
        return self._check("Lemma 1", max(deviation, arrived))

    def _output(self, rule: Stepsize, output: Output, params: Any) -> LemmaCheck:
        """Check that params are the answer of the output rule: for a random iterate, that they are an iterate."""
        iterates = self.iterates[1:]
        if isinstance(output, RandomIterate):
            return self._check("output", float(np.abs(iterates - params).max(axis=1).min()))
        return self._check("output", float(np.abs(self._weights(rule, output) @ iterates - params).max()))

    def _weights(self, rule: Stepsize, output: Output) -> Floats:
        """Return the weights of x_1 … x_K in the answer, from the formulas of the paper."""
        hats = self.order.of_points(self.order.final_stepsizes(rule))
        if isinstance(output, StronglyConvexAverage):
            logs = output.mu * np.cumsum(self._trace.stepsize)
            hats = hats * np.exp(logs - logs[-1])
        elif isinstance(output, UniformAverage):
            hats = np.ones(self.order.K)
        elif isinstance(output, LastIterate):
            hats = np.zeros(self.order.K)
            hats[-1] = 1.0
        weights: Floats = hats / hats.sum()
        return weights

    def _check(self, name: str, deviation: float) -> LemmaCheck:
        relative = deviation / max(1.0, float(np.abs(self.iterates).max()))
        return LemmaCheck(name, relative, bool(relative <= (SINGLE_TOLERANCE if self._single else TOLERANCE)))


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


def check_stepsize_sum(order: Order, rule: Constant | DelayAdaptive | ExponentialDelayAdaptive) -> LemmaCheck:
    """Check Σ γ̂_k ≥ s·γ·K with the share s of ``least_share``, which holds for all delays if K ≥ M."""
    total = float(order.of_points(order.final_stepsizes(rule)).sum())
    missing = rule.gamma * order.K * least_share(rule, order.M) - total if order.M <= order.K else 0.0
    return LemmaCheck("sum of the stepsizes", max(0.0, missing), missing <= TOLERANCE * rule.gamma * order.K)


def check_stepsizes(order: Order, trace: Any, rule: Stepsize) -> LemmaCheck:
    """Check that the recorded stepsizes are those of the rule for the recorded delays."""
    expected = np.asarray(rule(trace.delay, order.M, np.arange(1, order.K + 1)), dtype=np.float64)
    apart = float((np.abs(trace.stepsize - expected) / np.maximum(np.abs(expected), 1e-300)).max())
    return LemmaCheck("stepsizes", apart, apart <= TOLERANCE)


def lemma_1_deviation(order: Order, iterates: Floats, moves: Floats) -> float:
    """Return how far x_k − x̂_k is from Σ_{m≠m_k} γ_{next(k,m)}·∇f(x_{prev(k,m)}; ξ), at the most.

    The sum is over the gradients in flight just after step k. x̂_1 = x_0 − Σ_m γ_{next(1,m)}·∇f(x_0; ξ_m) and
    x̂_{k+1} = x̂_k − γ̂_k·∇f(x_k; ξ_k). The stepsizes are those of the trace. Stepsizes of gradients that never arrived
    appear on both sides, and the last step's stepsize is used for them.
    """
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
    return apart


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
