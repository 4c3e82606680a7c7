"""One row of ``nw.certify``: a theorem on a problem under a delay pattern, and the runs that measure its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.core import Method, Output, Stepsize
from nowait.core.types import Floats, Vector
from nowait.methods import AsynchronousSGD
from nowait.recording import Run
from nowait.speeds import Speeds
from nowait.theory import Prescription
from nowait.theory.certificate import bound_of
from nowait.theory.flights import Flights
from nowait.theory.guarantee import SUBOPTIMALITY
from nowait.theory.lemmas import Replayed
from nowait.theory.printed import unlike_the_paper
from nowait.theory.theorems import known_case

HOLDS, OPEN, VIOLATED = "holds", "open", "violated"
CONFIDENCE = 0.99
MOST_GRADIENTS = 400
"""Of a run, the squared gradients of at most this many iterates are averaged."""
NOT_THE_ALGORITHM = "Algorithm 1"
"""What is broken if the trace is not one of asynchronous SGD."""


@final
@dataclass(frozen=True)
class CertifiedRow:
    """One theorem on one problem under one delay pattern."""

    theorem: str
    """The number of the theorem in the paper."""
    setting: str
    """Its setting in ``nw.theory.prescribe``."""
    problem: str
    """The problem on which it was run."""
    pattern: str
    """The delay pattern, or the order of arrivals of a hard instance."""
    longest_delay: int
    """The longest delay in the traces."""
    mean: float
    """The mean error over the seeds."""
    low: float
    """The lower end of its confidence interval (99 %)."""
    high: float
    """The upper end of that interval."""
    guarantee: float
    """The bound with the constants of the paper's proofs, for all delays."""
    sharpened: float
    """nowait's bound for all delays."""
    given_delays: float
    """nowait's bound for the delays of the runs, the largest over the seeds."""
    start: float
    """The error of x_0: a method that never moves has it at the end."""
    lemmas_broken: tuple[str, ...]
    """Lemmas and other checks that failed on some run; there should be none."""

    @property
    def ratio(self) -> float:
        """The bound for the given delays over the measured error: near 1 the bound could hardly be smaller."""
        return self.given_delays / self.mean if self.mean > 0 else math.inf

    @property
    def could_fail(self) -> bool:
        """True if the bound is below the error of x_0, so that a method that never moves violates it."""
        return self.given_delays < self.start

    @property
    def verdict(self) -> str:
        """ "holds" or "violated" by the sharpest bound, or "open" if the bound lies inside the confidence interval.

        An error that is not finite violates every bound.
        """
        if self.high <= self.given_delays * (1 + 1e-9):
            return HOLDS
        return OPEN if self.low <= self.given_delays and math.isfinite(self.high) else VIOLATED


@final
@dataclass(frozen=True)
class Trial:
    """What a row runs: a problem that satisfies the theorem's assumptions, speeds, and what the theorem prescribes."""

    name: str
    problem: Any
    pattern: str
    speeds: Speeds
    prescription: Prescription

    @property
    def measures_loss(self) -> bool:
        """True if the theorem bounds F − F*, and False if it bounds ‖∇F‖²."""
        return self.prescription.guarantee.measure == SUBOPTIMALITY

    def start(self) -> float:
        """Return the error of x_0."""
        return self._error(np.asarray(self.problem.initial(), dtype=np.float64))

    def run(self, seed: int, method: Method | None = None, output: Output | None = None, problem: Any = None) -> Run:
        """Make a run; a method, output or problem with a planted mistake may replace the right one."""
        asked = self.prescription
        return simulate(
            self.problem if problem is None else problem,
            AsynchronousSGD(asked.stepsize) if method is None else method,
            self.speeds,
            steps=asked.steps,
            evaluate_every=asked.steps,
            output=asked.output if output is None else output,
            seed=seed,
            progress=False,
        )

    def measured(self, run: Run, seed: int) -> Measurement:
        """Return the error of a run, its bound, and what is broken."""
        rule: Stepsize = self.prescription.stepsize
        try:
            again = Replayed(run.trace, self.problem, seed=seed)
            bound = self._bound(run, rule)
        except ValueError:
            return Measurement(math.nan, 0.0, int(run.trace.delay.max(initial=1)), (NOT_THE_ALGORITHM,))
        checks = again.checks(rule, last=run.last, output=self.prescription.output, params=run.params)
        broken = tuple(check.lemma for check in checks if not check.holds)
        broken += unlike_the_paper(self.prescription, run.trace)
        error = (
            self._error(run.params) if self.measures_loss else again.weighted_mean(rule, self._error, MOST_GRADIENTS)
        )
        allowed = min(bound, float(self.prescription.guarantee.best))
        return Measurement(error, allowed, int(run.trace.delay.max()), broken)

    def row(self, found: list[Measurement]) -> CertifiedRow:
        """Return the row of these measurements, one for each seed."""
        mean, half = interval(np.array([one.error for one in found]))
        asked = self.prescription
        return CertifiedRow(
            theorem=asked.theorem,
            setting=asked.setting,
            problem=self.name,
            pattern=self.pattern,
            longest_delay=max(one.longest_delay for one in found),
            mean=mean,
            low=max(0.0, mean - half) if math.isfinite(half) else mean,
            high=mean + half,
            guarantee=float(asked.guarantee),
            sharpened=float(asked.guarantee.best),
            given_delays=max(one.bound for one in found),
            start=self.start(),
            lemmas_broken=tuple(sorted({lemma for one in found for lemma in one.broken})),
        )

    def _bound(self, run: Run, rule: Stepsize) -> float:
        """Return the bound for the delays of a run, which a planted mistake may have made."""
        asked, flights = self.prescription, Flights(run.trace, rule)
        return float(bound_of(known_case(asked.setting, asked.constants, flights.M, flights.K), flights)[0])

    def _error(self, params: Vector) -> float:
        """Return F − F*, or ‖∇F‖²."""
        if self.measures_loss:
            return float(self.problem.loss(params) - self.problem.minimum()[1])
        return float((self.problem.full_gradient(params) ** 2).sum())


@final
@dataclass(frozen=True)
class Measurement:
    """The result of one run."""

    error: float
    bound: float
    longest_delay: int
    broken: tuple[str, ...]


def interval(errors: Floats) -> tuple[float, float]:
    """Return the mean and half the width of its confidence interval (Student)."""
    from scipy.stats import t

    if np.ptp(errors) == 0:
        return float(errors[0]), 0.0
    spread = float(errors.std(ddof=1)) / math.sqrt(len(errors))
    return float(errors.mean()), float(t.ppf((1 + CONFIDENCE) / 2, len(errors) - 1)) * spread
