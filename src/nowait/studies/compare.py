"""Compares methods by their times to a target: with tuned stepsizes, and with seeds with which nothing was tuned."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar, final

import numpy as np

from nowait.core import checks
from nowait.core.types import Floats
from nowait.engines.progress import Progress
from nowait.engines.watch import Watch
from nowait.recording import Sweep
from nowait.studies.advice import Simulated
from nowait.studies.candidates import Candidate
from nowait.studies.quiet import quiet
from nowait.studies.smoothing import smoothed
from nowait.studies.target import choose_stepsize, fresh_seeds, measured, work_of
from nowait.studies.tuner import Tuner, best_of

SHARE_FOR_TARGET = 1 / 2
"""The default target is a loss that methods reach in this share of the simulated time."""
FAR_ENOUGH = 1e-3
"""The default target is at least this share of the distance between first and lowest loss above the lowest."""


Result = TypeVar("Result")


@final
@dataclass(frozen=True)
class Compared:
    """The target, and what was simulated."""

    target: float
    lowest: float
    """The lowest loss of all runs."""
    simulated: list[Simulated]
    """In the order of the candidates."""


def compare(
    tuner: Tuner, candidates: list[Candidate], target_loss: float | None, refinements: int, progress: bool | None
) -> Compared:
    """Simulate all candidates, with stepsizes tuned for the time to the target; None finds a target."""
    with Watch() as watch, Progress("simulating", progress) as bar, quiet():
        done = _Counter(watch, bar, 3 * len(candidates))
        tuned = [done.after(_tuned(tuner, candidate)) for candidate in candidates]
        target = find_target(tuned, target_loss, tuner.seconds)
        work = sum(map(work_of, tuned))
        chosen = [
            done.after(choose_stepsize(tuner, candidate, result, target, refinements, work / len(candidates)))
            for candidate, result in zip(candidates, tuned, strict=True)
        ]
        seeds = fresh_seeds(tuner, chosen, work)
        simulated = [
            done.after(replace(measured(tuner, one, target, seeds), rank=rank)) for rank, one in enumerate(chosen)
        ]
    return Compared(target, _lowest(tuned), simulated)


@final
@dataclass
class _Counter:
    """Shows the progress after every part of the work."""

    watch: Watch
    bar: Progress
    parts: int
    finished: int = 0

    def after(self, result: Result) -> Result:
        """Return the result of a part. Raise if a signal came meanwhile."""
        self.watch.check()
        self.finished += 1
        self.bar.show(self.finished / self.parts)
        return result


def _tuned(tuner: Tuner, candidate: Candidate) -> Sweep:
    """Return the losses of a method for several stepsizes, or for the one that it has or gets from another method."""
    if candidate.refined:
        return tuner.tune(candidate.make, candidate.workers)
    size = best_of(tuner.tune(candidate.make, candidate.workers)) if candidate.tuned else 1.0
    return tuner.sweep(candidate.make, [size], tuner.seconds, candidate.workers)


def find_target(tuned: list[Sweep], asked: float | None, seconds: float) -> float:
    """Return the loss to reach: the one asked for, or the lowest that every method reaches with all seeds.

    The losses are smoothed, so that one lucky evaluation sets no target. Methods that make no progress in the simulated
    time, such as a minibatch with a dead worker, are not considered.
    """
    start = float(tuned[0].curves[0, 0, 0])
    if not math.isfinite(start):
        raise ValueError(f"the loss at the start is {start}: there is nothing to plan for")
    if asked is not None:
        target = checks.finite(asked, "target_loss", "it is the loss to reach")
        if target >= start:
            raise ValueError(f"target_loss={target:g} is reached already: the loss at the start is {start:g}")
        return target
    reached = [_reached_by_all(result, SHARE_FOR_TARGET * seconds) for result in tuned]
    lowest = _lowest(tuned)
    enough = lowest + FAR_ENOUGH * (start - lowest)
    some = [loss for loss in reached if loss < start - FAR_ENOUGH * (start - lowest)]
    if not some:
        raise ValueError(f"no method gets below the loss at the start, {start:g}: is it the minimum already?")
    return max(*some, enough)


def _reached_by_all(result: Sweep, seconds: float) -> float:
    """Return the lowest smoothed loss that a stepsize reaches by this time with every seed."""
    lowest = [
        [
            _lowest_until(result.curves[place, seed], result.time[place, seed], seconds)
            for seed in range(len(result.seeds))
        ]
        for place in range(len(result.stepsizes))
    ]
    return float(np.where(result.diverged, np.inf, lowest).max(axis=1).min())


def _lowest_until(losses: Floats, times: Floats, seconds: float) -> float:
    early = smoothed(losses)[times <= seconds]
    return float(np.nanmin(early))


def _lowest(tuned: list[Sweep]) -> float:
    """Return the lowest loss of all runs."""
    return min(float(np.where(np.isfinite(result.curves), result.curves, np.inf).min()) for result in tuned)
