"""The rates of the paper's Table 1, without constants, and the steps they need for a given accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from nowait.core import checks
from nowait.theory.case import Case
from nowait.theory.constants import Constants
from nowait.theory.theorems import known_case

LARGEST_LOG = 600.0
"""Above e^600 steps, the number of steps is reported as infinite."""


@final
@dataclass(frozen=True)
class Rate:
    """Optimisation and noise terms as functions of the number of gradients K and of the *width* w.

    The width is M for delay-adaptive asynchronous SGD and for minibatch SGD (K = M·R), and τ_max in earlier results for
    constant stepsizes. Constants and logarithms are left out, as in Table 1, so only comparisons are meaningful.

    >>> rate = Rate.of("convex", Constants(L=1.0, sigma=0.0, B=1.0))
    >>> rate.optimisation(1000, width=10), round(rate.steps_to(0.01, width=10))
    (0.01, 1000)
    """

    case: Case
    """The setting and its constants."""

    @classmethod
    def of(cls, setting: str, constants: Constants) -> Rate:
        """Return the rate of a setting of ``prescribe``; raise ValueError if a constant is missing."""
        case = known_case(setting, constants, 1, 1)
        rate = cls(case)
        rate.optimisation(1.0, 1.0)  # raises now if a constant is missing
        rate.noise(1.0)
        return rate

    def optimisation(self, steps: float, width: float) -> float:
        """Return the optimisation term: w/K in convex and non-convex settings, exp(−μK/(Lw)) if strongly convex."""
        setting, share = self.case.setting, width / steps
        if setting == "convex-lipschitz":
            return self.case.need_positive("G") * self.case.need_positive("B") * math.sqrt(share)
        L = self.case.need_positive("L")
        if setting == "convex":
            return L * self.case.need_positive("B") ** 2 * share
        if setting == "strongly-convex":
            exponent = self.case.need_positive("mu") / L / share if share > 0 else math.inf
            return L * self.case.need_positive("B") ** 2 * math.exp(-exponent)
        first = L * self.case.need_positive("Delta") * share
        return first + ((first * self.case.need_positive("G")) ** (2 / 3) if setting == "nonconvex-lipschitz" else 0.0)

    def noise(self, steps: float) -> float:
        """Return the noise term: σ/√K, or σ²/K in the strongly convex setting."""
        if self.case.setting == "convex-lipschitz":
            return 0.0
        sigma = self.case.need("sigma")
        if self.case.setting == "strongly-convex":
            return sigma**2 / (self.case.need_positive("mu") * steps)
        if self.case.setting == "convex":
            return sigma * self.case.need_positive("B") / math.sqrt(steps)
        return sigma * math.sqrt(self.case.need_positive("L") * self.case.need_positive("Delta") / steps)

    def steps_to(self, accuracy: float, width: float) -> float:
        """Return the K at which the sum of the two terms, which decreases with K, equals ``accuracy``; at least 1."""
        accuracy = checks.positive(accuracy, "accuracy", "it is the error to reach")

        def log_excess(log_steps: float) -> float:
            steps = math.exp(log_steps)
            return self.optimisation(steps, width) + self.noise(steps) - accuracy

        if log_excess(0.0) <= 0:
            return 1.0
        if log_excess(LARGEST_LOG) > 0:
            return math.inf
        from scipy.optimize import brentq

        return math.exp(brentq(log_excess, 0.0, LARGEST_LOG, xtol=1e-12))
