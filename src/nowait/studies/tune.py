"""``nw.tune``: a few short trials that find the stepsize of a method."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from nowait.api.different_data import known_seconds, warn_of_different_data
from nowait.api.parts import warn_of_split
from nowait.api.simulate import simulate
from nowait.api.train import train
from nowait.api.train_arguments import check_slowdown, checked_slowdown
from nowait.core import Method, Problem, Stepsize, Update, checks
from nowait.core.problem import Evaluation, check_initial_loss, checked_problem, initial_params
from nowait.engines.budget import Budget
from nowait.engines.progress import Progress, spinner
from nowait.engines.watch import Watch
from nowait.fleet.options import RayCluster, checked_engine
from nowait.recording import History, Interrupted, Run
from nowait.recording.monitor import Monitor
from nowait.speeds import Speeds
from nowait.studies.entrants import (
    MOMENTA,
    Entry,
    MakeEntry,
    MakeWithMomentum,
    MakeWithUpdate,
    Settings,
    entry_maker,
)
from nowait.studies.quiet import quiet
from nowait.studies.race_setup import ENGINES, connection
from nowait.studies.search import DIVERGED, REACHED, UNFINISHED, Score, best_size, next_size
from nowait.studies.tuner import ALONE, Make, update_of
from nowait.studies.units import stepsize_unit
from nowait.theory import estimate

logger = logging.getLogger("nowait")

EVALUATIONS = 10
"""The number of evaluations of a trial that ends after some steps."""
NOT_METRICS = ("step", "gradients", "time", "loss")
LATEST_STEP = 2**20
"""A schedule that is 0 up to this step does not tell the size of its rule."""


@final
@dataclass(frozen=True, eq=False)
class Trial:
    """One short run with one stepsize."""

    stepsize: float
    """The γ that was tried."""
    momentum: float | None
    """The momentum that was tried; None if it is not tuned."""
    value: float
    """The last value of the metric that is compared, the loss by default; NaN if the trial diverged."""
    seconds_to_target: float
    """When the trial reached its target; infinite if it did not."""
    diverged: bool
    """True if params or the loss became infinite."""
    steps: int
    """The number of steps that it made."""
    seconds: float
    """How long the trial took; virtual in a simulation."""
    mean_delay: float
    """The mean delay of the gradients; NaN if none arrived."""
    history: History = field(repr=False)
    """The losses and metrics of its evaluations."""

    def score(self, monitor: Monitor) -> Score:
        """Return what trials are compared by: the time to the target if it was reached, else the last value."""
        if self.diverged or not math.isfinite(self.value):
            return DIVERGED, 0.0
        if math.isfinite(self.seconds_to_target):
            return REACHED, self.seconds_to_target
        return UNFINISHED, self.value if monitor.mode == "min" else -self.value


@final
@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of ``nw.tune``."""

    method: Method
    """The method with the best stepsize."""
    stepsize: float
    """The best stepsize; the smallest one if every trial diverged."""
    trials: list[Trial]
    """All trials, in the order in which they were made."""
    monitor: Monitor
    """The metric that was compared."""
    momentum: float | None = None
    """The best momentum; None if it was not tuned."""
    update: Update | None = None
    """The update that the function returned with the method; None if it returned none."""

    @property
    def best(self) -> Trial:
        """The trial of ``stepsize`` and ``momentum``."""
        chosen = (self.stepsize, self.momentum)
        return next(trial for trial in self.trials if (trial.stepsize, trial.momentum) == chosen)

    @property
    def score(self) -> Score:
        """The score of the best trial. Compares tunings with the same budget and target; the lowest is the best."""
        return self.best.score(self.monitor)

    @property
    def diverged(self) -> bool:
        """True if every trial diverged, so that no stepsize was found."""
        return all(trial.score(self.monitor)[0] == DIVERGED for trial in self.trials)

    @property
    def improved(self) -> bool:
        """True if the best trial ended better than it began."""
        first = self.monitor.value(evaluations_of(self.best.history)[0][1].values)
        return self.monitor.is_better(self.best.value, first)

    @property
    def advice(self) -> str:
        """What to try next if the result may not be good: all diverged, or the best is an end of the range."""
        sizes = [trial.stepsize for trial in self.trials]
        if self.diverged:
            return f"every trial diverged: try again with start={min(sizes) / 100:.3g}, or look at the problem"
        if not self.improved:
            return f"no trial improved the {self.monitor.name}: make longer trials, or try again with another start="
        if self.stepsize not in (min(sizes), max(sizes)):
            return ""
        end = "smallest" if self.stepsize == min(sizes) else "largest"
        return (
            f"the best stepsize, {self.stepsize:.3g}, is the {end} that was tried: a further one may be better; "
            f"make more trials, or start there"
        )

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_tuning

        return html_of_tuning(self)

    def __repr__(self) -> str:
        found = "every trial diverged" if self.diverged else f"stepsize {self.stepsize:.4g}{with_momentum(self)}"
        return f"Tuning({found} after {len(self.trials)} trials, {self.monitor.name} {self.best.value:.4g})"


