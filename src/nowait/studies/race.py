"""``nw.race``: several methods on the same problem, workers and samples, one comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.api.different_data import warn_of_different_data
from nowait.api.parts import warn_of_split
from nowait.api.sweep import check_rules, checked_seeds
from nowait.core import LastIterate, Output, Problem, Update, checks
from nowait.core.problem import check_initial_loss, checked_problem, initial_params, loss_of
from nowait.engines.progress import spinner, titled
from nowait.engines.watch import Watch
from nowait.fleet.options import RayCluster
from nowait.recording import Interrupted, Run, Sweep, describe, name_of
from nowait.speeds import Speeds
from nowait.studies.entrants import Entrant, Methods, Settings, check_updates, checked_entrants, without_refused
from nowait.studies.findings import (
    RaceRow,
    cut_short,
    final_loss,
    findings,
    headline,
    lower_bound,
    rows_of,
    rules_compared,
)
from nowait.studies.quiet import quiet
from nowait.studies.race_setup import (
    RaceSetup,
    Tuning,
    callbacks_of_runs,
    check_engine,
    check_slowed,
    connection,
    importing_once,
    saver_of_runs,
    seconds_each,
)
from nowait.studies.race_tuner import RaceTuner, Tuned, cheapest_counts
from nowait.studies.sources import Source
from nowait.studies.tuner import MARGIN, Tuner, best_of, makes_steps
from nowait.studies.units import known_minimum
from nowait.studies.winner import Contest, lost_workers, who_won
from nowait.theory import Constants, Speedup, relative_noise
from nowait.theory.estimate import sigma_at

LONGEST_NAME = 80


@final
@dataclass(frozen=True, eq=False)
class Race:
    """The result of ``nw.race``."""

    problem: str
    """A description of the problem."""
    engine: str
    """"simulate", "processes" or "ray"."""
    seconds: float
    """The time that every method had, virtual in a simulation."""
    runs: dict[str, list[Run]]
    """One run for every seed, by method."""
    tunings: dict[str, Sweep]
    """How the stepsize of each method was tuned, with the best m and momentum: a sweep in virtual time, by method."""
    speedup: Speedup
    """The speedup that the workers' speeds predict."""
    minimum: float | None
    """F*; None if it is not known."""
    config: dict[str, Any] = field(default_factory=dict)
    """What was run, as text and numbers."""
    interrupted: bool = False
    """True if a signal ended the race early."""
    answers: dict[str, list[float]] = field(default_factory=dict)
    """With an output rule: the loss of its answer for every run, by method."""

    @property
    def rows(self) -> list[RaceRow]:
        """The table: one row for every method, medians over the seeds."""
        return rows_of(self.runs, self.minimum, self.speedup, self.noise, self.answers) if self.runs else []

    @property
    def noise(self) -> float | None:
        """σ²/(M·L·ε) where the first method ended, at an error ε; None if it is not known, because F* is not."""
        return self.config.get("noise")

    @property
    def findings(self) -> list[str]:
        """The result in sentences, and how the stepsizes were tuned."""
        warning = ["Interrupted: not every method had its time.", *cut_short(self.runs)] if self.interrupted else []
        found = who_won(self._contest) if self.runs else []
        found += findings(self.rows, self.runs, self.speedup, self.engine) if self.runs else []
        found += lost_workers(self.runs)
        found += rules_compared(self.runs, self.minimum)
        found += lower_bound(self.rows, Constants(**self.config.get("constants", {})), self.speedup)
        found += [words for name, tuning in self.tunings.items() for words in _too_narrow(name, tuning)]
        return warning + found + ([self.tuned_on] if self.tunings else [])

    @property
    def _contest(self) -> Contest:
        settings = self.config.get("settings", {})
        return Contest(self.rows, self.runs, self.minimum, self.speedup, self.noise, settings, self.tunings)

    @property
    def tuned_on(self) -> str:
        """A sentence on the seeds and the time with which the stepsizes were tuned."""
        return _tuned_on(self.config["tuning"])

    @property
    def shown_from(self) -> float:
        """What figures subtract from losses: F*, or, if that is unknown, the least that makes them positive."""
        if self.minimum is not None:
            return self.minimum
        losses = np.concatenate([run.history.loss for mine in self.runs.values() for run in mine])
        losses = losses[np.isfinite(losses)]
        if len(losses) and losses.min() <= 0:
            return float(losses.min() - 1e-3 * max(np.ptp(losses), 1e-12))
        return 0.0

    def save(self, folder: str | Path) -> Path:
        """Write runs and sweeps that are not saved yet, ``report.html`` and the figure. ``Race.load`` reads them."""
        from nowait.plots import race as draw
        from nowait.studies.race_folder import save_race

        target = save_race(self, Path(checks.path(folder)))
        if self.runs:
            figure = draw(self.runs, minimum=self.shown_from)
            for ending in ("png", "svg"):
                figure.savefig(target / f"race.{ending}", dpi=150)
            self.report(target / "report.html")
        return target

    def _repr_html_(self) -> str:
        from nowait.studies.notebook import html_of_race

        return html_of_race(self)

    @classmethod
    def load(cls, folder: str | Path) -> Race:
        """Read a race from its folder; raise if it is damaged."""
        from nowait.studies.race_folder import load_race

        return load_race(Path(checks.path(folder)))

    def report(self, path: str | Path, *, minimum: float | None = None) -> Path:
        """Write the interactive report, one HTML file. ``minimum`` replaces the race's own F*."""
        from nowait.reports import write_report
        from nowait.reports.words import problem_in_words

        predictions = [
            (f"speedup of {row.method}", f"{row.expected} x", _measured(row.measured))
            for row in self.rows
            if row.expected is not None
        ]
        text, subtitle = headline(self.rows, self._contest.winner) if self.runs else (None, None)
        workers = self.config.get("workers", 0)
        return write_report(
            self.runs | {f"{name}, tuning": sweep for name, sweep in self.tunings.items()},
            path,
            title=f"Race: {problem_in_words(self.problem)}" + (f", {workers:,} workers" if workers else ""),
            headline=text,
            subtitle=subtitle,
            minimum=self.shown_from if minimum is None else minimum,
            notes=self.findings,
            predictions=predictions,
            config=self.config,
        )


