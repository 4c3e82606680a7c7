"""Output rules: which combination of the iterates is the answer, computed online in one extra vector.

The paper weighs the iterate x_k by γ̂_k, the stepsize that multiplies the gradient taken at x_k in the end.
The server reports each gradient's point and stepsize when the gradient is used. Gradients in flight when the run ends
are weighed with the delay they have then (the paper's appendix: a frozen counter). Gradients at x_0, and those lost or
dropped, have weight 0.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

import numpy as np

from nowait.core import checks
from nowait.core.memory import memory_of, namespace_of
from nowait.core.randomness import CounterRandom
from nowait.core.state import State, restore, state_of
from nowait.core.types import Floats, Integers, Vector
from nowait.numerics.compiled import kernels
from nowait.numerics.elementary import exp, integer_power, log, log_of_sum


@final
@dataclass(frozen=True, eq=False)
class Uses:
    """The gradients of a whole run, in the order of the calls of ``Output.on_gradient``."""

    version: Integers
    """The k of the x_k each was taken at."""
    stepsize: Floats
    stepsize_sum: Floats
    """The sum of the stepsizes of the steps that led to the point."""
    steps: int
    """The number of steps of the run, K."""


class Output(ABC):
    """Computes the result of a run, ``run.params``. ``start`` resets all state."""

    def start(self, params: Vector, random: CounterRandom) -> None:  # noqa: B027 (LastIterate has no state)
        """Reset all state at the start of a run."""

    def on_iterate(self, params: Vector) -> None:  # noqa: B027 (only the uniform average looks at iterates)
        """Add the params after a step (x_1, x_2, …)."""

    def on_gradient(self, point: Vector, stepsize: float, stepsize_sum: float) -> None:  # noqa: B027
        """Add the point (not x_0) of a gradient that was used with this stepsize.

        ``stepsize_sum`` is the sum of the stepsizes of the steps that led to the point.
        """

    def state(self) -> State:
        """Return the state for a checkpoint. An output that is not a dataclass overrides this and ``restore``."""
        return state_of(self)

    def restore(self, state: State) -> None:
        """Restore what ``state`` returned; called after ``start``."""
        restore(self, state)

    def shares(self, uses: Uses, random: CounterRandom) -> Floats | None:
        """Return the weights of x_0 … x_K in the result, which sum to 1; None if they are not known in advance.

        Compiled runs use them: they know every stepsize before they compute the first gradient. ``random`` is that
        of ``start``.
        """
        return None

    @abstractmethod
    def result(self, last: Vector) -> Vector:
        """Return the result, in the memory of params; ``last`` is x_K. The server copies it, in the dtype of params.

        Averages are kept in float64: in float32 the terms of a long one would be lost to rounding.
        """


@final
@dataclass(frozen=True)
class LastIterate(Output):
    """x_K, the params after the last step."""

    def shares(self, uses: Uses, random: CounterRandom) -> Floats:
        """Return weight 1 for x_K."""
        return _only(uses.steps, uses.steps)

    def result(self, last: Vector) -> Vector:
        """Return x_K."""
        return last


@final
@dataclass
class UniformAverage(Output):
    """The mean of x_1 … x_K (Theorem 1)."""

    mean: Floats = field(init=False, repr=False, compare=False)
    count: int = field(init=False, repr=False, compare=False)

    def start(self, params: Vector, random: CounterRandom) -> None:
        """Reset the average."""
        self._move = memory_of(params).mover(params)
        self.mean, self.count = _zero_mean(params), 0

    def on_iterate(self, params: Vector) -> None:
        """Add an iterate to the mean."""
        self.count += 1
        self._move(self.mean, params, 1.0 / self.count)

    def shares(self, uses: Uses, random: CounterRandom) -> Floats:
        """Return 1/K for x_1 … x_K."""
        shares = np.full(uses.steps + 1, 1.0 / max(1, uses.steps))
        shares[0] = uses.steps == 0
        return shares

    def result(self, last: Vector) -> Vector:
        """Return the mean, or the initial params if no step was made."""
        return self.mean if self.count else last


@final
@dataclass
class ExponentialAverage(Output):
    """The exponential moving average of x_1 … x_K: x_k has a weight in proportion to decay^(K − k).

    It forgets the first iterates: about the last 1/(1 − decay) count. The weights sum to 1 from the first step on, so
    the average is not biased towards the initial params.
    """

    decay: float = 0.999
    mean: Floats = field(init=False, repr=False, compare=False)
    count: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.decay = checks.fraction(self.decay, "decay", "the average would never change")

    def start(self, params: Vector, random: CounterRandom) -> None:
        """Reset the average."""
        self._move = memory_of(params).mover(params)
        self.mean, self.count = _zero_mean(params), 0

    def on_iterate(self, params: Vector) -> None:
        """Move the average towards an iterate; the weights of all others shrink."""
        self.count += 1
        self._move(self.mean, params, (1.0 - self.decay) / (1.0 - integer_power(self.decay, self.count)))

    def shares(self, uses: Uses, random: CounterRandom) -> Floats:
        """Return weights in proportion to decay^(K − k)."""
        if uses.steps == 0 or self.decay == 0:
            return _only(uses.steps, uses.steps)
        shares: Floats = exp(log(self.decay) * np.arange(uses.steps, -1, -1))
        shares[0] = 0.0
        shares /= kernels().sum_of(shares)
        return shares

    def result(self, last: Vector) -> Vector:
        """Return the average, or the initial params if no step was made."""
        return self.mean if self.count else last


@final
@dataclass
class StepsizeWeightedAverage(Output):
    """Σ γ̂_k·x_k / Σ γ̂_k (Theorem 3.1)."""

    mean: Floats = field(init=False, repr=False, compare=False)
    weight: float = field(init=False, repr=False, compare=False)

    def start(self, params: Vector, random: CounterRandom) -> None:
        """Reset the average."""
        self._move = memory_of(params).mover(params)
        self.mean, self.weight = _zero_mean(params), 0.0

    def on_gradient(self, point: Vector, stepsize: float, stepsize_sum: float) -> None:
        """Add a point with its weight."""
        if stepsize > 0:
            self.weight += stepsize
            self._move(self.mean, point, stepsize / self.weight)

    def shares(self, uses: Uses, random: CounterRandom) -> Floats:
        """Return weights proportional to γ̂_k."""
        return _in_proportion(uses, uses.stepsize)

    def result(self, last: Vector) -> Vector:
        """Return the mean, or the last params if no gradient has a weight."""
        return self.mean if self.weight else last


@final
@dataclass
class StronglyConvexAverage(Output):
    """The average with weights γ̂_k·exp(μ·Σ_{i≤k} γ_i) (Theorem 3.2).

    The paper prints exp(−μ·Σ γ̂_j); the proof needs the plus sign. Here the exponent adds the stepsizes
    applied up to x_k, which are known when x_k is made, in place of the γ̂_j, some of which are not: the
    weights change by a factor of at most exp(μ/(8L)). Kept in logarithms, because the weights overflow.
    """

    mu: float
    """μ, the strong convexity of F."""
    mean: Floats = field(init=False, repr=False, compare=False)
    log_weight: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        why = "it is the strong convexity constant; for mu = 0 use StepsizeWeightedAverage"
        self.mu = checks.positive(self.mu, "mu", why)

    def start(self, params: Vector, random: CounterRandom) -> None:
        """Reset the average."""
        self._move = memory_of(params).mover(params)
        self.mean, self.log_weight = _zero_mean(params), -math.inf

    def on_gradient(self, point: Vector, stepsize: float, stepsize_sum: float) -> None:
        """Add a point with its weight."""
        if stepsize > 0:
            log_weight = log(stepsize) + self.mu * stepsize_sum
            self.log_weight = log_of_sum(self.log_weight, log_weight)
            self._move(self.mean, point, exp(log_weight - self.log_weight))

    def shares(self, uses: Uses, random: CounterRandom) -> Floats:
        """Return weights proportional to γ̂_k·exp(μ·Σ γ_i), computed relative to the largest."""
        used = uses.stepsize > 0
        exponents = np.full(len(used), -math.inf)
        exponents[used] = log(uses.stepsize[used]) + self.mu * uses.stepsize_sum[used]
        return _in_proportion(uses, exp(exponents - exponents.max()) if used.any() else uses.stepsize)

    def result(self, last: Vector) -> Vector:
        """Return the mean, or the last params if no gradient has a weight."""
        return self.mean if self.log_weight > -math.inf else last


@final
@dataclass
class RandomIterate(Output):
    """A random iterate, x_k with probability proportional to γ̂_k (Theorems 2, 3.3 and 4).

    With a constant stepsize that is a uniformly random one of x_1 … x_K. Weighted reservoir sampling:
    each new point replaces the kept one with probability its weight over all weights so far.
    """

    kept: Vector = field(init=False, repr=False, compare=False)
    weight: float = field(init=False, repr=False, compare=False)
    random: CounterRandom = field(init=False, repr=False, compare=False)

    def start(self, params: Vector, random: CounterRandom) -> None:
        """Reset the sample."""
        self.kept, self.weight, self.random = namespace_of(params).zeros_like(params), 0.0, random

    def on_gradient(self, point: Vector, stepsize: float, stepsize_sum: float) -> None:
        """Replace the kept point with probability stepsize over the sum of stepsizes so far."""
        if stepsize > 0:
            self.weight += stepsize
            if self.random.uniform() * self.weight < stepsize:
                self.kept[:] = point

    def state(self) -> State:
        """Return the kept point, its weight, and the number of random draws."""
        return {"kept": self.kept, "weight": self.weight, "draws": self.random.draws}

    def restore(self, state: State) -> None:
        """Restore what ``state`` returned."""
        memory_of(self.kept).write(state["kept"], self.kept)
        self.weight, self.random.draws = float(state["weight"]), int(state["draws"])

    def shares(self, uses: Uses, random: CounterRandom) -> Floats:
        """Return weight 1 for the point that was kept last."""
        used = uses.stepsize > 0
        stepsizes, versions = uses.stepsize[used], uses.version[used]
        chosen = np.flatnonzero(random.uniforms(len(stepsizes)) * np.cumsum(stepsizes) < stepsizes)
        return _only(int(versions[chosen[-1]]) if len(chosen) else uses.steps, uses.steps)

    def result(self, last: Vector) -> Vector:
        """Return the kept point, or the last params if no gradient has a weight."""
        return self.kept if self.weight else last


def _only(version: int, steps: int) -> Floats:
    shares = np.zeros(steps + 1)
    shares[version] = 1.0
    return shares


def _in_proportion(uses: Uses, weights: Floats) -> Floats:
    """Return shares in proportion to the weights of the uses; all of it for x_K if none has a weight."""
    total = np.bincount(uses.version, weights, minlength=uses.steps + 1)
    whole = kernels().sum_of(total.astype(np.float64, copy=False))  # without uses they are integers
    return total / whole if whole > 0 else _only(uses.steps, uses.steps)


def _zero_mean(params: Vector) -> Floats:
    functions = namespace_of(params)
    zeros: Floats = functions.zeros_like(params, dtype=functions.float64)
    return zeros