def tune(
    problem: Problem,
    method: Method | Make | MakeWithUpdate | MakeWithMomentum,
    *,
    workers: int | None = None,
    engine: str | RayCluster | None = None,
    speeds: Speeds | None = None,
    slowdown: Mapping[int, float] | None = None,
    trials: int = 6,
    steps: int | None = None,
    gradients: int | None = None,
    seconds: float | None = None,
    target_loss: float | None = None,
    target: Mapping[str, Any] | None = None,
    start: float | None = None,
    momenta: Iterable[float] | None = None,
    monitor: str | tuple[str, str] = "loss",
    update: Update | None = None,
    initial: Any = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> Tuning:
    """Find the stepsize of a method by a few short runs, each with the budget given, one after the other.

    The first trial has the stepsize of the ``method``, or ``start``; the next ones are four times larger or smaller,
    until the best one is not at an end, then between the best and its neighbours. A function of the stepsize may be
    given in place of a method; it starts at half of 1/L, divided by ``Method.stepsize_divisor``, with L known or
    estimated. That is an order of magnitude for plain SGD: with Adam, give ``start``.

    A function of stepsize and ``momentum`` has both tuned: the first trials have the first stepsize and each of the
    ``momenta`` (None: 0, 0.9 and 0.97), the others the best of these. The function returns a method, as in
    ``lambda size, momentum: nw.Auto(size, momentum)``, or a method and its update, as in
    ``lambda size, momentum: (nw.MinibatchSGD(size), nw.Nesterov(momentum))``. For ``Auto``, trials run minibatch SGD
    with Nesterov's momentum: its stepsize and momentum are the best ones for that.

    With ``speeds`` the trials are simulations in virtual time, else runs with real ``workers``; ``engine="processes"``
    with ``speeds`` slows real workers, as in ``nw.train``. Every trial ends after ``steps``, ``gradients`` or
    ``seconds``, or at ``target_loss`` or ``target``. Trials that reached the target are compared by the time they took,
    others by the last value of ``monitor``: the loss, or a metric such as ``"accuracy"`` or ``("perplexity", "min")``.
    A trial that diverged is worse than all others. ``workers``, ``engine``, ``slowdown``, ``update``, ``initial`` and
    ``evaluate_every`` are those of ``nw.train``. ``tell`` is called with a sentence after every trial; ``progress``
    None shows a bar on a terminal.

    >>> import nowait as nw
    >>> problem = nw.problems.LeastSquares.random(samples=200, dimension=10, seed=0)
    >>> method = nw.AsynchronousSGD(nw.DelayAdaptive(1.0))
    >>> found = tune(problem, method, speeds=nw.speeds.Fixed([1, 1, 9]), steps=300)
    >>> len(found.trials), found.method
    (6, AsynchronousSGD(stepsize=DelayAdaptive(gamma=2.0, cut=None)))
    """
    progress = checks.flag_or_none(progress, "progress")
    tell = checks.function_or_none(tell, "tell", "print")
    if speeds is not None:
        checks.instance(speeds, Speeds, "speeds", "nw.speeds.Fixed([1.0, 1.0, 10.0])")
    make, has_momentum = entry_maker(method, "method")
    number, tried = checks.at_least(1, trials, "trials", "a stepsize needs one"), _momenta(momenta, has_momentum)
    if number < len(tried):
        raise ValueError(f"trials must be at least {len(tried)}, one for each of the momenta, got {number}")
    example = make(Settings(1.0, MOMENTA[1]))
    _check_update(example, update)
    watched = Monitor.of(*monitor) if isinstance(monitor, tuple | list) and len(monitor) == 2 else Monitor.of(monitor)
    name = _checked_engine(engine, speeds, workers, slowdown)
    budget = Budget(steps, gradients, seconds, target_loss, target)
    if budget.only_a_loss_ends_it:
        raise ValueError("every trial needs an end: give steps=, gradients= or seconds=; some trials reach no target")
    shared: dict[str, Any] = {
        "steps": steps,
        "gradients": gradients,
        "seconds": seconds,
        "target_loss": target_loss,
        "target": target,
        "update": update,
        "initial": initial,
        "evaluate_every": _evaluate_every(evaluate_every, steps),
        "seed": seed,
        "progress": False,
    }
    where = {"speeds": speeds} if name == "simulate" else {"speeds": speeds, "workers": workers, "slowdown": slowdown}
    count = speeds.num_workers if speeds is not None else workers or os.cpu_count() or 1
    with spinner("tuning: estimating the problem's constants", progress):
        check_initial_loss(checked_problem(problem), initial_params(problem))
        first = _start(start, method, make, problem, count)
    warn_of_split(problem, count)
    entered = {type(example.method).__name__: example.method}
    warn_of_different_data(problem, entered, count, known_seconds(speeds, slowdown, count))
    real = None if name == "simulate" else engine or "processes"
    made = _Trials(problem, make, tried, budget, watched, shared | where, real, tell or (lambda _: None))
    with Watch() as watch, connection(real or "simulate", workers), Progress("tuning", progress) as bar, quiet():
        for place in range(number):
            made.add(made.next(first))
            bar.show((place + 1) / number)
            watch.check()
    found = made.found()
    if found.advice:
        logger.warning(found.advice)
    return found


@final
@dataclass
class _Trials:
    """Makes trials and keeps them."""

    problem: Problem
    make: MakeEntry
    momenta: list[float]
    """Those to try; empty if the momentum is not tuned."""
    budget: Budget
    monitor: Monitor
    arguments: dict[str, Any]
    """The other arguments of ``nw.simulate`` or ``nw.train``."""
    engine: str | RayCluster | None
    """Where real workers run; None simulates."""
    tell: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)

    def next(self, start: float) -> Settings:
        """Return the settings of the next trial: ``start`` with each momentum, then stepsizes with the best one."""
        if len(self.trials) < len(self.momenta):
            return Settings(start, self.momenta[len(self.trials)])
        momentum = self.momentum
        return Settings(next_size(self.scores(momentum), start), momentum)

    @property
    def momentum(self) -> float | None:
        """The momentum of the best trial, the first of them if they are equal; None if it is not tuned."""
        if not self.momenta:
            return None
        return min(self.trials, key=lambda trial: trial.score(self.monitor)).momentum

    def scores(self, momentum: float | None) -> dict[float, Score]:
        """Return the score of every stepsize that was tried with this momentum."""
        return {trial.stepsize: trial.score(self.monitor) for trial in self.trials if trial.momentum == momentum}

    def add(self, settings: Settings) -> None:
        """Make a trial with these settings."""
        trial = trial_of(settings, self._run(self.make(settings)), self.budget, self.monitor)
        self.trials.append(trial)
        self.tell(self._words(trial))

    def found(self) -> Tuning:
        """Return the result."""
        momentum = self.momentum
        scores = self.scores(momentum)
        best = best_size(scores)
        size = min(scores) if best is None else best
        method, update = self.make(Settings(size, momentum))
        return Tuning(method, size, self.trials, self.monitor, momentum, update)

    def _run(self, entry: Entry) -> Run:
        arguments = self.arguments if entry.update is None else self.arguments | {"update": entry.update}
        method, update = entry.method.tuned_as(update_of(self.problem, entry.method, arguments.get("update")))
        if method is not entry.method:
            arguments = arguments | {"update": update}
        if self.engine is None:
            return simulate(self.problem, method, **arguments)
        run = train(self.problem, method, engine=self.engine, **arguments)
        if run.stats.interrupted:
            raise Interrupted.of(run)
        return run

    def _words(self, trial: Trial) -> str:
        ending = f"{self.monitor.name} {trial.value:.4g}"
        if trial.score(self.monitor)[0] == DIVERGED:
            ending = "diverged"
        elif math.isfinite(trial.seconds_to_target):
            ending = f"reached the target after {trial.seconds_to_target:.4g} s"
        return f"trial {len(self.trials)}, stepsize {trial.stepsize:.4g}{with_momentum(trial)}: {ending}"


