"""Stepsize rules: γ as a function of a gradient's delay, the number of workers and the step it would make."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, final

import numpy as np

from nowait.core import checks
from nowait.core.schedules import factors
from nowait.numerics.elementary import cos_of_turns, exp, functions_for, integer_power, power

if TYPE_CHECKING:
    from nowait.core.server import Arrival, Server

WHY_POSITIVE = "params would not move towards lower loss"
LATER = 1_000
"""A step, and a delay in numbers of workers, by which rules have changed."""


class Stepsize(ABC):
    """A rule ``stepsize(delay, num_workers, step)``.

    It takes numbers or numpy arrays, so that a whole trace can be evaluated at once. Those that do not depend on the
    step take delays as JAX arrays, too. A fresh gradient has delay 1; the first step is step 1.
    """

    @abstractmethod
    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return the stepsize, elementwise."""

    def with_size(self, size: float) -> Stepsize:
        """Return the same rule with another γ, for sweeps over stepsizes."""
        raise TypeError(
            f"{type(self).__name__} has no single size to sweep over: pass a function of the size that makes the method"
        )

    def at(self, arrival: Arrival, server: Server) -> float:
        """Return the stepsize for an arrival, with the live number of workers."""
        stepsize: float = self(arrival.delay, server.num_workers, server.steps + 1)
        return stepsize

    def fresh(self, server: Server) -> float:
        """Return the stepsize for gradients taken at the current params, which have delay 1."""
        return float(self(1, server.num_workers, server.steps + 1))


if TYPE_CHECKING:

    class StepsizeOrFloat:
        """The annotation of a field that takes a rule or a number and, once set, is always a rule."""

        def __get__(self, instance: object, owner: type) -> Stepsize: ...
        def __set__(self, instance: object, value: Stepsize | float) -> None: ...

else:
    StepsizeOrFloat = Stepsize | float


def ignores_delay(rule: Stepsize, num_workers: int) -> bool:
    """Return True if old gradients have the stepsize of fresh ones.

    >>> ignores_delay(Constant(0.1), 4), ignores_delay(DelayAdaptive(0.1), 4)
    (True, False)
    """
    return bool(rule(1, num_workers, LATER) == rule(LATER * num_workers, num_workers, LATER))


def as_stepsize(value: Stepsize | float, name: str = "stepsize") -> Stepsize:
    """Return a stepsize rule as it is, and ``Constant(value)`` for a number; raise for anything else.

    >>> as_stepsize(0.1)
    Constant(gamma=0.1)
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        return Constant(value)  # type: ignore[arg-type]
    if isinstance(value, Stepsize) or (isinstance(value, type) and issubclass(value, Stepsize)):
        return checks.instance(value, Stepsize, name, "nw.DelayAdaptive(0.01)")
    raise TypeError(
        f"{name} must be a number or a stepsize rule such as nw.DelayAdaptive(0.01), got {checks.shown(value)}"
    )


@final
@dataclass(frozen=True)
class Constant(Stepsize):
    """The same stepsize for every gradient.

    >>> Constant(0.1)(delay=50, num_workers=4, step=1)
    0.1
    """

    gamma: float
    """γ, the stepsize of a fresh gradient."""

    def __post_init__(self) -> None:
        checks.store(self, gamma=checks.positive(self.gamma, "stepsize", WHY_POSITIVE))

    def with_size(self, size: float) -> Constant:
        """Return the rule with γ = ``size``."""
        return Constant(size)

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return γ, in the shape of ``delay``."""
        if isinstance(delay, np.ndarray):
            return np.full(delay.shape, self.gamma)
        return self.gamma

    def at(self, arrival: Arrival, server: Server) -> float:
        """Return γ."""
        return self.gamma