def race(
    problem: Problem,
    methods: Methods | None = None,
    *,
    engine: str | RayCluster = "processes",
    workers: int | None = None,
    speeds: Speeds | None = None,
    slowdown: Mapping[int, float] | None = None,
    seconds: float | None = None,
    gradients: int | None = None,
    seeds: int | Iterable[int] = (0,),
    probe_seconds: float = 2.0,
    tuning_sizes: int = 10,
    tuning_seeds: int = 1,
    tuning_share: float = 0.5,
    update: Update | None = None,
    output: Output | None = None,
    folder: str | Path | None = None,
    labels: Mapping[str, Any] | None = None,
    log: Callable[[str], Iterable[Any]] | None = None,
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> Race:
    """Run several methods on the same problem, workers and samples, each for the same time.

    ``methods`` are functions of the stepsize, which is tuned first, or methods to be run as they are, by name; the
    others are compared with the first. A function of stepsize and ``momentum`` has both tuned, and may return a method
    and its update: ``lambda size, momentum: (nw.MinibatchSGD(size), nw.Nesterov(momentum))``. None is
    ``nw.studies.usual_methods()``: minibatch SGD and asynchronous SGD of the paper, both plain; what is used in
    practice, minibatch SGD and the first m of M gradients, with Nesterov's momentum; and ``Auto``.
    ``nw.studies.paper_methods()`` are the three of the paper's Figure 1.

    ``engine="processes"`` uses real workers on this machine (``workers``, ``speeds`` and ``slowdown`` as in
    ``nw.train``), ``"ray"`` or ``nw.RayCluster(...)`` on Ray; methods are tuned in virtual time on compute times that
    a probe measures. ``"simulate"`` needs ``speeds``. Every method gets ``seconds``, or the time the workers need for
    this many ``gradients`` (32,000 by default). There is a run for each of the ``seeds``; a number n means 0 to n − 1.
    With a ``folder`` every run is saved when it ends, and the report at the end; ``nw.Race.load(folder)`` reads them.
    ``probe_seconds`` is how long compute times are measured before a race with real workers, at least. ``labels`` are
    kept in the configuration of every run. ``tell`` is called with a sentence at every stage; ``progress`` None shows a
    live view on a terminal. ``log`` is a function that is called with the name of every run, when it begins (for the
    first run before the probe), and returns its callbacks: ``log=lambda name: [nw.TensorBoard(f"logs/{name}")]``.

    Every method that is tuned gets ``tuning_sizes`` trials in virtual time. Without momentum they are stepsizes: about
    two thirds are a grid, the others lie beyond its end or around the best one. Otherwise the first two trials are half
    of 1/L, and a sixteenth of that in case noise limits the stepsize. With the better one, up to four values of m are
    compared (only of the first m gradients; those that ``Auto`` takes for the cheapest, from no noise to much), then
    the momenta 0, 0.9 and 0.97. The others are stepsizes with the best m and momentum.
    Trials get ``tuning_share`` of the time of the race, and ``tuning_seeds`` seeds that are not raced
    (``found.tuned_on`` says which); the lowest median loss is the best. Real workers get
    the best stepsize that is 1.5 times smaller than any that diverged. ``Auto`` has no trials: it gets stepsize and
    momentum of minibatch SGD with momentum. One of your own, ``lambda size: nw.Auto(size)``, is tuned as minibatch SGD
    with its momentum (``Method.tuned_as``).

    ``update`` and ``output`` are those of ``nw.train``, for all methods. An ``update`` is refused if a method has one
    of its own, as three of the default methods have. With an output rule, trials are compared by the loss of its
    answer.

    Ctrl-C and SIGTERM raise ``nw.Interrupted`` with the race so far as ``race``, which is also saved if there is a
    ``folder``.

    >>> import nowait as nw
    >>> problem = nw.problems.LeastSquares.random(samples=200, dimension=10, seed=0)
    >>> found = race(
    ...     problem,
    ...     engine="simulate",
    ...     speeds=nw.speeds.Fixed([1.0, 1.0, 9.0]),
    ...     gradients=2_000,
    ... )
    >>> [row.method for row in found.rows if row.steps > 1_500]
    ['Asynchronous SGD, delay-adaptive']
    >>> found.findings[0].split(" was ")[1].split(":")[0]
    'fastest'
    """
    progress, kept_labels = checks.flag_or_none(progress, "progress"), checks.labels(labels)
    tell = checks.function_or_none(tell, "tell", "print")
    log = checks.function_or_none(log, "log", 'lambda name: [nw.TensorBoard(f"logs/{name}")]')
    folder = None if folder is None else Path(checks.path(folder))
    name = check_engine(engine, speeds)
    check_slowed(name, slowdown, workers, speeds)
    entrants, seed_list = checked_entrants(methods), checked_seeds(seeds)
    check_rules(update, output)
    check_updates(entrants, update)
    tuning = Tuning.checked(tuning_sizes, tuning_seeds, tuning_share, seed_list)
    names = folder_names([entrant.name for entrant in entrants], seed_list)
    keep, callbacks = saver_of_runs(folder, names), callbacks_of_runs(log, names)
    say = tell or (lambda _: None)
    checked_problem(problem)
    entrants = without_refused(entrants, problem, say)
    with Watch() as watch, connection(engine, workers), importing_once(problem, engine, workers, speeds):
        with spinner("Race: evaluating the problem", progress):
            check_initial_loss(problem, initial_params(problem))
            lowest = known_minimum(problem)
        if name == "simulate" and speeds is not None:
            source = Source.of_speeds(speeds, seed=0)
        else:
            say(f"Probing the workers' speeds for {probe_seconds:.3g} s, longer if a worker needs it.")
            with spinner("Race: probing the workers' speeds", progress):
                source = Source.of_probe(
                    problem, workers, probe_seconds, slowdown=slowdown, speeds=speeds, engine=engine
                )
        if source.silent:
            say(f"Note: {source.words}.")
        known = ({} if lowest is None else {"minimum": lowest}) | kept_labels
        setup = RaceSetup(problem, engine, speeds, slowdown, source, known, update, output)
        warn_of_split(problem, setup.workers)
        made = {entrant.name: entrant.method(1.0) for entrant in entrants}
        warn_of_different_data(problem, made, setup.workers, source.seconds)
        limit = seconds_each(seconds, gradients, setup)
        say(setup.words(limit))
        with spinner("Race: estimating the problem's constants", progress):
            tuner = RaceTuner(setup.tuner(limit, tuning), cheapest_counts(source), real=name != "simulate")
        if any(entrant.tuned for entrant in entrants):
            say(_tuned_on(_tuning_config(tuner.tuner, limit)))
        runs = _RaceRuns(setup, limit, tuner, seed_list, say, progress, callbacks)
        with quiet():
            signal = runs.run_all(entrants, keep, watch)
        found = runs.found(name, lowest, interrupted=bool(signal))
        if folder is not None:
            with spinner("Race: writing figures and report", progress):
                found.save(folder)
        if signal:
            raise Interrupted(signal, race=found)
    return found


@final
@dataclass
class _RaceRuns:
    """Tunes and runs the methods, one after the other."""

    setup: RaceSetup
    seconds: float
    tuner: RaceTuner
    seeds: list[int]
    say: Callable[[str], None]
    progress: bool | None
    callbacks: Callable[[str, int], Iterable[Any]]
    """Returns the callbacks of a run, by the name of its method and its seed."""
    runs: dict[str, list[Run]] = field(default_factory=dict)
    tunings: dict[str, Sweep] = field(default_factory=dict)
    settings: dict[str, Settings] = field(default_factory=dict)
    answers: dict[str, list[float]] = field(default_factory=dict)

    def run_all(self, entrants: list[Entrant], keep: Callable[[str, int, Run], Any] | None, watch: Watch) -> str:
        """Run all methods. Return the name of the signal that ended the race early, or an empty string."""
        try:
            for place, entrant in enumerate(entrants, start=1):
                title = f"Race, {place} of {len(entrants)}: {entrant.name}"
                settings = self._settings(entrant, title)
                watch.check()
                for seed in self.seeds:
                    callbacks = self.callbacks(entrant.name, seed)
                    with titled(title + _which_seed(self.seeds, seed)):
                        run = self.setup.run(entrant, settings, self.seconds, seed, self.progress, callbacks)
                    self._add(entrant.name, run)
                    if keep is not None:
                        keep(entrant.name, seed, run)
                    if run.stats.interrupted:
                        raise Interrupted.of(run)
                    watch.check()
        except Interrupted as error:
            return error.signal
        except KeyboardInterrupt:
            return "SIGINT"
        return ""

    def found(self, engine: str, minimum: float | None, interrupted: bool) -> Race:
        """Return the race, as far as it went."""
        return Race(
            problem=name_of(self.setup.problem),
            engine=engine,
            seconds=self.seconds,
            runs=self.runs,
            tunings=self.tunings,
            speedup=self.setup.gain,
            minimum=minimum,
            config=self._config(engine) | self.setup.labels | {"noise": self._noise(minimum)},
            interrupted=interrupted,
            answers=self.answers,
        )

    def _noise(self, minimum: float | None) -> float | None:
        """Return the relative noise where the first run of the first method ended; None if it is not known."""
        first, constants = next(iter(self.runs.values()), []), self.tuner.tuner.constants
        if not first or minimum is None or constants is None or not constants.L:
            return None
        run, loss = first[0], final_loss(first[0])
        if not minimum < loss <= float(run.history.loss[0]):  # at the minimum, or its stepsize was too large
            return None
        sigma = float(sigma_at(self.setup.problem, run.last))
        return relative_noise(Constants(L=constants.L, sigma=sigma), loss - minimum, self.setup.workers)

    def _config(self, engine: str) -> dict[str, Any]:
        setup, tuner = self.setup, self.tuner.tuner
        return {
            "problem": name_of(setup.problem),
            "engine": engine,
            "workers": setup.workers,
            "speeds": setup.source.words,
            "seconds_per_gradient": [float(f"{value:.6g}") for value in setup.source.seconds],
            "seconds": self.seconds,
            "seeds": list(self.seeds),
            "update": describe(setup.update),
            "output": describe(setup.output),
            "stepsizes": {name: settings.stepsize for name, settings in self.settings.items()},
            "settings": {name: settings.known for name, settings in self.settings.items()},
            "tuning": _tuning_config(tuner, self.seconds),
            "constants": {} if tuner.constants is None else tuner.constants.known(),
        }

    def _add(self, name: str, run: Run) -> None:
        self.runs.setdefault(name, []).append(run)
        output = self.setup.output
        if output is not None and not isinstance(output, LastIterate):
            loss = math.inf if run.stats.diverged else loss_of(self.setup.problem, run.params)
            self.answers.setdefault(name, []).append(loss)

    def _settings(self, entrant: Entrant, title: str) -> Settings:
        """Return the settings of a method: tuned, those of another one, or any for a method that runs as it is."""
        if entrant.tuned:
            with spinner(f"{title}, tuning it", self.progress):
                tuned = self.tuner.tune(entrant)
            self.tunings[entrant.name], self.settings[entrant.name] = tuned.sweep, tuned.settings
            self.say(_tuned_words(entrant.name, tuned))
        elif entrant.settings_of:
            self.settings[entrant.name] = self.settings[entrant.settings_of]
            self.say(f"{entrant.name}: with stepsize and momentum of {entrant.settings_of}, without a trial.")
        return self.settings.get(entrant.name, Settings(1.0))


def _which_seed(seeds: list[int], seed: int) -> str:
    """Return which of several seeds a run has; empty if there is only one.

    >>> _which_seed([3, 4, 5], 4), _which_seed([3], 3)
    (', seed 2 of 3', '')
    """
    return f", seed {seeds.index(seed) + 1} of {len(seeds)}" if len(seeds) > 1 else ""


def _tuned_words(name: str, tuned: Tuned) -> str:
    tuning = tuned.sweep
    shown = ", ".join(
        f"{size:.3g}" + (" (diverged)" if any(diverged) else "")
        for size, diverged in zip(tuning.stepsizes, tuning.diverged, strict=True)
    )
    best = best_of(tuning)
    if not makes_steps(tuning):
        return f"{name}: it makes no step in the time for tuning, so {best:.3g} is taken untuned"
    edge = "; it is at the end of the grid" if tuning.advice else ""
    if (taken := tuned.settings.stepsize) != best:
        edge += f"; {taken:.3g} is taken, at least {MARGIN:g} times less than what diverged, because real delays vary"
    return f"{name}: {_first_choices(tuned)}of the stepsizes {shown} the best is {best:.3g}{edge}"


def _first_choices(tuned: Tuned) -> str:
    """Return what was tuned before the stepsize: m and momentum, if any."""
    words = ""
    for name, plural in (("m", "values of m"), ("momentum", "momenta")):
        values = {getattr(one, name) for one in tuned.losses} - {None}
        if len(values) > 1:
            values_shown = ", ".join(f"{value:g}" for value in sorted(values))
            words += f"of the {plural} {values_shown} the best is {getattr(tuned.settings, name):g}, "
    return words


def _too_narrow(name: str, tuning: Sweep) -> list[str]:
    """Return a sentence if the best stepsize of a method is at an end of its grid."""
    if not (tuning.advice and makes_steps(tuning)):
        return []
    return [f"{name} may do better than here: {tuning.advice}. Raise tuning_sizes (--thorough) for more trials."]


def _tuning_config(tuner: Tuner, seconds: float) -> dict[str, Any]:
    return {
        "share_of_the_time": tuner.seconds / seconds,
        "seconds": tuner.seconds,
        "seeds": list(tuner.seeds),
        "trials": tuner.sizes,
    }


def _tuned_on(tuning: Mapping[str, Any]) -> str:
    """Return a sentence about how the stepsizes were tuned."""
    return (
        f"Methods are tuned in virtual time, with {tuning['trials']} trials each, on "
        f"{tuning['share_of_the_time']:.0%} of the time of the race ({tuning['seconds']:,.4g} s) and with "
        f"{_seeds_in_words(tuning['seeds'])}: stepsizes, and momentum and m of methods that have them to tune."
    )


def _seeds_in_words(seeds: list[int]) -> str:
    """Return which seeds tuned the stepsizes.

    >>> _seeds_in_words([3]), _seeds_in_words([7, 8, 9]), _seeds_in_words([1, 3])
    ('seed 3, which does not race', 'seeds 7 to 9, which do not race', 'seeds 1, 3, which do not race')
    """
    first, last = seeds[0], seeds[-1]
    if first == last:
        return f"seed {first}, which does not race"
    successive = last - first + 1 == len(seeds)
    return f"seeds {f'{first} to {last}' if successive else ', '.join(map(str, seeds))}, which do not race"


def folder_names(methods: list[str], seeds: list[int]) -> dict[tuple[str, int], str]:
    """Return a distinct folder name for every run."""
    names: dict[tuple[str, int], str] = {}
    taken: set[str] = set()
    for number, method in enumerate(methods, start=1):
        plain = "".join(letter if letter.isalnum() else "-" for letter in method.lower())
        short = "-".join(part for part in plain.split("-") if part)[:LONGEST_NAME] or f"method-{number}"
        name = short if short not in taken else f"{short}-{number}"
        taken.add(name)
        for seed in seeds:
            names[method, seed] = name if len(seeds) == 1 else f"{name}-seed-{seed}"
    return names


def _measured(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.3g} x"