def with_momentum(tuned: Trial | Tuning) -> str:
    """Return the momentum as text, after a comma; empty if it is not tuned."""
    return "" if tuned.momentum is None else f", momentum {tuned.momentum:g}"


def _momenta(momenta: Iterable[float] | None, has_momentum: bool) -> list[float]:
    """Return the momenta to try, each once; raise if the method is not a function of the momentum."""
    if not has_momentum:
        if momenta is not None:
            raise ValueError(
                "momenta= needs a function of stepsize and momentum, such as "
                "lambda size, momentum: (nw.MinibatchSGD(size), nw.Nesterov(momentum))"
            )
        return []
    if momenta is not None and (isinstance(momenta, str) or not isinstance(momenta, Iterable)):
        raise TypeError(f"momenta must be several numbers, such as [0.0, 0.9], got {checks.shown(momenta)}")
    given = list(MOMENTA if momenta is None else momenta)
    if not given:
        raise ValueError("momenta is empty: give at least one, or None for 0, 0.9 and 0.97")
    return list(dict.fromkeys(checks.fraction(momentum, "a momentum", "it would never fade") for momentum in given))


def _check_update(entry: Entry, update: Update | None) -> None:
    """Raise if an update is given and the method, or the function that made it, has one of its own."""
    if entry.update is not None and update is not None:
        raise ValueError("the function returns a method and its update: omit update=")
    if update is not None:
        entry.method.check_update(update)


