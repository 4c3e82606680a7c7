"""The methods that a plan compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core import Constant, DelayAdaptive, Method
from nowait.methods import (
    AsynchronousSGD,
    GradientTable,
    MaleniaSGD,
    MinibatchSGD,
    RennalaSGD,
    RescaledASGD,
    RingleaderASGD,
    RingmasterASGD,
)
from nowait.theory.speedup import MINIBATCH, Speedup

Make = Callable[[float], Method]
SYNCHRONOUS, ROUNDS, ASYNCHRONOUS = "synchronous", "rounds", "asynchronous"
"""Waits for everybody; makes rounds of the gradients of whoever is fast; applies gradients as they come."""
NOTABLE_GAP = 1.5
"""Workers are a group of their own if they are so many times slower than the next faster one."""


@final
@dataclass(frozen=True)
class Candidate:
    """A method, and the workers it uses. Stepsizes to try are around ``scale``/L."""

    name: str
    make: Make
    workers: tuple[int, ...]
    scale: float
    kind: str = ASYNCHRONOUS


def candidates(speedup: Speedup, heterogeneous: bool) -> list[Candidate]:
    """The methods worth a look for these speeds, the synchronous one with everybody first."""
    everybody = tuple(range(speedup.workers))
    if heterogeneous:
        return _for_own_data(everybody)
    return _for_same_data(everybody) + [
        candidate for some in smaller_groups(speedup) for candidate in _without_the_slow(some, speedup.workers)
    ]


def smaller_groups(speedup: Speedup) -> list[tuple[int, ...]]:
    """The fast workers: those at most as slow as the harmonic mean, and those before the widest gap of speeds."""
    slow_last = np.sort(speedup.seconds)
    counts = {int((speedup.seconds <= speedup.harmonic_mean * (1 + 1e-9)).sum())}
    gaps = slow_last[1:] / slow_last[:-1]
    if len(gaps) and gaps.max() >= NOTABLE_GAP:
        counts.add(1 + int(gaps.argmax()))
    return [tuple(speedup.fastest(count)) for count in sorted(counts) if 0 < count < speedup.workers]


def _for_same_data(workers: tuple[int, ...]) -> list[Candidate]:
    count = len(workers)
    return [
        Candidate(MINIBATCH, _minibatch, workers, 1.0, SYNCHRONOUS),
        Candidate("Asynchronous SGD, constant", lambda size: AsynchronousSGD(Constant(size)), workers, 1 / count),
        Candidate("Asynchronous SGD, delay-adaptive", _delay_adaptive, workers, 1 / count),
        Candidate(
            f"Ringmaster ASGD, delays to {2 * count}",
            lambda size: RingmasterASGD(Constant(size), max_delay=2 * count),
            workers,
            1 / count,
        ),
        Candidate(
            f"Rennala SGD, batch {count}", lambda size: RennalaSGD(Constant(size), batch=count), workers, 1.0, ROUNDS
        ),
    ]


def _without_the_slow(workers: tuple[int, ...], all_workers: int) -> list[Candidate]:
    count, ending = len(workers), f", the {len(workers)} fastest of {all_workers}"
    return [
        Candidate(MINIBATCH + ending, _minibatch, workers, 1.0, SYNCHRONOUS),
        Candidate("Asynchronous SGD, delay-adaptive" + ending, _delay_adaptive, workers, 1 / count),
    ][: 1 if count == 1 else 2]  # one worker alone is the same either way


def _for_own_data(workers: tuple[int, ...]) -> list[Candidate]:
    """Methods that do not favour the fast workers' data; nobody can be left out."""
    count = len(workers)
    return [
        Candidate(MINIBATCH, _minibatch, workers, 1.0, SYNCHRONOUS),
        Candidate("Gradient table", lambda size: GradientTable(Constant(size)), workers, 1 / count),
        Candidate("Ringleader ASGD", lambda size: RingleaderASGD(Constant(size)), workers, 1 / count),
        Candidate(
            f"Malenia SGD, batch {2 * count}",
            lambda size: MaleniaSGD(Constant(size), batch=2 * count),
            workers,
            1.0,
            ROUNDS,
        ),
        Candidate("Rescaled ASGD", lambda size: RescaledASGD(Constant(size)), workers, 1 / count),
    ]


def _minibatch(size: float) -> Method:
    return MinibatchSGD(Constant(size))


def _delay_adaptive(size: float) -> Method:
    return AsynchronousSGD(DelayAdaptive(size))