@final
@dataclass(frozen=True)
class DelayAdaptive(Stepsize):
    """γ·min(1, cut/τ): gradients older than ``cut`` steps make smaller steps. ``cut`` is M unless given.

    Mishchenko, Bach, Even and Woodworth (2022), equations of Theorem 3 in the form γ_max·min(1, cut/τ(k)).
    M is the live number of workers, so the rule adapts when workers join and leave.

    >>> DelayAdaptive(0.1)(delay=8, num_workers=4, step=1)
    0.05
    """

    gamma: float
    """γ, the stepsize of a fresh gradient."""
    cut: float | None = None

    def __post_init__(self) -> None:
        checks.store(self, gamma=checks.positive(self.gamma, "stepsize", WHY_POSITIVE))
        if self.cut is not None and not (isinstance(self.cut, Real) and self.cut == math.inf):
            why = "gradients with a delay above it get smaller steps"
            checks.store(self, cut=checks.positive(self.cut, "cut", why))

    def with_size(self, size: float) -> DelayAdaptive:
        """Return the rule with γ = ``size``."""
        return replace(self, gamma=size)

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return γ·min(1, cut/τ)."""
        ratio = (num_workers if self.cut is None else self.cut) / delay
        if isinstance(ratio, Real):
            return self.gamma * ratio if ratio < 1.0 else self.gamma
        return self.gamma * functions_for(ratio).minimum(1.0, ratio)

    def at(self, arrival: Arrival, server: Server) -> float:
        """Return γ·min(1, cut/τ): the same as ``__call__``, but faster for one number, as needed for every gradient."""
        ratio = (server.num_workers if self.cut is None else self.cut) / arrival.delay
        return self.gamma * ratio if ratio < 1.0 else self.gamma


@final
@dataclass(frozen=True)
class ExponentialDelayAdaptive(Stepsize):
    """γ·min(1, cut·exp(−rate·τ)/τ): the stepsize for strongly convex functions.

    Mishchenko, Bach, Even and Woodworth (2022), Theorem 3.2, with γ = min{1/(8ML), …}, cut = 1/(4Lγ) and
    rate = μ/(4ML); ``nw.theory.prescribe("strongly-convex", …)`` makes it.

    >>> ExponentialDelayAdaptive(0.1, cut=4.0, rate=0.0)(delay=8, num_workers=4, step=1)
    0.05
    """

    gamma: float
    """γ, the stepsize of a fresh gradient."""
    cut: float
    rate: float

    def __post_init__(self) -> None:
        checks.store(self, gamma=checks.positive(self.gamma, "stepsize", WHY_POSITIVE))
        why = "gradients with a delay above it get smaller steps"
        checks.store(self, cut=checks.positive(self.cut, "cut", why))
        checks.store(self, rate=checks.not_negative(self.rate, "rate", "old gradients would make longer steps"))

    def with_size(self, size: float) -> ExponentialDelayAdaptive:
        """Return the rule with γ = ``size``."""
        return replace(self, gamma=size)

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return γ·min(1, cut·exp(−rate·τ)/τ)."""
        share = self.cut * exp(-self.rate * (delay * 1.0)) / delay
        return _like(delay, self.gamma * functions_for(delay).minimum(1.0, share))


@final
@dataclass(frozen=True)
class PolynomialDecay(Stepsize):
    """γ·τ^(−power): power 1 is Zhang et al., "Staleness-aware Async-SGD for Distributed Deep
    Learning" (IJCAI 2016); 1/2 is the discount of FedAsync and FedBuff.

    >>> PolynomialDecay(0.8, power=0.5)(delay=4, num_workers=2, step=1)
    0.4
    """

    gamma: float
    """γ, the stepsize of a fresh gradient."""
    power: float = 1.0

    def __post_init__(self) -> None:
        checks.store(self, gamma=checks.positive(self.gamma, "stepsize", WHY_POSITIVE))
        checks.store(self, power=checks.not_negative(self.power, "power", "old gradients would make longer steps"))

    def with_size(self, size: float) -> PolynomialDecay:
        """Return the rule with γ = ``size``."""
        return replace(self, gamma=size)

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return γ·τ^(−power)."""
        return self.gamma * power(delay * 1.0, -self.power)


@final
@dataclass(frozen=True)
class HingeDecay(Stepsize):
    """γ while δ ≤ ``patience``, then γ/(slope·(δ − patience) + 1), with δ = τ − 1.

    The hinge of Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (2019). The values are those that
    published implementations agree on; they were not compared with the paper.
    """

    gamma: float
    """γ, the stepsize of a fresh gradient."""
    slope: float = 10.0
    patience: float = 4.0

    def __post_init__(self) -> None:
        checks.store(self, gamma=checks.positive(self.gamma, "stepsize", WHY_POSITIVE))
        checks.store(self, slope=checks.positive(self.slope, "slope", "it divides the stepsize of old gradients"))
        checks.store(self, patience=checks.not_negative(self.patience, "patience", "it is a number of steps"))

    def with_size(self, size: float) -> HingeDecay:
        """Return the rule with γ = ``size``."""
        return replace(self, gamma=size)

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return γ/(slope·(δ − patience)₊ + 1)."""
        excess = functions_for(delay).maximum(delay - 1 - self.patience, 0.0)
        return _like(delay, self.gamma / (self.slope * excess + 1.0))


