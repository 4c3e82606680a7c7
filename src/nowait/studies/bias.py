"""The bias of asynchronous SGD when delays depend on the data, so that Assumption 1 does not hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.core import Constant, DelayAdaptive, Method, Sample
from nowait.core.types import Vector
from nowait.methods import AsynchronousSGD, RingmasterASGD
from nowait.speeds import BySample

WORKERS = 4
FACTOR = 100.0
STEPSIZE = 0.02
METHODS: dict[str, Method] = {
    "constant stepsize": AsynchronousSGD(Constant(STEPSIZE)),
    "delay-adaptive stepsize": AsynchronousSGD(DelayAdaptive(STEPSIZE)),
    f"delays above {WORKERS} dropped": RingmasterASGD(Constant(STEPSIZE), max_delay=WORKERS),
}


@final
@dataclass(frozen=True)
class BiasRow:
    """The mean iterate of a method when delays depend on the data; the minimiser is 0."""

    method: str
    mean: float


class Coin:
    """F(x) = E ½(x − ξ)² with ξ = ±1: the minimiser is 0."""

    dimension = 1

    def initial(self) -> Vector:
        """Return 0, the minimiser."""
        return np.zeros(1)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return x − ξ."""
        return point - (1.0 if is_heads(sample) else -1.0)

    def loss(self, point: Vector) -> float:
        """Return F(x)."""
        return float(0.5 * (point[0] ** 2 + 1.0))


def is_heads(sample: Sample) -> bool:
    """Return True if ξ = +1."""
    return sample.index(2) == 1


def data_dependent_delays(seed: int, steps: int) -> list[BiasRow]:
    """Return the mean of x over a long run in which a sample of +1 takes a hundred times longer than one of −1.

    A rule that gives old gradients less weight gives samples of +1 less weight. The first eighth of the steps does not
    count.
    """
    speeds = BySample(1.0, lambda sample: FACTOR if is_heads(sample) else 1.0, workers=WORKERS)
    return [BiasRow(name, _mean(method, speeds, seed, steps)) for name, method in METHODS.items()]


def _mean(method: Method, speeds: BySample, seed: int, steps: int) -> float:
    values: list[float] = []

    def keep(control: Any) -> None:
        values.append(float(control.params[0]))

    simulate(Coin(), method, speeds, steps=steps, callbacks=[keep], seed=seed, progress=False)
    return float(np.mean(values[steps // 8 :]))
