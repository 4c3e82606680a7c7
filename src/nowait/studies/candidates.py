"""The methods that a plan compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core import Constant, DelayAdaptive, Method
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
from nowait.studies.tuner import Make
from nowait.theory.speedup import MINIBATCH, Speedup

SYNCHRONOUS, ROUNDS, ASYNCHRONOUS = "synchronous", "rounds", "asynchronous"
"""Waits for all workers; steps along fresh gradients of whichever workers are fast; applies every gradient."""
NOTABLE_GAP = 1.5
"""A gap between two successive speeds by at least this factor separates the fast from the slow workers."""


@final
@dataclass(frozen=True)
class Candidate:
    """A method, and the workers it uses."""

    name: str
    make: Make
    workers: tuple[int, ...]
    kind: str = ASYNCHRONOUS


def candidates(speedup: Speedup, heterogeneous: bool) -> list[Candidate]:
    """Return the methods to simulate for these speeds; the first is minibatch SGD with all workers."""
    everybody = tuple(range(speedup.workers))
    if heterogeneous:
        return _for_own_data(everybody)
    groups = smaller_groups(speedup)
    return [
        *_for_same_data(everybody),
        *(_not_waiting_for_the_slow(len(some), everybody) for some in groups),
        *(candidate for some in groups for candidate in _without_the_slow(some, speedup.workers)),
    ]


def smaller_groups(speedup: Speedup) -> list[tuple[int, ...]]:
    """Return groups of fast workers: those up to the harmonic mean, and those before the widest gap of speeds."""
    slow_last = np.sort(speedup.seconds)
    counts = {int((speedup.seconds <= speedup.harmonic_mean * (1 + 1e-9)).sum())}
    gaps = slow_last[1:] / slow_last[:-1]
    if len(gaps) and gaps.max() >= NOTABLE_GAP:
        counts.add(1 + int(gaps.argmax()))
    return [tuple(speedup.fastest(count)) for count in sorted(counts) if 0 < count < speedup.workers]


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
