"""Stepsize rules: γ as a function of a gradient's delay, the number of workers and the step it would make."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from nowait.core import checks

if TYPE_CHECKING:
    from nowait.core.server import Arrival, Server

WHY_POSITIVE = "params would not move towards lower loss"


class Stepsize(ABC):
    """A rule ``stepsize(delay, num_workers, step)``.

    It takes numbers or numpy arrays, so that a whole trace can be evaluated at once. A fresh gradient has
    delay 1; the first step is step 1.
    """

    @abstractmethod
    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """The stepsize, elementwise."""

    def at(self, arrival: Arrival, server: Server) -> float:
        """The stepsize for this arrival, with the live number of workers."""
        stepsize: float = self(arrival.delay, server.num_workers, server.steps + 1)
        return stepsize

    def fresh(self, server: Server) -> float:
        """The stepsize for gradients at the current params, as a barrier collects them."""
        return float(self(1, server.num_workers, server.steps + 1))


@final
@dataclass(frozen=True)
class Constant(Stepsize):
    """The same stepsize for every gradient.

    >>> Constant(0.1)(delay=50, num_workers=4, step=1)
    0.1
    """

    value: float

    def __post_init__(self) -> None:
        checks.store(self, value=checks.positive(self.value, "stepsize", WHY_POSITIVE))

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """γ, in the shape of ``delay``."""
        if isinstance(delay, np.ndarray):
            return np.full(delay.shape, self.value)
        return self.value

    def at(self, arrival: Arrival, server: Server) -> float:
        """γ."""
        return self.value


@final
@dataclass(frozen=True)
class DelayAdaptive(Stepsize):
    """γ·min(1, cut/τ): gradients older than ``cut`` steps make smaller steps. ``cut`` is M unless given.

    Mishchenko, Bach, Even and Woodworth (2022), equations of Theorem 3 in the form γ_max·min(1, cut/τ(k)).
    M is the live number of workers, so the rule follows joins and leaves.

    >>> DelayAdaptive(0.1)(delay=8, num_workers=4, step=1)
    0.05
    """

    largest: float
    cut: float | None = None

    def __post_init__(self) -> None:
        checks.store(self, largest=checks.positive(self.largest, "stepsize", WHY_POSITIVE))
        if self.cut is not None and self.cut != math.inf:
            why = "gradients with a delay above it get smaller steps"
            checks.store(self, cut=checks.positive(self.cut, "cut", why))

    def __call__(self, delay: Any, num_workers: Any, step: Any) -> Any:
        """γ·min(1, cut/τ)."""
        ratio = (num_workers if self.cut is None else self.cut) / delay
        if isinstance(ratio, np.ndarray):
            return self.largest * np.minimum(1.0, ratio)
        return self.largest * ratio if ratio < 1.0 else self.largest

    def at(self, arrival: Arrival, server: Server) -> float:
        """γ·min(1, cut/τ) once more, for one number: it is asked for once per gradient."""
        ratio = (server.num_workers if self.cut is None else self.cut) / arrival.delay
        return self.largest * ratio if ratio < 1.0 else self.largest
