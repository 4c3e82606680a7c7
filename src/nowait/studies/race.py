"""``nw.race``: several methods on the same problem, workers and samples, one comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.api.sweep import checked_seeds
from nowait.api.train import train
from nowait.core import Method, checks
from nowait.core.problem import checked_problem
from nowait.engines.progress import Progress
from nowait.recording import Run, Sweep
from nowait.recording.run import write_json
from nowait.speeds import Speeds
from nowait.studies.entrants import Entrant, Make, checked_entrants, tune
from nowait.studies.findings import RaceRow, findings, rows_of
from nowait.studies.quiet import quiet
from nowait.studies.sources import Source
from nowait.studies.units import stepsize_unit
from nowait.theory import Speedup, estimate, speedup

ENGINES = ("processes", "simulate", "ray")
TUNING_SHARE = 0.5
"""Stepsizes are tuned on so much of the time."""
GRADIENTS = 32_000
LEAST_SECONDS = 5.0
"""A race of real workers takes at least so long."""


@final
@dataclass(frozen=True, eq=False)
class Race:
    """What ``nw.race`` found."""

    problem: str
    engine: str
    seconds: float
    """The time that every method got, virtual in a simulation."""
    runs: dict[str, list[Run]]
    """One run for every seed, by method."""
    tunings: dict[str, Sweep]
    speedup: Speedup
    """What the workers' speeds promise."""
    minimum: float
    """F* where it is known, else 0."""
    config: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def rows(self) -> list[RaceRow]:
        """The table: one row for every method, medians over the seeds."""
        return rows_of(self.runs, self.minimum, self.speedup)

    @property
    def findings(self) -> list[str]:
        """What came out, in words, whichever way."""
        return findings(self.rows, self.runs, self.speedup, self.engine)

    @property
    def first_runs(self) -> dict[str, Run]:
        """The run with the first seed, by method."""
        return {name: runs[0] for name, runs in self.runs.items()}

    def save(self, folder: str | Path) -> Path:
        """Every run, the configuration, ``report.html`` and the figure, into a folder that is there or not."""
        from nowait.plots import race as draw

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for name, runs in self.runs.items():
            for seed, run in zip(self.config["seeds"], runs, strict=True):
                run.save(target / _folder_name(name, seed, len(runs)))
        write_json(target / "config.json", self.config)
        figure = draw(self.runs, minimum=self.minimum)
        for ending in ("png", "svg"):
            figure.savefig(target / f"race.{ending}", dpi=150)
        self.report(target / "report.html")
        return target

    def report(self, path: str | Path) -> Path:
        """The interactive report, one file."""
        from nowait.reports import write_report

        predictions = [
            (f"speedup of {row.method}", f"{row.predicted:.3g} x", _measured(row.measured))
            for row in self.rows
            if row.predicted is not None
        ]
        return write_report(
            self.runs,
            path,
            title=f"Race on {self.problem}",
            minimum=self.minimum,
            notes=self.findings,
            predictions=predictions,
            config=self.config,
        )


