"""What all methods of a race have in common, and the checks of its arguments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.api.train import train
from nowait.api.train_arguments import TOGETHER, check_slowdown, checked_workers
from nowait.core import Output, Problem, Update, checks
from nowait.fleet.host.launch import shared_zygote
from nowait.fleet.options import RayCluster, checked_engine
from nowait.fleet.sources.ray_cluster import connected, import_ray
from nowait.html.numbers import shown
from nowait.recording import Interrupted, Run, checked_callbacks
from nowait.recording.fresh import is_taken, nearest_folder
from nowait.speeds import Speeds
from nowait.studies.entrants import Entrant, Settings
from nowait.studies.sources import Source
from nowait.studies.tuner import Tuner
from nowait.studies.units import stepsize_unit
from nowait.theory import Speedup, estimate, speedup

ENGINES = ("processes", "simulate", "ray")
LARGEST_SEED = 2**63 - 1
GRADIENTS = 32_000
"""By default every method gets the time in which asynchronous SGD computes this many gradients."""
LEAST_SECONDS = 5.0
"""The shortest default time of a race with real workers."""
SUMMARY, TUNINGS = "race.json", "tunings"
"""What a race writes into its folder beside its runs."""

RunNames = Mapping[tuple[str, int], str]
"""The name of each run's folder, by method and seed."""


@final
@dataclass(frozen=True)
class Tuning:
    """How the methods of a race are tuned."""

    sizes: int
    """How many trials every method gets."""
    seeds: tuple[int, ...]
    """None of them is raced."""
    share: float
    """The time of these runs, divided by that of the race."""

    @classmethod
    def checked(cls, sizes: int, seeds: int, share: float, raced: list[int]) -> Self:
        """Return the arguments of a race that has these seeds; raise if one of them is wrong."""
        sizes = checks.at_least(1, sizes, "tuning_sizes", "every method needs a trial")
        seeds = checks.at_least(1, seeds, "tuning_seeds", "stepsizes are compared by runs")
        share = checks.positive(share, "tuning_share", "stepsizes are compared by runs")
        if share > 1:
            raise ValueError(f"tuning_share must be at most 1, got {share!r}: it is a share of the time of the race")
        return cls(sizes, unused_seeds(raced, seeds), share)


@final
@dataclass(frozen=True)
class RaceSetup:
    """The problem, the workers and the rules that all methods share."""

    problem: Problem
    engine: str | RayCluster
    speeds: Speeds | None
    slowdown: Mapping[int, float] | None
    source: Source
    """The workers' speeds: those given in a simulation, else measured by a probe."""
    labels: dict[str, Any]
    update: Update | None = None
    output: Output | None = None

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.source.seconds)

    @property
    def gain(self) -> Speedup:
        """The speedup that the mean speeds predict."""
        return speedup(self.source.seconds.tolist())

    def words(self, seconds: float) -> str:
        """Return a sentence about the workers and the time of the race."""
        took = self.source.seconds
        virtual = " of virtual time" if self.engine == "simulate" else ""
        return (
            f"{self.workers} workers, {took.min():.3g} to {took.max():.3g} s per gradient, "
            f"median {np.median(took):.3g}; "
            f"{self.source.rate:,.0f} gradients per second; every method gets {seconds:,.4g} s{virtual}. "
            f"Predicted speedup of asynchrony: s_max/HM = {self.gain.speedup:.3g} x; with little noise up to "
            f"s_max/s_min = {shown(self.gain.ceiling)} x."
        )

    def tuner(self, seconds: float, tuning: Tuning) -> Tuner:
        """Return the tuner for these workers, and a race of so many seconds."""
        found = estimate(self.problem, seed=tuning.seeds[0])
        unit, share = stepsize_unit(self.problem, found, GRADIENTS), tuning.share * seconds
        given = (self.problem, self.source.speeds, unit, share, tuning.seeds, tuning.sizes)
        return Tuner(*given, self.update, self.output, constants=found.constants)

    def run(
        self,
        entrant: Entrant,
        settings: Settings,
        seconds: float,
        seed: int,
        progress: bool | None,
        callbacks: Iterable[Any] = (),
    ) -> Run:
        """Run one method for the time of the race. ``stats.interrupted`` says if a signal ended it."""
        method, own_update = entrant.make(settings)
        shared: dict[str, Any] = {
            "seconds": seconds,
            "seed": seed,
            "update": self.update if own_update is None else own_update,
            "output": self.output,
            "callbacks": callbacks,
            "labels": self.labels,
            "progress": progress,
        }
        if self.engine != "simulate":
            where: dict[str, Any] = {
                "workers": self.workers,
                "engine": self.engine,
                "speeds": self.speeds,
                "slowdown": self.slowdown,
                "start": TOGETHER,
            }
            return train(self.problem, method, **where, **shared)
        try:
            return simulate(self.problem, method, self.source.speeds, **shared)
        except Interrupted as error:
            if error.run is None:
                raise
            return error.run


