"""Problems and orders of arrivals on which the errors come close to the theorems' bounds.

Each instance has one variable and is made for one theorem, so that a bound that is only a little too small, or a method
with a small mistake, is found out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core import DelayAdaptive, Sample
from nowait.core.types import Floats, Vector
from nowait.speeds import Adversary, Speeds
from nowait.theory import Constants, Prescription, prescribe


@final
@dataclass(frozen=True)
class Huber:
    """F is L-smooth, quadratic near 0, and linear with this slope elsewhere; x_0 = 1.

    Gradients have noise: ``noise`` is added or subtracted with equal chance. ``shifts`` are added to the gradients of
    the workers, one each; they add up to 0.
    """

    slope: float
    L: float = 1.0
    noise: float = 0.0
    shifts: tuple[float, ...] = ()
    dimension: int = 1

    def initial(self) -> Vector:
        """Return x_0 = 1."""
        return np.ones(1)

    def loss(self, point: Vector) -> float:
        """Return F at a point."""
        size, width = abs(float(point[0])), self.slope / self.L
        return self.L * size**2 / 2 if size <= width else self.slope * (size - width / 2)

    def full_gradient(self, point: Vector) -> Vector:
        """Return ∇F at a point."""
        clipped: Vector = np.clip(self.L * point, -self.slope, self.slope)
        return clipped

    def gradient_of_worker(self, point: Vector, worker: int) -> Vector:
        """Return ∇F_m at a point."""
        shift = self.shifts[worker % len(self.shifts)] if self.shifts else 0.0
        return self.full_gradient(point) + shift

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return ∇F_m plus noise."""
        sign = (1.0 if sample.index(2) else -1.0) if self.noise else 0.0
        return self.gradient_of_worker(point, sample.worker) + self.noise * sign

    def minimum(self) -> tuple[Vector, float]:
        """Return x* = 0 and F* = 0."""
        return np.zeros(1), 0.0

    def constants(self) -> Constants:
        """Return the exact constants; G is the root of the largest E‖∇f‖²."""
        zeta = max((abs(shift) for shift in self.shifts), default=0.0)
        longest = math.hypot(self.slope + zeta, self.noise)
        return Constants(L=self.L, sigma=self.noise, G=longest, B=1.0, Delta=self.loss(self.initial()), zeta=zeta)


@final
@dataclass(frozen=True)
class Coin:
    """F(x) = mean·|x|: a gradient is ±1 times the sign of x, with this mean; x_0 = 1. Convex and 1-Lipschitz."""

    mean: float
    dimension: int = 1

    def initial(self) -> Vector:
        """Return x_0 = 1."""
        return np.ones(1)

    def loss(self, point: Vector) -> float:
        """Return F at a point."""
        return self.mean * abs(float(point[0]))

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return ±sign(x)."""
        is_along = sample.index(1 << 30) < (1 + self.mean) / 2 * (1 << 30)
        return np.sign(point) * (1.0 if is_along else -1.0)

    def minimum(self) -> tuple[Vector, float]:
        """Return x* = 0 and F* = 0."""
        return np.zeros(1), 0.0

    def constants(self) -> Constants:
        """Return the exact constants."""
        return Constants(G=1.0, B=1.0)


@final
@dataclass(frozen=True)
class Curved:
    """F(x) = mu·x²/2, of which the theorem is told that it is 1-smooth; x_0 = 1, exact gradients."""

    mu: float
    dimension: int = 1

    def initial(self) -> Vector:
        """Return x_0 = 1."""
        return np.ones(1)

    def loss(self, point: Vector) -> float:
        """Return F at a point."""
        return self.mu * float(point[0]) ** 2 / 2

    def full_gradient(self, point: Vector) -> Vector:
        """Return ∇F at a point."""
        return self.mu * point

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return ∇F."""
        return self.full_gradient(point)

    def minimum(self) -> tuple[Vector, float]:
        """Return x* = 0 and F* = 0."""
        return np.zeros(1), 0.0

    def constants(self) -> Constants:
        """Return the constants, with L = 1."""
        return Constants(L=1.0, mu=self.mu, sigma=0.0, B=1.0, Delta=self.loss(self.initial()))


HardProblem = Huber | Coin | Curved


@final
@dataclass(frozen=True)
class HardInstance:
    """A problem and an order of arrivals for one theorem."""

    name: str
    setting: str
    problem: HardProblem
    order: str
    """The name of the order, for the table."""
    speeds: Speeds
    prescription: Prescription


