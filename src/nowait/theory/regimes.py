"""The range of speedups of asynchronous over minibatch SGD, by how noisy gradients are at the error to be reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from nowait.core import checks
from nowait.html.numbers import shown
from nowait.theory.constants import Constants, constants_of

LITTLE_NOISE, MUCH_NOISE = 0.3, 1.0
"""At most this σ²/(M·L·ε), noise hardly matters; from this one on, noise limits the stepsize."""
ROUGHLY = 0.7
"""With little noise, gains are at least this times s_max/HM. ``benchmarks/speedup_range.py`` measures at least 0.84;
coarsely tuned stepsizes gave 0.7."""
WITH_NOISE = (0.5, 1.6)
"""With much noise, gains are between these times s_max/HM; measured: 0.86 to 1.55."""


@final
@dataclass(frozen=True)
class SpeedupRange:
    """Between what the speedup of asynchronous over minibatch SGD is expected to be, with tuned stepsizes.

    Measured for least squares and quadratics, see docs/theory.md; not proved.
    """

    low: float
    high: float
    noise: float | None
    """σ²/(M·L·ε); None if it is not known."""

    @property
    def regime(self) -> str:
        """Return "little noise", "some noise", "much noise" or "unknown noise"."""
        if self.noise is None:
            return "unknown noise"
        if self.noise <= LITTLE_NOISE:
            return "little noise"
        return "much noise" if self.noise >= MUCH_NOISE else "some noise"

    def __contains__(self, speedup: float) -> bool:
        return self.low <= speedup <= self.high

    def __str__(self) -> str:
        low, high = shown(self.low), shown(self.high)
        return low if low == high else f"{low} to {high}"


def relative_noise(constants: Constants, accuracy: float, workers: int) -> float:
    """Return σ²/(M·L·ε): the noise of minibatch SGD's gradients relative to the error ε = F − F* to be reached.

    Below 0.3 there is little noise: both methods are limited by L, and asynchronous SGD gains the most. Above 1 there
    is much: both are limited by the number of gradients. ``constants`` has L, and sigma near the solution.

    >>> relative_noise(Constants(L=1.0, sigma=1.0), accuracy=0.5, workers=4)
    0.5
    """
    constants, by = constants_of(constants), "the relative noise"
    accuracy = checks.positive(accuracy, "accuracy", "it is the error to reach")
    workers = checks.at_least(1, workers, "workers", "they compute the gradients")
    return constants.need("sigma", by) ** 2 / (workers * constants.need_positive("L", by) * accuracy)


def speedup_range(formula: float, ceiling: float, noise: float | None) -> SpeedupRange:
    """Return the range for s_max/HM = ``formula`` and s_max/s_min = ``ceiling``."""
    if noise is not None:
        noise = checks.not_negative(noise, "noise", "it is σ²/(M·L·ε)")
    little = noise is not None and noise <= LITTLE_NOISE
    much = noise is not None and noise >= MUCH_NOISE
    low = (ROUGHLY if little else WITH_NOISE[0]) * formula
    return SpeedupRange(low, min(ceiling, WITH_NOISE[1] * formula) if much else ceiling, noise)