def check_engine(engine: str | RayCluster, speeds: Speeds | None) -> str:
    """Return the name of an engine, or raise if it is unknown or needs speeds."""
    name = "ray" if isinstance(engine, RayCluster) else engine
    if not isinstance(name, str) or name not in ENGINES:
        nearest = checks.did_you_mean(engine, ENGINES)
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {checks.shown(engine)}{nearest}")
    if name == "ray":
        import_ray()
    if name == "simulate" and speeds is None:
        raise ValueError("a simulated race needs speeds=, such as nw.speeds.LogNormal([1.0, 1.0, 10.0], sigma=0.2)")
    return name


def saver_of_runs(folder: str | Path | None, names: RunNames) -> Callable[[str, int, Run], Any] | None:
    """Return a function that saves a run of a method and a seed; None without a folder. Raise if it could not."""
    if folder is None:
        return None
    target = Path(folder)
    _check_folder(target, names.values())
    return lambda method, seed, run: run.save(target / names[method, seed])


def _check_folder(folder: Path, names: Iterable[str]) -> None:
    taken = [name for name in (SUMMARY, TUNINGS, *names) if is_taken(folder / name)]
    if taken:
        raise FileExistsError(
            f"{folder} already has {taken[0]!r}, and nothing is overwritten: choose another folder, such as "
            f"nw.fresh_folder({str(folder)!r})"
        )
    there = folder if folder.exists() else nearest_folder(folder)
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise NotADirectoryError(f"{there} is not a folder that can be written to: choose another folder for the race")


def callbacks_of_runs(
    log: Callable[[str], Iterable[Any]] | None, names: RunNames
) -> Callable[[str, int], Iterable[Any]]:
    """Return a function of a method's name and a seed that returns the callbacks of the run.

    ``log`` is called for the first run at once, so that its errors come before the race.
    """
    if log is None:
        return lambda *_: ()
    first = next(iter(names.values()))
    made = {first: checked_callbacks(log(first))}

    def callbacks(method: str, seed: int) -> Iterable[Any]:
        name = names[method, seed]
        return made[name] if name in made else log(name)

    return callbacks


def connection(engine: str | RayCluster, workers: int | None) -> contextlib.AbstractContextManager[Any]:
    """Connect to Ray once for all runs of a race, if they need it."""
    cluster = None if engine == "simulate" else checked_engine(engine)
    return connected(cluster, workers) if isinstance(cluster, RayCluster) else contextlib.nullcontext()


def importing_once(
    problem: Problem, engine: str | RayCluster, workers: int | None, speeds: Speeds | None
) -> contextlib.AbstractContextManager[Any]:
    """Let all runs of a race on this machine share the process that imports the library."""
    if engine != "processes":
        return contextlib.nullcontext()
    number = checked_workers(workers, speeds, None)
    return shared_zygote(problem, number) if isinstance(number, int) else contextlib.nullcontext()


def seconds_each(seconds: float | None, gradients: int | None, setup: RaceSetup) -> float:
    """Return the time that every method gets."""
    if seconds is not None:
        if gradients is not None:
            raise ValueError("give seconds= or gradients=, not both: every method gets the same time")
        return checks.positive(seconds, "seconds", "methods need time")
    number = checks.at_least(1, GRADIENTS if gradients is None else gradients, "gradients", "methods need some")
    wanted = number / setup.source.rate
    return wanted if setup.engine == "simulate" or gradients is not None else max(LEAST_SECONDS, wanted)


def unused_seeds(seeds: list[int], number: int) -> tuple[int, ...]:
    """Return so many seeds that are none of these: the next ones, or the first ones if there are none after these."""
    first = max(seeds) + 1 if max(seeds) + number <= LARGEST_SEED else 0
    return tuple(islice((seed for seed in count(first) if seed not in seeds), number))


def check_slowed(engine: str, slowdown: Mapping[int, float] | None, workers: int | None, speeds: Speeds | None) -> None:
    """Raise if ``slowdown`` would have no effect."""
    if slowdown is None:
        return
    if engine == "simulate":
        raise ValueError("slowdown= is for real workers: in a simulated race, give slow workers by speeds=")
    check_slowdown(slowdown, workers, speeds, checked_engine(engine))