def alternating(workers: int, steps: int) -> list[int]:
    """Return the order 0, 1, 0, 2, 0, 3, …: worker 0 alternates with a cycle of the others."""
    return [0 if step % 2 == 0 else 1 + (step // 2) % (workers - 1) for step in range(steps)]


def slow_then_alone(workers: int, steps: int) -> list[int]:
    """Return an order whose first half alternates, and in whose second half worker 0 is alone.

    The stepsizes of the first half are smaller, so that weights in proportion to stepsizes matter.
    """
    return alternating(workers, steps // 2) + [0] * (steps - steps // 2)


def alone(_: int, steps: int) -> list[int]:
    """Return the order in which worker 0 is alone."""
    return [0] * steps


ORDERS: dict[str, Callable[[int, int], list[int]]] = {
    "alternating": alternating,
    "slow, then alone": slow_then_alone,
    "alone": alone,
}
"""By name: functions of the number of workers and of steps."""


def hard_instances(setting: str, workers: int, steps: int) -> list[HardInstance]:
    """Return the hard instances of a setting of ``prescribe``."""
    make = {
        "convex-lipschitz": _coins,
        "nonconvex-lipschitz": _linear_lipschitz,
        "convex": _huber_functions,
        "strongly-convex": _curved,
        "nonconvex": _linear,
        "heterogeneous": _one_alone,
    }[setting]
    return make(workers, steps)


def _instance(name: str, setting: str, problem: HardProblem, order: str, workers: int, steps: int) -> HardInstance:
    speeds = Adversary(ORDERS[order](workers, steps), workers=workers)
    prescription = prescribe(setting, problem.constants(), workers=workers, steps=steps)
    return HardInstance(name, setting, problem, order, speeds, prescription)


def _coins(workers: int, steps: int) -> list[HardInstance]:
    """The drift of the coin takes x from 1 to 0 just at the end."""
    coin = Coin(1.6 * math.sqrt(workers / steps))
    return [_instance("coin", "convex-lipschitz", coin, "alternating", workers, steps)]


def _huber_functions(workers: int, steps: int) -> list[HardInstance]:
    """Linear until the end: the slope is B/S, S the sum of the stepsizes; without noise, and with much of it."""
    made = []
    for order in ("alternating", "slow, then alone"):
        gamma = 1 / (4 * workers)
        slope = 1 / stepsize_sum(ORDERS[order](workers, steps), workers, gamma)
        made.append(_instance("Huber", "convex", Huber(slope), order, workers, steps))
    noise = math.sqrt(steps) / 4  # so much that it decides the stepsize
    noisy = Huber(slope=1.5 * noise / math.sqrt(steps), noise=noise)
    return [*made, _instance("noisy Huber", "convex", noisy, "alternating", workers, steps)]


def _curved(workers: int, steps: int) -> list[HardInstance]:
    """Only the least curvature, of which the bound's contraction makes good use: μ·S is about 1.5, and about 6."""
    total = 0.8 * steps / (8 * workers)
    return [
        _instance(name, "strongly-convex", Curved(min(1.0, product / total)), "alternating", workers, steps)
        for name, product in (("curved", 1.5), ("more curved", 6.0))
    ]


def _linear(workers: int, steps: int) -> list[HardInstance]:
    """The gradient is the same until the end, where x reaches the quadratic part of F."""
    total = stepsize_sum(alternating(workers, steps), workers, 1 / (2 * workers), cut=workers / 2)
    return [_instance("linear", "nonconvex", Huber(1 / (total + 1)), "alternating", workers, steps)]


def _linear_lipschitz(workers: int, steps: int) -> list[HardInstance]:
    """The same for a constant stepsize, which depends on the slope: with γ ≤ 1/(2ML) its slope is a little smaller."""
    slope = 2 * workers / steps
    return [_instance("linear", "nonconvex-lipschitz", Huber(slope), "alternating", workers, steps)]


def _one_alone(workers: int, steps: int) -> list[HardInstance]:
    """Worker 0 delivers alone, so that the run ends where its own gradient is 0."""
    shift = 0.3
    shifts = (shift, *[-shift / (workers - 1)] * (workers - 1))
    problem = Huber(slope=10.0, shifts=shifts)
    return [_instance("one alone", "heterogeneous", problem, "alone", workers, steps)]


def stepsize_sum(order: list[int], workers: int, gamma: float, cut: float | None = None) -> float:
    """Return Σ γ̂_k of the delay-adaptive stepsize for an order of arrivals."""
    rule, steps, held = DelayAdaptive(gamma, cut=cut), len(order), [0] * workers
    delays: list[int] = []
    for step, worker in enumerate(order, start=1):
        if held[worker]:
            delays.append(step - held[worker])
        held[worker] = step
    delays += [max(1, steps - version) for version in held if version]
    stepsizes: Floats = np.asarray(rule(np.array(delays), workers, steps))
    return float(stepsizes.sum())
