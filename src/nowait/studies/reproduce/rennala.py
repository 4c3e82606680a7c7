"""The quadratic experiments of the paper that introduced Rennala SGD."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from nowait.core import DelayAdaptive
from nowait.methods import AsynchronousSGD, MinibatchSGD, RennalaSGD
from nowait.speeds import Fixed, Speeds
from nowait.studies.reproduce.measured import Measured, times
from nowait.studies.reproduce.paper import Claim, Entry, Panel, Paper, Verdict, agreement_of
from nowait.studies.reproduce.tridiagonal import ProgressQuadratic

RENNALA, ASYNCHRONOUS, MINIBATCH = "Rennala SGD", "asynchronous SGD, delay-adaptive", "minibatch SGD"
PROBABILITY = 0.01
BATCHES = (3, 10, 30)
WORKERS = {100: 2_000.0, 1_000: 600.0, 10_000: 200.0}
"""Seconds of virtual time by the number of workers."""


def square_roots(workers: int) -> Speeds:
    """Return workers that need √1, √2, √3, … seconds."""
    return Fixed(np.sqrt(np.arange(1, workers + 1)).tolist())


def _title(workers: int) -> str:
    return f"{workers:,} workers"


def _rennala(workers: int) -> Entry:
    variants = {f"batch {batch}": partial(RennalaSGD, batch=batch) for batch in BATCHES if batch <= workers}
    return Entry(RENNALA, variants, (0.5, 1.0, 1.5), fastest=_used_by(workers, max(BATCHES)))


def _used_by(workers: int, batch: int) -> int:
    """Return how many of the fastest workers can finish a gradient while ``batch`` gradients are collected.

    A round of t seconds has at least Σ_i ⌊t/√i⌋ gradients, and no gradient of a worker that needs longer than t.
    """
    for used in range(1, workers + 1):
        if np.floor(math.sqrt(used) / np.sqrt(np.arange(1, used + 1))).sum() >= batch:
            return used
    return workers


def panels(quick: bool) -> list[Panel]:
    """Return one panel for every number of workers."""
    dimension, budgets, seeds = (50, {20: 200.0, 100: 100.0}, 1) if quick else (1_000, WORKERS, 2)
    problem = ProgressQuadratic(dimension, PROBABILITY, start=math.sqrt(dimension))
    found = []
    for workers, seconds in budgets.items():
        largest = 2.0 ** -math.ceil(math.log2(workers))
        entries = (
            _rennala(workers),
            Entry.of(
                ASYNCHRONOUS,
                lambda size: AsynchronousSGD(DelayAdaptive(size)),
                *(largest * 2.0**power for power in (-1, 0, 1, 2)),
            ),
            Entry.of(MINIBATCH, MinibatchSGD, 0.5, 1.0, 1.5),
        )
        found.append(Panel(_title(workers), problem, square_roots, workers, entries, seeds, seconds=seconds))
    return found


def _speedups(measured: Measured, other: str) -> dict[str, float]:
    titles = dict.fromkeys(curve.panel for curve in measured)
    return {title: measured.speedup(title, RENNALA, other) for title in titles}


def _is_first(measured: Measured) -> Verdict:
    over = {other: _speedups(measured, other) for other in (ASYNCHRONOUS, MINIBATCH)}
    got = "; ".join(
        f"{title}: {times(over[ASYNCHRONOUS][title])} than asynchronous SGD, {times(over[MINIBATCH][title])} than "
        f"minibatch SGD"
        for title in over[ASYNCHRONOUS]
    )
    return Verdict(got, agreement_of(value > 1 for by_title in over.values() for value in by_title.values()))


def _gap_grows(measured: Measured) -> Verdict:
    over = {other: list(_speedups(measured, other).values()) for other in (ASYNCHRONOUS, MINIBATCH)}
    got = "; ".join(f"over {name}: {', '.join(f'{value:.2g}' for value in values)}" for name, values in over.items())
    return Verdict(got, agreement_of(values == sorted(values) for values in over.values()))


PAPER = Paper(
    name="rennala",
    citation=(
        'Tyurin and Richtárik, "Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed '
        'Computation Model" (NeurIPS 2023), experiments with quadratics'
    ),
    shows="a quadratic, worker i needs √i seconds: Rennala, asynchronous and minibatch SGD with 100 to 10,000 workers",
    minutes=2.0,
    panels=panels,
    claims=(
        Claim("experiments", "Rennala SGD reaches an error sooner than asynchronous and minibatch SGD", _is_first),
        Claim("experiments", "its lead grows with the number of workers", _gap_grows),
    ),
    differences=(
        "We had no access to the text of the experiments. We assume: the tridiagonal quadratic with 1,000 params, "
        "start (√d, 0, …, 0), noise that sets the next entry to 0 with probability 0.99, worker i needs √i seconds. "
        "The noise and these times are in the authors' public library (github.com/k3nfalt).",
        "Stepsizes are tuned over few values and batches over 3, 10 and 30, on one seed.",
        "Virtual time is 2,000, 600 and 200 seconds for 100, 1,000 and 10,000 workers.",
    ),
)
