"""``nw.tolerance``: how much of its progress an optimiser keeps when gradients are late."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.api.sweep import checked_seeds
from nowait.core import LMO, Constant, Muon, Problem, Stepsize, Update, checks
from nowait.core.capabilities import Capabilities
from nowait.core.layout import checked_layout
from nowait.core.problem import check_is_finite, checked_problem, initial_params, loss_of
from nowait.core.stepsizes import as_stepsize
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.methods import AsynchronousSGD
from nowait.recording import Interrupted, Run, name_of
from nowait.speeds import Fixed
from nowait.studies.quiet import quiet
from nowait.studies.search import DIVERGED, UNFINISHED, Score, best_size, next_size
from nowait.studies.tolerance_patterns import PATTERNS
from nowait.studies.tolerance_text import short_names
from nowait.studies.tolerated import Tolerance, ToleranceRow

DELAYS = (1, 2, 4, 8, 16, 32)
FIRST_STEP = 0.01
"""Tuning starts with the stepsize whose first step changes params by this much, in root mean square."""
TRIAL_SIZES = (1e-6, 1e-3, 1.0)
"""Stepsizes of runs of one step that find it. A step may be too short to change params in float32."""
MOST_HALVINGS = 10
RUNS_OF_RETUNING = 3
"""How many stepsizes are tried at a delay, roughly: for the time left in the progress bar."""


def tolerance(
    problem: Problem,
    updates: Mapping[str, Update],
    *,
    steps: int,
    delays: Iterable[int] = DELAYS,
    patterns: Iterable[str] | None = None,
    rule: Stepsize | None = None,
    retune: bool = False,
    trials: int = 6,
    start: Mapping[str, float] | None = None,
    keep: float = 0.95,
    seeds: int | Iterable[int] = 3,
    seed: int = 0,
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> Tolerance:
    """Train with every update at every mean delay, in virtual time; compare the progress with that at delay 1.

    ``updates`` are optimisers by name, ``patterns`` are constant, uniform and straggler (see
    ``nowait.studies.tolerance_patterns``); None is all. A fresh gradient has delay 1, and 1 is always among the
    ``delays``. A run has ``steps`` steps of ``nw.AsynchronousSGD``. ``rule`` is its stepsize rule: None is
    ``nw.Constant``; its γ is tuned.

    For every update γ is tuned at delay 1 by ``trials`` stepsizes, as many for each: the first is in ``start``, or
    makes a first step of 0.01 in root mean square; the next ones are those of ``nw.tune``. The best has the lowest
    median of the last losses among those that never diverged. Every delay is measured with that γ. With ``retune`` γ
    is tuned again at every delay: starting from the best γ of the previous delay, it is halved until the result is
    worse. Larger γ than at the previous delay are not tried. All runs use the same ``seeds``: n means the n seeds from
    ``seed`` on.

    An update tolerates a delay if at it and at all smaller tested delays at least ``keep`` of the progress (the loss
    before the first step minus the last loss) is kept, in the median over the seeds. ``tell`` is called with a sentence
    for every update. Ctrl-C and SIGTERM raise ``nw.Interrupted`` with what was found so far as ``tolerance``.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=10, mu=0.05, sigma=0.01)
    >>> found = tolerance(
    ...     problem, {"sgd": nw.Sgd()}, steps=100, delays=[1, 2, 16], patterns=["constant"]
    ... )
    >>> found.tolerated("sgd", "constant")
    2
    """
    setup = _Setup(
        checked_problem(problem),
        checked_updates(updates, problem),
        checks.at_least(1, steps, "steps", "a run needs one"),
        as_stepsize(Constant(1.0) if rule is None else rule, "rule"),
        checked_seeds(seeds, first=seed),
        checked_start(start, updates),
        checks.at_least(1, trials, "trials", "a stepsize needs one"),
    )
    means, under = checked_delays(delays, setup.steps), checked_patterns(patterns)
    keep = checks.fraction(keep, "keep", "noise alone loses a part of the progress")
    start_loss = loss_of(problem, initial_params(problem))
    check_is_finite(start_loss)
    study = _Study(setup, means, under, retune, start_loss, tell or (lambda _: None))
    signal = study.make_all(progress)
    found = study.found(keep, interrupted=bool(signal))
    if signal:
        raise Interrupted(signal, tolerance=found)
    return found


@final
@dataclass(frozen=True)
class _Setup:
    """What all runs share."""

    problem: Any
    updates: dict[str, Update]
    steps: int
    rule: Stepsize
    seeds: list[int]
    start: dict[str, float]
    trials: int

    def run(self, name: str, size: float, pattern: str, delay: int, seed: int) -> Run:
        """Make one run."""
        return simulate(
            self.problem,
            AsynchronousSGD(self.rule.with_size(size)),
            PATTERNS[pattern](delay, self.steps, seed),
            steps=self.steps,
            evaluate_every=self.steps,
            update=self.updates[name],
            seed=seed,
            progress=False,
        )

    def row(self, name: str, size: float, pattern: str, delay: int) -> ToleranceRow:
        """Make a run with every seed."""
        runs = [self.run(name, size, pattern, delay, seed) for seed in self.seeds]
        delays = np.concatenate([run.trace.delay for run in runs])
        return ToleranceRow(
            update=name,
            pattern=pattern,
            delay=delay,
            retuned=False,
            stepsize=size,
            losses=tuple(_last_loss(run) for run in runs),
            mean_delay=float(delays.mean()),
            longest_delay=int(delays.max()),
        )

    def first_size(self, name: str) -> float:
        """Return the first stepsize to try: the one given, or from the length of the first step."""
        if name in self.start:
            return self.start[name]
        for size in TRIAL_SIZES:
            moved = self._first_move(name, size)
            if moved > 0:
                return float(f"{FIRST_STEP / moved:.2g}")
        raise ValueError(
            f"{name} does not move from the initial params: give the first stepsize to try in start= (--start)"
        )

    def _first_move(self, name: str, size: float) -> float:
        """Return by how much the first step changes what is trained, in root mean square, relative to its stepsize."""
        method, one = AsynchronousSGD(Constant(size)), Fixed(1.0, workers=1)
        update, seed = self.updates[name], self.seeds[0]
        run = simulate(self.problem, method, one, steps=1, update=update, seed=seed, progress=False)
        before, after = np.asarray(initial_params(self.problem), np.float64), np.asarray(run.params, np.float64)
        trained = len(before) - Capabilities.of(self.problem).num_statistics  # those move whatever the stepsize is
        change = (after - before)[:trained]
        return float(np.sqrt(np.mean(change * change))) / size


@final
@dataclass
class _Study:
    """Makes the runs, and keeps the rows."""

    setup: _Setup
    delays: list[int]
    patterns: list[str]
    retune: bool
    start_loss: float
    tell: Callable[[str], None]
    rows: list[ToleranceRow] = field(default_factory=list)
    done: int = 0

    def make_all(self, progress: bool | None) -> str:
        """Make all runs. Return the name of the signal that ended it, or an empty text."""
        try:
            with Watch() as watch, Progress("measuring delays", progress) as bar, quiet():

                def count(work: int) -> None:
                    watch.check()
                    self.done += work
                    bar.show(self.done / self._work())

                for name in self.setup.updates:
                    self._measure(name, count)
        except Interrupted as error:
            return error.signal
        except KeyboardInterrupt:
            return "SIGINT"
        return ""

    def found(self, keep: float, interrupted: bool) -> Tolerance:
        """Return the result, as far as it went."""
        return Tolerance(
            problem=name_of(self.setup.problem),
            steps=self.setup.steps,
            rule=repr(self.setup.rule.with_size(1.0)),
            trials=self.setup.trials,
            seeds=tuple(self.setup.seeds),
            delays=tuple(self.delays),
            patterns=tuple(self.patterns),
            updates=tuple(self.setup.updates),
            keep=keep,
            start_loss=self.start_loss,
            rows=self.rows,
            interrupted=interrupted,
        )

    def _measure(self, name: str, count: Callable[[int], None]) -> None:
        """Tune an update at delay 1, then measure it at all other delays."""
        first = self._tuned(name, count)
        label = short_names(tuple(self.setup.updates))[name]
        self.tell(f"{label}: stepsize {first.stepsize:.3g} at delay 1, loss {first.median:.4g}")
        best = {}
        for pattern in self.patterns:
            self._keep(replace(first, pattern=pattern), replace(first, pattern=pattern, retuned=True))
            best[pattern] = first.stepsize
        for delay in self.delays[1:]:
            for pattern in self.patterns:
                row = self.setup.row(name, first.stepsize, pattern, delay)
                again = self._tuned_again(row, best[pattern]) if self.retune else row
                best[pattern] = again.stepsize
                self._keep(row, replace(again, retuned=True))
                count(self._runs_of_a_delay)

    def _tuned(self, name: str, count: Callable[[int], None]) -> ToleranceRow:
        """Return the runs at delay 1 with the best stepsize; with the smallest one if every stepsize diverged."""
        tried: dict[float, ToleranceRow] = {}
        scores: dict[float, Score] = {}
        begin = self.setup.first_size(name)
        for _ in range(self.setup.trials):
            size = next_size(scores, begin)
            tried[size] = self.setup.row(name, size, self.patterns[0], 1)
            scores[size] = (DIVERGED, 0.0) if tried[size].num_diverged else (UNFINISHED, tried[size].median)
            count(1)
        best = best_size(scores)
        return tried[min(tried) if best is None else best]

    def _tuned_again(self, row: ToleranceRow, size: float) -> ToleranceRow:
        """Return the best of ``row`` and of rows with smaller stepsizes, from ``size`` on."""
        best = row
        size = size if size < row.stepsize else row.stepsize / 2
        for _ in range(MOST_HALVINGS):
            other = self.setup.row(row.update, size, row.pattern, row.delay)
            if best.median <= other.median < self.start_loss:
                break
            best = min(best, other, key=lambda one: one.median)
            size /= 2
        return best

    def _keep(self, row: ToleranceRow, again: ToleranceRow) -> None:
        self.rows += [row, again] if self.retune else [row]

    @property
    def _runs_of_a_delay(self) -> int:
        return RUNS_OF_RETUNING if self.retune else 1

    def _work(self) -> int:
        """Return the number of rows to measure, roughly if stepsizes are tuned again."""
        later = (len(self.delays) - 1) * len(self.patterns) * self._runs_of_a_delay
        return len(self.setup.updates) * (self.setup.trials + later)


def checked_delays(delays: Iterable[int], steps: int) -> list[int]:
    """Return the delays in ascending order, with 1 among them, or raise.

    >>> checked_delays([8, 2], steps=100)
    [1, 2, 8]
    """
    if isinstance(delays, str) or not isinstance(delays, Iterable):
        raise TypeError(f"delays must be a list of numbers of steps, got {delays!r}")
    checked = [checks.at_least(1, delay, "a delay", "a fresh gradient has delay 1") for delay in delays]
    if not checked:
        raise ValueError("delays is empty: give some, such as 1, 2, 4, 8")
    if max(checked) > steps:
        raise ValueError(f"a delay must be at most the {steps} steps of a run, got {max(checked)}")
    if len(set(checked)) < len(checked):
        raise ValueError(f"delays has one of them twice: {', '.join(map(str, checked))}")
    return sorted({1, *checked})


def checked_patterns(patterns: Iterable[str] | None) -> list[str]:
    """Return the names of patterns, or raise; None is all."""
    if patterns is None:
        return list(PATTERNS)
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise TypeError(f"patterns must be a list of names, got {patterns!r}")
    checked = [checks.one_of(pattern, list(PATTERNS), "a pattern") for pattern in patterns]
    if not checked or len(set(checked)) < len(checked):
        raise ValueError(
            f"patterns must be some of {', '.join(PATTERNS)}, each once, got {', '.join(checked) or 'none'}"
        )
    return checked


def checked_updates(updates: Mapping[str, Update], problem: Problem) -> dict[str, Update]:
    """Return the updates, or raise if one of them cannot train the problem."""
    if not isinstance(updates, Mapping) or not updates:
        raise TypeError(f'updates must be named: pass a dictionary {{"muon": nw.Muon(), ...}}, got {updates!r}')
    params, can = initial_params(problem), Capabilities.of(problem)
    layout = checked_layout(can.layout, len(params) - can.num_statistics)
    has_matrices = any(len(block.shape) >= 2 for block in layout.values())
    for name, update in updates.items():
        checks.instance(name, str, "the name of an update", '"adam"')
        checks.instance(update, Update, f"the update {name!r}", "nw.Adam()")
        needs_them = isinstance(update, Muon) or (isinstance(update, LMO) and update.ball == "spectral")
        if needs_them and not has_matrices:
            raise ValueError(
                f"{name} is for matrices, but {type(problem).__name__} has none (its layout is one vector): the result "
                f"would be that of another update"
            )
        update.check(layout)
    return dict(updates)


def checked_start(start: Mapping[str, float] | None, updates: Mapping[str, Update]) -> dict[str, float]:
    """Return the first stepsizes to try, by the names of updates, or raise."""
    if not isinstance(start, Mapping | None):
        raise TypeError(f'start must be a dictionary of stepsizes by name, such as {{"sgd": 0.1}}, got {start!r}')
    for name in start or {}:
        if name not in updates:
            raise ValueError(f"start has a stepsize for {name!r}, but the updates are {', '.join(updates)}")
    return {
        name: checks.positive(size, f"the start of {name}", "it is the first stepsize")
        for name, size in (start or {}).items()
    }


def _last_loss(run: Run) -> float:
    loss = float(run.history.loss[-1])
    return math.inf if run.stats.diverged or not math.isfinite(loss) else loss