def trial_of(settings: Settings, run: Run, budget: Budget, monitor: Monitor) -> Trial:
    """Return what a run says about its stepsize."""
    evaluations = evaluations_of(run.history)
    reached = [time for time, one in evaluations if budget.has_target and budget.reached(one)]
    diverged = run.stats.diverged
    return Trial(
        stepsize=settings.stepsize,
        momentum=settings.momentum,
        value=math.nan if diverged else monitor.value(evaluations[-1][1].values),
        seconds_to_target=math.inf if diverged or not reached else reached[0],
        diverged=diverged,
        steps=run.stats.steps,
        seconds=run.stats.seconds,
        mean_delay=float(run.trace.delay.mean()) if len(run.trace) else math.nan,
        history=run.history,
    )


def evaluations_of(history: History) -> list[tuple[float, Evaluation]]:
    """Return the times and results of the evaluations of a run."""
    return [
        (row["time"], Evaluation(row["loss"], {name: row[name] for name in row if name not in NOT_METRICS}))
        for row in history.rows()
    ]


def _checked_engine(
    engine: str | RayCluster | None, speeds: Speeds | None, workers: int | None, slowdown: Mapping[int, float] | None
) -> str:
    """Return the name of the engine; None simulates if there are speeds, and else uses processes."""
    if engine is None:
        engine = "processes" if speeds is None else "simulate"
    name = "ray" if isinstance(engine, RayCluster) else engine
    if not isinstance(name, str) or name not in ENGINES:
        nearest = checks.did_you_mean(engine, ENGINES)
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {checks.shown(engine)}{nearest}")
    if name == "simulate" and speeds is None:
        raise ValueError("simulated trials need speeds=, such as nw.speeds.LogNormal([1.0, 1.0, 10.0], sigma=0.2)")
    if name == "simulate" and (workers is not None or checked_slowdown(slowdown)):
        raise ValueError(
            "workers= and slowdown= are for real workers, but speeds= makes simulations; for real workers with these "
            'speeds, give engine="processes" as well'
        )
    if name != "simulate":
        check_slowdown(slowdown, workers, speeds, checked_engine(engine))
    return name


def _evaluate_every(evaluate_every: int | None, steps: int | None) -> int | None:
    """Return the steps between evaluations; None leaves it to the run."""
    if evaluate_every is not None or steps is None:
        return evaluate_every
    return max(1, steps // EVALUATIONS)


def _start(start: float | None, method: Any, make: MakeEntry, problem: Problem, workers: int) -> float:
    """Return the first stepsize: the one given, that of the method, or half of 1/L over the method's divisor."""
    if start is not None:
        return checks.positive(start, "start", "it is the first stepsize")
    if isinstance(method, Method):
        rule: Stepsize = method.stepsize  # type: ignore[attr-defined]  # maker has checked it
        return size_of(rule)
    unit = stepsize_unit(problem, estimate(problem), gradients=10_000)
    return ALONE * unit / make(Settings(1.0, MOMENTA[1])).method.stepsize_divisor(workers)


def size_of(rule: Stepsize) -> float:
    """Return the γ of a rule: by how much its stepsizes are larger than those of ``rule.with_size(1.0)``.

    >>> import nowait as nw
    >>> size_of(nw.Scheduled(nw.DelayAdaptive(0.05), nw.schedules.warmup(100)))
    0.05
    """
    steps = 2.0 ** np.arange(math.log2(LATEST_STEP) + 1)
    ones = np.ones(len(steps))
    values, of_one = rule(ones, ones, steps), rule.with_size(1.0)(ones, ones, steps)
    known = np.flatnonzero(of_one > 0)
    if not len(known):
        raise ValueError("the stepsize of the method is 0 at every step: give start=, the first stepsize to try")
    return float(f"{values[known[0]] / of_one[known[0]]:.12g}")
