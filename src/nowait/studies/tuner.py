"""Finds the stepsize of a method by sweeps in virtual time: the one tuner of ``nw.race`` and ``nw.plan``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from nowait.api.sweep import sweep
from nowait.core import Method, Output, Problem, Sgd, Update
from nowait.core.capabilities import Capabilities
from nowait.core.types import Floats
from nowait.recording import Sweep
from nowait.speeds import Faults, Speeds
from nowait.theory import Constants

Make = Callable[[float], Method]
ALONE = 0.5
"""The stepsize in units such as 1/L, if only one is tried."""
FARTHER = 4.0
"""Beyond an end of the grid, the next stepsize is this many times larger or smaller."""
MARGIN = 1.5
"""Stepsizes for real workers are smaller by this factor than any that diverged in a simulation."""
NEVER = 1e300
"""A time after the end of every simulation."""


@final
@dataclass(frozen=True)
class Tuner:
    """The sweeps are on this problem, with these speeds and these seeds."""

    problem: Any
    speeds: Speeds
    unit: float
    """The order of magnitude of the stepsizes to try, such as 1/L, for gradients without delay."""
    seconds: float
    """The virtual time of every run."""
    seeds: tuple[int, ...]
    sizes: int
    """How many stepsizes are tried in total."""
    update: Update | None = None
    output: Output | None = None
    progress: bool | None = False
    constants: Constants | None = None
    """The estimated constants that ``unit`` was computed from, if they are known."""
    evaluations: int = 20
    """About how many evaluations a run gets up to its target, if it measures the time to that."""

    def tune(self, make: Make, workers: Iterable[int] | None = None, known: Sweep | None = None) -> Sweep:
        """Return the losses for ``sizes`` stepsizes: a grid first, then more beyond its ends or around the best.

        ``workers`` are those that take part; None is all. A method that makes no step in the time is not tuned
        further: all its stepsizes are equally good. Stepsizes that are ``known`` already count, and are part of the
        result. If the method names another one that is tuned in its place, the losses are those of the latter.
        """
        if is_tuned_as_another(make):
            return self._for_another(make).tune(_another(make), workers, known)
        taking_part = range(self.speeds.num_workers) if workers is None else list(workers)
        unit = self.unit / make(1.0).stepsize_divisor(len(taking_part))
        grid = first_grid(self.sizes) * unit
        if known is None:
            tried = self.sweep(make, grid, self.seconds, taking_part)
        else:
            new = [size for size in grid if size not in known.stepsizes][: self.sizes - len(known.stepsizes)]
            tried = _together(known, self.sweep(make, new, self.seconds, taking_part)) if new else known
        while len(tried.stepsizes) < self.sizes and makes_steps(tried):
            more = further_sizes(tried)[: self.sizes - len(tried.stepsizes)]
            tried = _together(tried, self.sweep(make, more, self.seconds, taking_part))
        return tried

    def _for_another(self, make: Make) -> Tuner:
        """Return the tuner with the update of the method that is tuned in place of another one."""
        method = make(1.0)
        _, update = method.tuned_as(update_of(self.problem, method, self.update))
        return replace(self, update=update)

    def sweep(
        self,
        make: Make,
        sizes: Iterable[float],
        seconds: float,
        workers: Iterable[int],
        seeds: tuple[int, ...] | None = None,
        evaluate_every: int | None = None,
    ) -> Sweep:
        """Simulate the method with these stepsizes for some virtual time. Other workers never join.

        ``seeds`` None are those of the tuner.
        """
        others = sorted(set(range(self.speeds.num_workers)) - set(workers))
        return sweep(
            self.problem,
            make,
            self.speeds,
            stepsizes=[float(size) for size in sizes],
            seeds=self.seeds if seeds is None else seeds,
            seconds=seconds,
            evaluate_every=evaluate_every,
            update=self.update,
            output=self.output,
            faults=Faults([(NEVER, "join", worker) for worker in others]),
            progress=self.progress,
        )


def is_tuned_as_another(make: Make) -> bool:
    """Return True if another method is tuned in place of this one, see ``Method.tuned_as``."""
    method = make(1.0)
    return method.tuned_as(Sgd())[0] is not method


def _another(make: Make) -> Make:
    return lambda size: make(size).tuned_as(Sgd())[0]


def update_of(problem: Problem, method: Method, given: Update | None) -> Update:
    """Return the update of a run: the one that was given, or the default of the problem or the method."""
    return Capabilities.of(problem).update_for(method) if given is None else given


def first_grid(count: int) -> Floats:
    """Return about two thirds of ``count`` stepsizes, each half the one before, around 1.

    >>> first_grid(1).tolist(), first_grid(2).tolist(), first_grid(7).tolist()
    ([0.5], [2.0, 1.0], [4.0, 2.0, 1.0, 0.5, 0.25])
    """
    first = count - count // 3
    return np.array([ALONE]) if first == 1 else np.asarray(2.0 ** (first // 2 - np.arange(first)))


def further_sizes(tried: Sweep) -> list[float]:
    """Return two more stepsizes: beyond the end of the grid that the best is at, else on both sides of the best."""
    sizes = tried.stepsizes
    if tried.diverged.any(axis=1).all() or tried.best == sizes.min():
        return [float(sizes.min() / FARTHER), float(sizes.min() / FARTHER**2)]
    if tried.best == sizes.max():
        return [float(sizes.max() * FARTHER), float(sizes.max() * FARTHER**2)]
    above, below = sizes[sizes > tried.best].min(), sizes[sizes < tried.best].max()
    return [math.sqrt(tried.best * above), math.sqrt(tried.best * below)]


def makes_steps(tried: Sweep) -> bool:
    """Return True if any run of a sweep made a step."""
    return bool(np.nan_to_num(tried.step).max() > 0)


def best_of(tried: Sweep) -> float:
    """Return the best stepsize; the middle one if no run made a step, the smallest if all diverged."""
    if not makes_steps(tried):
        return float(tried.stepsizes[len(tried.stepsizes) // 2])
    return float(tried.stepsizes.min()) if tried.diverged.any(axis=1).all() else tried.best


def steady_of(tried: Sweep) -> float:
    """Return the best stepsize that is ``MARGIN`` times smaller than any that diverged, if there is one.

    For real workers, whose delays are not quite those of the trials.
    """
    diverged = tried.diverged.any(axis=1)
    steady = tried.stepsizes * MARGIN <= tried.stepsizes[diverged].min(initial=math.inf)
    if diverged.all() or not steady.any():
        return best_of(tried)
    losses = np.where(steady, np.median(tried.decisive, axis=1), math.inf)
    return float(tried.stepsizes[np.argmin(losses)]) if makes_steps(tried) else best_of(tried)


def _together(first: Sweep, second: Sweep) -> Sweep:
    """Return two sweeps over the same seeds as one, the largest stepsize first."""
    runs = {
        (size, seed): one.run(place, number)
        for one in (first, second)
        for place, size in enumerate(one.stepsizes.tolist())
        for number, seed in enumerate(one.seeds.tolist())
    }
    sizes = np.array(sorted({size for size, _ in runs}, reverse=True))
    engine = first.engine if first.engine == second.engine else "reference"
    return Sweep.of(sizes, first.seeds, runs, engine, first.config)