@final
@dataclass(frozen=True)
class Threshold(Stepsize):
    """γ while δ = τ − 1 ≤ ``concurrency``, then γ·min(1, beyond/δ); ``beyond=0`` gives old gradients no weight at all.

    Koloskova, Stich and Jaggi, "Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated
    Learning" (NeurIPS 2022), Theorem 8: beyond τ_C any value below min(γ, 1/(4Lδ)) will do. ``concurrency`` None is the
    live number of workers. A gradient of weight 0 still makes a step, of length 0; ``RingmasterASGD`` drops it instead.
    """

    gamma: float
    """γ, the stepsize of a fresh gradient."""
    concurrency: float | None = None
    beyond: float = 0.0

    def __post_init__(self) -> None:
        checks.store(self, gamma=checks.positive(self.gamma, "stepsize", WHY_POSITIVE))
        checks.store(self, beyond=checks.not_negative(self.beyond, "beyond", "it weighs old gradients"))
        if self.concurrency is not None:
            why = "it is a number of tickets in flight"
            checks.store(self, concurrency=checks.positive(self.concurrency, "concurrency", why))

    def with_size(self, size: float) -> Threshold:
        """Return the rule with γ = ``size``."""
        return replace(self, gamma=size)

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return γ, or min(γ, beyond·γ/δ) beyond the threshold."""
        limit = num_workers if self.concurrency is None else self.concurrency
        age, functions = delay - 1.0, functions_for(delay)
        old = self.gamma * functions.minimum(1.0, self.beyond / functions.maximum(age, 1.0))
        return _like(delay, functions.where(age <= limit, self.gamma, old))


@final
@dataclass(frozen=True)
class CosineGate(Stepsize):
    """γ·exp(−rate·δ)·(1 + cos(π·δ/cutoff))/2 while δ = τ − 1 is below ``cutoff``, then 0.

    An exponential decay times a smooth cutoff, after Shah and Sun, "Cosine-Gated Adam-Decay: Drop-In
    Staleness-Aware Outer Optimization for Decoupled DiLoCo" (2026): use it with an update that scales the gradient,
    ``nw.ScaleGradient(nw.Adam())``, on which a gradient past the cutoff then has no effect. Their abstract has the
    product of the two factors; that the gate is half a cosine wave is our reading, and the defaults are ours.
    """

    gamma: float
    """γ, the stepsize of a fresh gradient."""
    rate: float = 0.1
    cutoff: float = 16.0

    def __post_init__(self) -> None:
        checks.store(self, gamma=checks.positive(self.gamma, "stepsize", WHY_POSITIVE))
        checks.store(self, rate=checks.not_negative(self.rate, "rate", "old gradients would make longer steps"))
        checks.store(self, cutoff=checks.positive(self.cutoff, "cutoff", "it is the smallest δ that has no weight"))

    def with_size(self, size: float) -> CosineGate:
        """Return the rule with γ = ``size``."""
        return replace(self, gamma=size)

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return γ·exp(−rate·δ)·(1 + cos(π·min(δ/cutoff, 1)))/2."""
        age, functions = delay - 1.0, functions_for(delay)
        gate = 0.5 * (1.0 + cos_of_turns(0.5 * functions.minimum(age / self.cutoff, 1.0)))
        return _like(delay, self.gamma * exp(-self.rate * age) * functions.where(age < self.cutoff, gate, 0.0))


