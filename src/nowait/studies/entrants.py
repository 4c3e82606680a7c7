"""The methods of a race, and how their stepsizes are tuned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.api.sweep import maker, sweep
from nowait.core import Constant, DelayAdaptive, Method, Output, Update, checks
from nowait.core.types import Floats
from nowait.methods import AsynchronousSGD, MinibatchSGD
from nowait.recording import Sweep
from nowait.speeds import Speeds
from nowait.theory.speedup import MINIBATCH

Make = Callable[[float], Method]
CONSTANT = "Asynchronous SGD, constant"
ADAPTIVE = "Asynchronous SGD, delay-adaptive"
ALONE = 0.5
"""The stepsize in units such as 1/L, if only one is tried."""
FARTHER = 4.0
"""Where the best stepsize is at an end, the next one tried is so many times larger or smaller."""


@final
@dataclass(frozen=True)
class Entrant:
    """A method in a race: a function of its stepsize, or a method as it is."""

    name: str
    make: Make
    tuned: bool
    """Whether its stepsize has still to be found."""


def the_papers_three() -> dict[str, Make]:
    """The methods of the paper's Figure 1."""
    return {
        MINIBATCH: lambda size: MinibatchSGD(Constant(size)),
        CONSTANT: lambda size: AsynchronousSGD(Constant(size)),
        ADAPTIVE: lambda size: AsynchronousSGD(DelayAdaptive(size)),
    }


def checked_entrants(methods: Mapping[str, Method | Make] | None) -> list[Entrant]:
    """The entrants by name; functions of the stepsize are tuned, methods run as they are."""
    if methods is None:
        methods = the_papers_three()
    if not isinstance(methods, Mapping) or not methods:
        raise TypeError(
            f'methods must be named, as in {{"mine": lambda size: nw.AsynchronousSGD(nw.Constant(size))}}, '
            f"got {methods!r}"
        )
    return [_entrant(str(name), method) for name, method in methods.items()]


def _entrant(name: str, method: Method | Make) -> Entrant:
    if isinstance(method, Method):
        return Entrant(name, lambda _: method, tuned=False)
    make = maker(method)
    checks.instance(make(1.0), Method, f"methods[{name!r}](stepsize)", "nw.AsynchronousSGD(nw.Constant(stepsize))")
    return Entrant(name, make, tuned=True)


@final
@dataclass(frozen=True)
class Tuning:
    """How the stepsizes of a race are found: by sweeps in virtual time."""

    problem: Any
    speeds: Speeds
    unit: float
    """The order of the stepsizes to try, such as 1/L."""
    seconds: float
    """The virtual time of every run."""
    seed: int
    """One that does not race: a stepsize that suits these samples by chance gains nothing from it."""
    sizes: int
    """How many stepsizes are tried, all in all."""
    update: Update | None = None
    output: Output | None = None
    progress: bool | None = False

    def of(self, entrant: Entrant) -> Sweep:
        """The losses for so many stepsizes: at first a grid, then more beyond its ends or around the best.

        A method that makes no step in the time is not tuned: its stepsizes are all as good.
        """
        unit = self.unit * _scale(entrant, self.speeds.num_workers)
        tried = self._sweep(entrant, (first_grid(self.sizes) * unit).tolist())
        while len(tried.stepsizes) < self.sizes and makes_steps(tried):
            more = further_sizes(tried)[: self.sizes - len(tried.stepsizes)]
            tried = _together(tried, self._sweep(entrant, more))
        return tried

    def _sweep(self, entrant: Entrant, sizes: list[float]) -> Sweep:
        return sweep(
            self.problem,
            entrant.make,
            self.speeds,
            stepsizes=sizes,
            seeds=[self.seed],
            seconds=self.seconds,
            update=self.update,
            output=self.output,
            progress=self.progress,
        )


def first_grid(count: int) -> Floats:
    """About two thirds of ``count`` stepsizes, each half the one before, around 1.

    >>> first_grid(1).tolist(), first_grid(2).tolist(), first_grid(7).tolist()
    ([0.5], [2.0, 1.0], [4.0, 2.0, 1.0, 0.5, 0.25])
    """
    first = count - count // 3
    return np.array([ALONE]) if first == 1 else np.asarray(2.0 ** (first // 2 - np.arange(first)))


def further_sizes(tried: Sweep) -> list[float]:
    """Two more stepsizes: beyond the end that the best one is at, else between the best one and its neighbours."""
    sizes = tried.stepsizes
    if tried.diverged.any(axis=1).all() or tried.best == sizes.min():
        return [float(sizes.min() / FARTHER), float(sizes.min() / FARTHER**2)]
    if tried.best == sizes.max():
        return [float(sizes.max() * FARTHER), float(sizes.max() * FARTHER**2)]
    above, below = sizes[sizes > tried.best].min(), sizes[sizes < tried.best].max()
    return [math.sqrt(tried.best * above), math.sqrt(tried.best * below)]


def makes_steps(tuning: Sweep) -> bool:
    """Did any run make a step?"""
    return bool(np.nan_to_num(tuning.step).max() > 0)


def _together(first: Sweep, second: Sweep) -> Sweep:
    """Two sweeps over the same seeds as one, the largest stepsize first."""
    runs = {
        (size, seed): one.run(place, number)
        for one in (first, second)
        for place, size in enumerate(one.stepsizes.tolist())
        for number, seed in enumerate(one.seeds.tolist())
    }
    sizes = np.array(sorted({size for size, _ in runs}, reverse=True))
    engine = first.engine if first.engine == second.engine else "reference"
    return Sweep.of(sizes, first.seeds, runs, engine, first.config)


def best_of(tuning: Sweep) -> float:
    """The best stepsize; in the middle of the grid if all are as good, the smallest if all diverged."""
    if not makes_steps(tuning):
        return float(tuning.stepsizes[len(tuning.stepsizes) // 2])
    return float(tuning.stepsizes.min()) if tuning.diverged.any(axis=1).all() else tuning.best


def _scale(entrant: Entrant, workers: int) -> float:
    """Steps along gradients that are d steps old have to be about d times shorter."""
    return 1.0 / entrant.make(1.0).stepsize_divisor(workers)
