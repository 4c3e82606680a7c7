"""``nw.certify``: the theorems against measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, final

from nowait.api.sweep import checked_seeds
from nowait.core import checks
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.studies.assumptions import PROBLEMS
from nowait.studies.bias import BiasRow, data_dependent_delays
from nowait.studies.certified import VIOLATED, CertifiedRow, Trial
from nowait.studies.hard_instances import hard_instances
from nowait.studies.mutants import BOUND, CHECKS, MUTANTS, NONE, Mutant, caught_by
from nowait.studies.patterns import PATTERNS
from nowait.theory import prescribe

STEPS_OF_BIAS = 10
"""How many times as long the runs are that show the bias: by default 40,000 steps."""
SEEDS_OF_MUTANTS = 4
"""Seeds of a row with a planted mistake, at most."""


@final
@dataclass(frozen=True)
class MutantRow:
    """One planted mistake, and how each row finds it."""

    mutant: str
    """The mistake."""
    found: dict[str, str]
    """By row (theorem, problem and delays): "bound", "checks", "missed", or "–" if it cannot have the mistake."""

    @property
    def is_caught(self) -> bool:
        """True if a row finds the mistake, or if no row can have it."""
        kinds = set(self.found.values()) - {NONE}
        return not kinds or bool(kinds & {BOUND, CHECKS})

    def count(self, how: str) -> int:
        """Return the number of rows that find the mistake in this way."""
        return sum(found == how for found in self.found.values())


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
    mutants: list[MutantRow] = field(default_factory=list)
    """With ``mutants=True``: which rows find which planted mistakes."""

    @property
    def holds(self) -> bool:
        """True if no guarantee is violated, no lemma failed, and every planted mistake was found."""
        sound = not any(row.verdict == VIOLATED or row.lemmas_broken for row in self.rows)
        return sound and all(mutant.is_caught for mutant in self.mutants)

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_certificate

        return html_of_certificate(self)


def certify(
    *,
    settings: Iterable[str] | None = None,
    patterns: Iterable[str] | None = None,
    workers: int = 4,
    steps: int = 4_000,
    seeds: int | Iterable[int] = 16,
    seed: int = 0,
    mutants: bool = False,
    progress: bool | None = None,
) -> Certificate:
    """Run every theorem on problems that satisfy its assumptions, under every delay pattern, and compare.

    ``settings`` are those of ``nw.theory.prescribe``, ``patterns`` hard, equal, straggler, pareto, time-varying and
    adversarial; None is all. The hard pattern stands for problems and orders of arrivals that were made for the
    theorem, on which the error comes close to the bound. Every row is a mean over runs of ``steps`` steps, one for each
    of the ``seeds``: a number n means the n seeds from ``seed`` on. Its error is compared with nowait's bound for the
    delays of these runs. Lemma 1, the delay identity, the stepsizes, their sum and the output rule are checked on every
    run. ``mutants=True`` also makes the runs with planted mistakes and lists which rows find which. ``bias`` shows what
    happens without Assumption 1. Ctrl-C and SIGTERM raise ``nw.Interrupted``, without a partial certificate.

    >>> found = certify(
    ...     settings=["convex"], patterns=["straggler"], steps=500, seeds=3, progress=False
    ... )
    >>> [row.verdict for row in found.rows]
    ['holds', 'holds']
    """
    under = _chosen_patterns(patterns)
    workers = checks.at_least(2, workers, "workers", "delays need several")
    seed_list = checked_seeds(seeds, first=seed)
    checks.at_least(2, len(seed_list), "the number of seeds", "a confidence interval needs two")
    trials = _all_trials(settings, under, workers, steps)
    mistakes = MUTANTS if mutants else ()
    rows: list[CertifiedRow] = []
    with Watch() as watch, Progress("certifying", progress) as bar:
        parts = len(trials) * (1 + len(mistakes)) + 1
        for trial in trials:
            rows.append(trial.row([trial.measured(trial.run(number), number) for number in seed_list]))
            watch.check()
            bar.show(len(rows) / parts)
        found = []
        for mutant in mistakes:
            found.append(_mutant_row(mutant, trials, seed_list[:SEEDS_OF_MUTANTS], watch))
            bar.show((len(found) + 1) * len(trials) / parts)
        bias = data_dependent_delays(seed_list[0], STEPS_OF_BIAS * steps)
    return Certificate(rows, bias, workers, steps, len(seed_list), found)


HARD = "hard"


def check_request(settings: Iterable[str] | None, patterns: Iterable[str] | None, workers: int, steps: int) -> None:
    """Raise if ``certify`` would refuse these arguments."""
    _all_trials(settings, _chosen_patterns(patterns), workers, steps)


def _chosen_patterns(patterns: Iterable[str] | None) -> list[str]:
    return _chosen(patterns, {HARD: None} | PATTERNS, "pattern")


def _all_trials(settings: Iterable[str] | None, patterns: list[str], workers: int, steps: int) -> list[Trial]:
    """Return the rows of all settings."""
    chosen = _chosen(settings, PROBLEMS, "setting")
    return [trial for setting in chosen for trial in _trials(setting, patterns, workers, steps)]


def _trials(setting: str, patterns: list[str], workers: int, steps: int) -> list[Trial]:
    """Return the rows of a setting: hard instances first."""
    made = []
    if HARD in patterns:
        for hard in hard_instances(setting, workers, steps):
            made.append(Trial(hard.name, hard.problem, hard.order, hard.speeds, hard.prescription))
    usual = [pattern for pattern in patterns if pattern != HARD]
    for make in PROBLEMS[setting]:
        problem: Any = make().split(workers, by="label") if setting == "heterogeneous" else make()
        asked = prescribe(setting, problem.constants(), workers=workers, steps=steps)
        name = make.__name__.replace("_", " ")
        made += [Trial(name, problem, pattern, PATTERNS[pattern](workers), asked) for pattern in usual]
    return made


def _mutant_row(mutant: Mutant, trials: list[Trial], seeds: list[int], watch: Watch) -> MutantRow:
    found = {}
    for trial in trials:
        theorem = trial.prescription.theorem.removeprefix("Theorem ")
        found[f"{theorem} {trial.name}, {trial.pattern}"] = caught_by(trial, mutant, seeds)
        watch.check()
    return MutantRow(mutant.name, found)


def _chosen(names: Iterable[str] | None, known: dict[str, Any], what: str) -> list[str]:
    if names is None:
        return list(known)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{what}s must be a list of names, got {names!r}")
    chosen = list(names)
    for name in chosen:
        if name not in known:
            nearest = checks.did_you_mean(name, known)
            raise ValueError(f"there is no {what} {name!r}: choose among {', '.join(known)}{nearest}")
    if not chosen:
        raise ValueError(f"{what}s is empty: choose among {', '.join(known)}")
    return chosen