@final
@dataclass(frozen=True)
class AdaDelay(Stepsize):
    """1/(smoothness + scale·√(step + δ)), δ = τ − 1: Sra, Yu, Li and Smola, "AdaDelay" (AISTATS 2016).

    The rule for the whole vector: the paper's per-coordinate variant is not implemented. For its projection use the
    update ``nw.Proximal(nw.updates.Ball(...))``.
    """

    smoothness: float
    scale: float

    def __post_init__(self) -> None:
        why = "it is L in 1/(L + scale·√(t + δ))"
        checks.store(self, smoothness=checks.positive(self.smoothness, "smoothness", why))
        checks.store(self, scale=checks.positive(self.scale, "scale", "the stepsize would never fall"))

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return 1/(L + c·√(t + δ))."""
        return 1.0 / (self.smoothness + self.scale * _like(step + delay, np.sqrt(step + delay - 1.0)))


@final
@dataclass(frozen=True)
class StepDecay(Stepsize):
    """Another rule, multiplied by ``factor`` after every ``every`` steps."""

    rule: Stepsize
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        checks.store(self, rule=as_stepsize(self.rule, "rule"))
        checks.store(self, every=checks.at_least(1, self.every, "every", "it counts the steps between two falls"))
        checks.store(self, factor=checks.positive(self.factor, "factor", WHY_POSITIVE))

    def with_size(self, size: float) -> StepDecay:
        """Return the schedule over ``rule.with_size(size)``."""
        return replace(self, rule=self.rule.with_size(size))

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return rule·factor^⌊(step − 1)/every⌋."""
        return self.rule(delay, num_workers, step) * integer_power(self.factor, (step - 1) // self.every)


@final
@dataclass(frozen=True)
class Cosine(Stepsize):
    """Another rule, multiplied by half a cosine wave that falls from 1 to ``floor`` over ``steps`` steps."""

    rule: Stepsize
    steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        checks.store(self, rule=as_stepsize(self.rule, "rule"))
        checks.store(self, steps=checks.at_least(1, self.steps, "steps", "it is how long the stepsize falls"))
        checks.store(self, floor=checks.fraction(self.floor, "floor", "the stepsize would not fall"))

    def with_size(self, size: float) -> Cosine:
        """Return the schedule over ``rule.with_size(size)``."""
        return replace(self, rule=self.rule.with_size(size))

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return rule·(floor + (1 − floor)·(1 + cos(π·(step − 1)/steps))/2)."""
        progress = np.minimum(1.0, (np.asarray(step) - 1.0) / self.steps)
        wave = self.floor + (1 - self.floor) * 0.5 * (1.0 + cos_of_turns(0.5 * progress))
        return self.rule(delay, num_workers, step) * _like(step, wave)


@final
@dataclass(frozen=True)
class Scheduled(Stepsize):
    """Another rule, multiplied by a schedule: a function of the step that returns a factor of at least 0.

    ``nw.schedules`` has warm-up, linear and cosine decay, ``nowait.pytorch.lr_schedule`` those of PyTorch; or use any
    function of the step number, which is 1 for the first step. No theorem of this library covers schedules.

    >>> Scheduled(DelayAdaptive(0.1), lambda step: 0.5 if step > 100 else 1.0)(
    ...     delay=8, num_workers=4, step=101
    ... )
    0.025
    """

    rule: Stepsize
    schedule: Callable[[Any], Any]

    def __post_init__(self) -> None:
        checks.store(self, rule=as_stepsize(self.rule, "rule"))
        if not callable(self.schedule) or isinstance(self.schedule, type):
            raise TypeError(
                f"schedule must be a function of the step, such as nw.schedules.warmup(100), "
                f"got {checks.shown(self.schedule)}"
            )

    def with_size(self, size: float) -> Scheduled:
        """Return the schedule over ``rule.with_size(size)``."""
        return replace(self, rule=self.rule.with_size(size))

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """Return the stepsize of the rule times the factor of the step."""
        return self.rule(delay, num_workers, step) * factors(self.schedule, step)


def _like(argument: Any, value: Any) -> Any:
    """Return the value as a float if the argument was a plain number."""
    return float(value) if isinstance(argument, Real) else value
