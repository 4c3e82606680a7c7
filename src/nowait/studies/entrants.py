"""The methods of a race, and how their stepsizes are tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.api.sweep import maker, sweep
from nowait.core import Constant, DelayAdaptive, Method, checks
from nowait.core.types import Floats
from nowait.methods import AsynchronousSGD, MinibatchSGD
from nowait.recording import Sweep
from nowait.speeds import Speeds
from nowait.theory.speedup import MINIBATCH

Make = Callable[[float], Method]
CONSTANT = "Asynchronous SGD, constant"
ADAPTIVE = "Asynchronous SGD, delay-adaptive"
GRID = 2.0 ** np.arange(2.0, -1.5, -0.5)
"""Stepsizes to try at first, in units such as 1/L, or a share of 1/M of them where single gradients make steps."""
SHIFT = 4.0
MOST_MOVES = 6


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


def tune(
    problem: Any,
    entrant: Entrant,
    speeds: Speeds,
    unit: float,
    seconds: float,
    *,
    seed: int = 0,
    grid: Floats = GRID,
    progress: bool | None = False,
) -> Sweep:
    """The final losses for a grid of stepsizes in virtual time; the grid is moved while its best is at an end.

    A method that makes no step in the time is not tuned: its stepsizes are all as good.
    """
    scale = _scale(entrant, speeds.num_workers)
    for _ in range(MOST_MOVES):
        sizes: Floats = grid * scale * unit
        result = sweep(
            problem, entrant.make, speeds, stepsizes=sizes.tolist(), seeds=[seed], seconds=seconds, progress=progress
        )
        if not np.nan_to_num(result.step).max() > 0:
            break
        if result.diverged.all() or result.best_place == len(sizes) - 1:
            scale /= SHIFT
        elif result.best_place == 0:
            scale *= SHIFT
        else:
            break
    return result


def best_of(tuning: Sweep) -> float:
    """The best stepsize; in the middle of the grid if all are as good, the smallest if all diverged."""
    if not np.nan_to_num(tuning.step).max() > 0:
        return float(tuning.stepsizes[len(tuning.stepsizes) // 2])
    return float(tuning.stepsizes.min()) if tuning.diverged.any(axis=1).all() else tuning.best


def _scale(entrant: Entrant, workers: int) -> float:
    """A single gradient of M in flight takes about 1/M of a minibatch's step."""
    return 1.0 / workers if entrant.make(1.0).schedule() is not None else 1.0
