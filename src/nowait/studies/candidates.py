"""The methods that a plan compares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core import Constant, DelayAdaptive, Method
from nowait.core.types import Floats, Integers
from nowait.methods import (
    AsynchronousSGD,
    GradientTable,
    MaleniaSGD,
    MinibatchSGD,
    MSynchronousSGD,
    RennalaSGD,
    RescaledASGD,
    RingleaderASGD,
    RingmasterASGD,
)
from nowait.studies.advice import STANDARD_ERRORS
from nowait.studies.entrants import Settings, checked_entrants
from nowait.studies.tuner import Make, is_tuned_as_another
from nowait.theory.speedup import MINIBATCH, Speedup

SYNCHRONOUS, ROUNDS, ASYNCHRONOUS, OWN = "synchronous", "rounds", "asynchronous", "own"
"""Waits for all workers; steps along fresh gradients of whichever workers are fast; applies every gradient; the user's.
"""
NOTABLE_GAP = 1.5
"""A gap between two successive speeds by at least this factor separates the fast from the slow workers."""
LEAST_GAP = 1.1
"""Workers are only separated where the gap is at least this factor, and so many standard errors wide."""
NEARBY = 1 / 8
"""The cut near the harmonic mean is at the widest gap among so many of the workers on either side."""


@final
@dataclass(frozen=True)
class Candidate:
    """A method, and the workers it uses."""

    name: str
    make: Make
    workers: tuple[int, ...]
    kind: str = ASYNCHRONOUS
    tuned: bool = True
    """False for a method of the user's that is used with the stepsize it has."""

    @property
    def refined(self) -> bool:
        """True if its own runs tune its stepsize, which is not known before."""
        return self.tuned and not is_tuned_as_another(self.make)


def candidates(speedup: Speedup, heterogeneous: bool, errors: Floats | None = None) -> list[Candidate]:
    """Return the methods to simulate for these speeds, simple ones first; the first is minibatch SGD with all workers.

    ``errors`` are those of ``smaller_groups``.
    """
    everybody = tuple(range(speedup.workers))
    if heterogeneous:
        return _for_own_data(everybody)
    groups = smaller_groups(speedup, errors)
    return [
        *_for_same_data(everybody),
        *(_not_waiting_for_the_slow(len(some), everybody) for some in groups),
        *(candidate for some in groups for candidate in _without_the_slow(some, speedup.workers)),
    ]


def own_candidates(methods: Mapping[str, Method | Make] | None, workers: int) -> list[Candidate]:
    """Return the methods of the user's own, with all workers: functions of the stepsize, or methods as they are."""
    if methods is None:
        return []
    everybody = tuple(range(workers))
    entrants = checked_entrants(methods)
    for entrant in entrants:
        if entrant.momenta or entrant.settings_of or entrant.make(Settings(1.0)).update is not None:
            raise ValueError(
                f"methods[{entrant.name!r}] has a momentum or an update of its own, but a plan compares methods with "
                f"plain SGD: use nw.race, or give a function of the stepsize that returns a method"
            )
    return [Candidate(one.name, one.method, everybody, OWN, one.tuned) for one in entrants]


def smaller_groups(speedup: Speedup, errors: Floats | None = None) -> list[tuple[int, ...]]:
    """Return groups of fast workers: those up to about the harmonic mean, and those before the widest gap of speeds.

    ``errors`` are the standard errors of the logarithms of the workers' mean seconds; None is no error. There is no
    group whose slowest worker is not significantly faster than the others.
    """
    order = np.argsort(speedup.seconds, kind="stable")
    slow_last = speedup.seconds[order]
    if len(order) < 2:
        return []
    gaps = np.log(slow_last[1:] / slow_last[:-1])
    if errors is not None:
        unsure = STANDARD_ERRORS * np.hypot(errors[order][1:], errors[order][:-1])
        gaps = np.where(gaps > unsure, gaps, 0.0)
    near_mean = int((slow_last <= speedup.harmonic_mean * (1 + 1e-9)).sum())
    around = _nearby(near_mean, len(order))
    cuts = [(int(around[gaps[around - 1].argmax()]), LEAST_GAP), (1 + int(gaps.argmax()), NOTABLE_GAP)]
    wide = {count for count, least in cuts if gaps[count - 1] >= math.log(least)}
    return [tuple(speedup.fastest(count)) for count in sorted(wide)]


def _nearby(count: int, workers: int) -> Integers:
    """Return numbers of workers near this one that leave some out, the nearest first."""
    reach = int(workers * NEARBY)
    numbers = np.arange(max(1, min(count, workers - 1) - reach), min(workers - 1, count + reach) + 1)
    return numbers[np.argsort(abs(numbers - count), kind="stable")]


def _for_same_data(workers: tuple[int, ...]) -> list[Candidate]:
    count = len(workers)
    return [
        Candidate(MINIBATCH, _minibatch, workers, SYNCHRONOUS),
        Candidate("Asynchronous SGD, constant", lambda size: AsynchronousSGD(Constant(size)), workers),
        Candidate("Asynchronous SGD, delay-adaptive", _delay_adaptive, workers),
        Candidate(
            f"Ringmaster ASGD, delays to {2 * count}",
            lambda size: RingmasterASGD(Constant(size), max_delay=2 * count),
            workers,
        ),
        Candidate(f"Rennala SGD, batch {count}", lambda size: RennalaSGD(Constant(size), batch=count), workers, ROUNDS),
    ]


def _not_waiting_for_the_slow(count: int, workers: tuple[int, ...]) -> Candidate:
    name = f"m-Synchronous SGD, the first {count} of {len(workers)}"
    return Candidate(name, lambda size: MSynchronousSGD(Constant(size), m=count), workers, ROUNDS)


def _without_the_slow(workers: tuple[int, ...], all_workers: int) -> list[Candidate]:
    count, ending = len(workers), f", the {len(workers)} fastest of {all_workers}"
    return [
        Candidate(MINIBATCH + ending, _minibatch, workers, SYNCHRONOUS),
        Candidate("Asynchronous SGD, delay-adaptive" + ending, _delay_adaptive, workers),
    ][: 1 if count == 1 else 2]  # with one worker both are the same


def _for_own_data(workers: tuple[int, ...]) -> list[Candidate]:
    """Return methods that weigh all workers' data equally; no worker can be left out."""
    count = len(workers)
    return [
        Candidate(MINIBATCH, _minibatch, workers, SYNCHRONOUS),
        Candidate("Gradient table", lambda size: GradientTable(Constant(size)), workers),
        Candidate("Ringleader ASGD", lambda size: RingleaderASGD(Constant(size)), workers),
        Candidate(
            f"Malenia SGD, batch {2 * count}",
            lambda size: MaleniaSGD(Constant(size), batch=2 * count),
            workers,
            ROUNDS,
        ),
        Candidate("Rescaled ASGD", lambda size: RescaledASGD(Constant(size)), workers),
    ]


def _minibatch(size: float) -> Method:
    return MinibatchSGD(Constant(size))


def _delay_adaptive(size: float) -> Method:
    return AsynchronousSGD(DelayAdaptive(size))
