"""``nw.certify``: the theorems against measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.api.sweep import checked_seeds
from nowait.core import checks
from nowait.core.types import Floats, Vector
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.methods import AsynchronousSGD
from nowait.studies.assumptions import PROBLEMS
from nowait.studies.bias import BiasRow, data_dependent_delays
from nowait.studies.patterns import PATTERNS
from nowait.theory import Prescription, check_lemmas, prescribe
from nowait.theory.guarantee import SUBOPTIMALITY

HOLDS, OPEN, VIOLATED = "holds", "open", "violated"
CONFIDENCE = 0.99
STEPS_OF_BIAS = 20
"""How many times as long the runs are that show the bias: by default 40,000 steps."""


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
    """The delay pattern."""
    longest_delay: int
    """The longest delay in the traces."""
    mean: float
    """The mean error over the seeds."""
    low: float
    """The lower end of its confidence interval (99 %)."""
    high: float
    """The upper end of that interval."""
    guarantee: float
    """The bound with the printed constants."""
    sharpened: float
    """The bound with better constants, where they are known."""
    lemmas_broken: tuple[str, ...]
    """Lemmas that failed on some run; there should be none."""

    @property
    def ratio(self) -> float:
        """Measured error over the printed guarantee."""
        return self.mean / self.guarantee

    @property
    def verdict(self) -> str:
        """ "holds" or "violated" by the sharper bound, or "open" if the bound lies inside the confidence interval.

        An error that is not finite violates every bound.
        """
        if self.high <= self.sharpened:
            return HOLDS
        return OPEN if self.low <= self.sharpened and math.isfinite(self.high) else VIOLATED


@final
@dataclass(frozen=True)
class Certificate:
    """What ``nw.certify`` found."""

    rows: list[CertifiedRow]
    """One row for every theorem, problem and delay pattern."""
    bias: list[BiasRow]
    """Without Assumption 1: delays that depend on the data."""
    workers: int
    """The number of workers, M."""
    steps: int
    """The steps of every run."""
    seeds: int
    """The number of runs for each row."""

    @property
    def holds(self) -> bool:
        """True if no guarantee is violated and no lemma failed."""
        return not any(row.verdict == VIOLATED or row.lemmas_broken for row in self.rows)

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_certificate

        return html_of_certificate(self)


def certify(
    *,
    settings: Iterable[str] | None = None,
    patterns: Iterable[str] | None = None,
    workers: int = 8,
    steps: int = 2_000,
    seeds: int | Iterable[int] = 16,
    seed: int = 0,
    progress: bool | None = None,
) -> Certificate:
    """Run every theorem on problems that satisfy its assumptions, under every delay pattern, and compare.

    ``settings`` are those of ``nw.theory.prescribe``, ``patterns`` equal, straggler, pareto, time-varying and
    adversarial; None is all. Every row is a mean over runs of ``steps`` steps, one for each of the ``seeds``: a number
    n means the n seeds from ``seed`` on. ``workers`` is M. Lemma 1, the delay identity and the lemma on the sum of the
    stepsizes are checked on every run. ``bias`` shows what happens without Assumption 1. Ctrl-C and SIGTERM raise
    ``nw.Interrupted``, without a partial certificate.

    >>> found = certify(
    ...     settings=["convex"], patterns=["straggler"], steps=500, seeds=3, progress=False
    ... )
    >>> [row.verdict for row in found.rows]
    ['holds', 'holds']
    """
    under = _chosen(patterns, PATTERNS, "pattern")
    workers = checks.at_least(2, workers, "workers", "delays need several")
    seed_list = checked_seeds(seeds, first=seed)
    checks.at_least(2, len(seed_list), "the number of seeds", "a confidence interval needs two")
    cases = []
    for setting in _chosen(settings, PROBLEMS, "setting"):
        for make in PROBLEMS[setting]:
            problem = make().split(workers, by="label") if setting == "heterogeneous" else make()
            constants = problem.constants()
            cases.append((make.__name__, problem, prescribe(setting, constants, workers=workers, steps=steps)))
    rows = []
    with Watch() as watch, Progress("certifying", progress) as bar:
        for name, problem, prescription in cases:
            for pattern in under:
                rows.append(_row(name, problem, prescription, pattern, seed_list))
                watch.check()
                bar.show(len(rows) / (len(cases) * len(under) + 1))
        bias = data_dependent_delays(seed_list[0], STEPS_OF_BIAS * steps)
    return Certificate(rows, bias, workers, steps, len(seed_list))


def _row(name: str, problem: Any, prescription: Prescription, pattern: str, seeds: list[int]) -> CertifiedRow:
    """Make the runs of a row."""
    method = AsynchronousSGD(prescription.stepsize)
    lowest = problem.minimum()[1] if prescription.guarantee.measure == SUBOPTIMALITY else math.nan
    errors, longest, broken = [], 0, set()
    speeds = PATTERNS[pattern](prescription.workers)
    for seed in seeds:
        run = simulate(
            problem,
            method,
            speeds,
            steps=prescription.steps,
            evaluate_every=prescription.steps,
            output=prescription.output,
            seed=seed,
            progress=False,
        )
        errors.append(_error(problem, run.params, lowest))
        longest = max(longest, int(run.trace.delay.max()))
        checked = check_lemmas(run.trace, prescription.stepsize, problem, seed=seed, last=run.last)
        broken |= {check.lemma for check in checked if not check.holds}
    mean, half = _interval(np.array(errors))
    return CertifiedRow(
        theorem=prescription.theorem,
        setting=prescription.setting,
        problem=name.replace("_", " "),
        pattern=pattern,
        longest_delay=longest,
        mean=mean,
        low=max(0.0, mean - half) if math.isfinite(half) else mean,
        high=mean + half,
        guarantee=float(prescription.guarantee),
        sharpened=float(prescription.guarantee.sharpened or prescription.guarantee),
        lemmas_broken=tuple(sorted(broken)),
    )


def _error(problem: Any, params: Vector, lowest: float) -> float:
    """Return F − F*, or ‖∇F‖² if F* is NaN."""
    if math.isnan(lowest):
        return float((problem.full_gradient(params) ** 2).sum())
    return float(problem.loss(params) - lowest)


def _interval(errors: Floats) -> tuple[float, float]:
    """Return the mean and half the width of its confidence interval (Student)."""
    from scipy.stats import t

    spread = float(errors.std(ddof=1)) / math.sqrt(len(errors))
    return float(errors.mean()), float(t.ppf((1 + CONFIDENCE) / 2, len(errors) - 1)) * spread


def _chosen(names: Iterable[str] | None, known: dict[str, Any], what: str) -> list[str]:
    if names is None:
        return list(known)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{what}s must be a list of names, got {names!r}")
    chosen = list(names)
    for name in chosen:
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}: choose among {', '.join(known)}")
    if not chosen:
        raise ValueError(f"{what}s is empty: choose among {', '.join(known)}")
    return chosen