def race(
    problem: Any,
    methods: Mapping[str, Method | Make] | None = None,
    *,
    engine: str = "processes",
    workers: int | None = None,
    speeds: Speeds | None = None,
    slowdown: Mapping[int, float] | None = None,
    seconds: float | None = None,
    gradients: int | None = None,
    seeds: Iterable[int] = (0,),
    probe_seconds: float = 2.0,
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> Race:
    """Let several methods run on the same problem, workers and samples, each for the same time.

    ``methods`` are functions of the stepsize, which is tuned first, or methods as they are, by name; None is minibatch
    SGD, asynchronous SGD, and asynchronous SGD with delay-adaptive stepsizes. The first is what the others are compared
    with. ``engine="processes"`` takes real workers (``workers``, ``speeds`` and ``slowdown`` as in ``nw.train``), and
    stepsizes are tuned in virtual time on compute times from a probe; ``"simulate"`` needs ``speeds``. The time is
    ``seconds``, or what the workers need for so many ``gradients`` (32,000 unless said). ``tell`` hears of every stage.

    >>> import nowait as nw
    >>> problem = nw.problems.LeastSquares.random(samples=200, dimension=10, seed=0)
    >>> found = race(problem, engine="simulate", speeds=nw.speeds.Fixed([1.0, 1.0, 9.0]), gradients=2_000)
    >>> [row.method for row in found.rows if row.steps > 1_500]
    ['Asynchronous SGD, constant', 'Asynchronous SGD, delay-adaptive']
    """
    check_engine(engine, speeds)
    entrants, seed_list = checked_entrants(methods), checked_seeds(seeds)
    checked_problem(problem)
    say = tell or (lambda _: None)
    if engine == "simulate":
        assert speeds is not None
        source = Source.of_speeds(speeds, seed_list[0])
    else:
        source = Source.of_probe(problem, workers, probe_seconds, slowdown=slowdown, speeds=speeds, seed=seed_list[0])
    cluster = Cluster(problem, engine, speeds, slowdown, source)
    limit = _seconds(seconds, gradients, cluster)
    say(cluster.words(limit))
    unit = stepsize_unit(problem, estimate(problem, seed=seed_list[0]), GRADIENTS)
    runs: dict[str, list[Run]] = {}
    tunings: dict[str, Sweep] = {}
    with Progress("racing", False if engine == "processes" else progress) as bar, quiet():
        for place, entrant in enumerate(entrants):
            size = 1.0
            if entrant.tuned:
                tunings[entrant.name] = tuning = tune(
                    problem, entrant, cluster.source.speeds, unit, limit * TUNING_SHARE, seed_list[0]
                )
                say(_tuned_words(entrant.name, tuning))
                size = tuning.best
            mine = runs.setdefault(entrant.name, [])
            for seed in seed_list:
                mine.append(cluster.run(entrant, size, limit, seed, progress))
                bar.show((place + len(mine) / len(seed_list)) / len(entrants))
                if mine[-1].stats.interrupted:
                    break
            if mine[-1].stats.interrupted:
                break
    return Race(
        problem=repr(problem),
        engine=engine,
        seconds=limit,
        runs=runs,
        tunings=tunings,
        speedup=cluster.gain,
        minimum=problem.minimum()[1] if hasattr(problem, "minimum") else 0.0,
        config=_config(problem, engine, limit, seed_list, cluster, tunings),
        interrupted=any(run.stats.interrupted for mine in runs.values() for run in mine),
    )


@final
@dataclass(frozen=True)
class Cluster:
    """The workers that all methods get."""

    problem: Any
    engine: str
    speeds: Speeds | None
    slowdown: Mapping[int, float] | None
    source: Source
    """Their speeds: in a simulation those given, else as a probe found them."""

    @property
    def workers(self) -> int:
        """M."""
        return len(self.source.seconds)

    @property
    def gain(self) -> Speedup:
        """What the mean speeds promise."""
        return speedup(self.source.seconds.tolist())

    def words(self, seconds: float) -> str:
        """Who races, in a sentence."""
        took = self.source.seconds
        virtual = " of virtual time" if self.engine == "simulate" else ""
        return (
            f"{self.workers} workers, {took.min():.3g} to {took.max():.3g} s per gradient, "
            f"median {np.median(took):.3g}; "
            f"{self.source.rate:,.0f} gradients per second; every method gets {seconds:,.4g} s{virtual}. "
            f"Predicted speedup of asynchrony, s_max/HM: {self.gain.speedup:.3g} x."
        )

    def run(self, entrant: Entrant, size: float, seconds: float, seed: int, progress: bool | None) -> Run:
        """One method for the time of the race."""
        method = entrant.make(size)
        if self.engine == "simulate":
            return simulate(self.problem, method, self.source.speeds, seconds=seconds, seed=seed, progress=False)
        return train(
            self.problem,
            method,
            workers=self.workers,
            speeds=self.speeds,
            slowdown=self.slowdown,
            seconds=seconds,
            seed=seed,
            progress=progress,
        )


def check_engine(engine: str, speeds: Speeds | None) -> None:
    """Raise if there is no such engine, or if it lacks speeds."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "ray":
        raise ValueError("engine='ray' is not there yet: take 'processes', or 'simulate' for virtual time")
    if engine == "simulate" and speeds is None:
        raise ValueError("a simulated race needs speeds=, such as nw.speeds.LogNormal([1.0, 1.0, 10.0], sigma=0.2)")


def _seconds(seconds: float | None, gradients: int | None, cluster: Cluster) -> float:
    if seconds is not None:
        if gradients is not None:
            raise ValueError("give seconds= or gradients=, not both: every method gets the same time")
        return checks.positive(seconds, "seconds", "methods need time")
    count = checks.at_least(1, GRADIENTS if gradients is None else gradients, "gradients", "methods need some")
    wanted = count / cluster.source.rate
    return wanted if cluster.engine == "simulate" or gradients is not None else max(LEAST_SECONDS, wanted)


def _tuned_words(name: str, tuning: Sweep) -> str:
    shown = ", ".join(
        f"{size:.3g}" + (" (diverged)" if diverged else "")
        for size, diverged in zip(tuning.stepsizes, tuning.diverged[:, 0], strict=True)
    )
    edge = "; it is at the end of the grid" if tuning.best_place in (0, len(tuning.stepsizes) - 1) else ""
    return f"{name}: of the stepsizes {shown} the best is {tuning.best:.3g}{edge}"


def _config(
    problem: Any, engine: str, seconds: float, seeds: list[int], cluster: Cluster, tunings: dict[str, Sweep]
) -> dict[str, Any]:
    return {
        "problem": repr(problem),
        "engine": engine,
        "workers": cluster.workers,
        "speeds": cluster.source.words,
        "seconds_per_gradient": [float(f"{value:.6g}") for value in cluster.source.seconds],
        "seconds": seconds,
        "seeds": list(seeds),
        "stepsizes": {name: tuning.best for name, tuning in tunings.items()},
    }


def _folder_name(method: str, seed: int, seeds: int) -> str:
    plain = "".join(letter if letter.isalnum() else "-" for letter in method.lower())
    name = "-".join(part for part in plain.split("-") if part)
    return name if seeds == 1 else f"{name}-seed-{seed}"


def _measured(value: float | None) -> str:
    return "not reached" if value is None or math.isinf(value) or math.isnan(value) else f"{value:.3g} x"
