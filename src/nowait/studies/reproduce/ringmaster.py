"""The quadratic experiment of the paper that introduced Ringmaster ASGD."""

from __future__ import annotations

from functools import partial

import numpy as np

from nowait.core import DelayAdaptive
from nowait.methods import AsynchronousSGD, RennalaSGD, RingmasterASGD
from nowait.speeds import HalfNormal, Speeds
from nowait.studies.reproduce.measured import Measured, times
from nowait.studies.reproduce.paper import Claim, Entry, Panel, Paper, Verdict, agreement_of
from nowait.studies.reproduce.tridiagonal import SharedNoiseQuadratic, TridiagonalQuadratic

RINGMASTER, ASYNCHRONOUS, RENNALA = "Ringmaster ASGD", "asynchronous SGD, delay-adaptive", "Rennala SGD"
INDEPENDENT, LITTLE, SHARED = (
    "independent noise of 0.01 per entry",
    "independent noise of 0.001 per entry",
    "one noise of 0.01 for all entries",
)
TITLES = (INDEPENDENT, LITTLE, SHARED)
WORKERS = 6_174
USED = 128
"""No round of Rennala SGD with these batches lasts as long as a gradient of any other worker."""


def half_normal(workers: int) -> Speeds:
    """Return workers whose gradients take i + |N(0, i)| seconds."""
    numbers = np.arange(1, workers + 1, dtype=np.float64)
    return HalfNormal(numbers.tolist(), np.sqrt(numbers).tolist())


def powers_of_5(*exponents: int) -> tuple[float, ...]:
    """Return 5 to these powers: the grid of the paper."""
    return tuple(5.0**exponent for exponent in exponents)


def _entries(workers: int) -> tuple[Entry, ...]:
    limits = [max(1, workers // 4**power) for power in ((2, 3, 4) if workers > 1_000 else (1, 2))]
    batches = [batch for batch in (24, 6) if batch < workers]
    return (
        Entry(
            RINGMASTER,
            {f"R = {limit}": partial(RingmasterASGD, max_delay=limit) for limit in limits},
            powers_of_5(-3, -2, -1),
        ),
        Entry.of(ASYNCHRONOUS, lambda size: AsynchronousSGD(DelayAdaptive(size)), *powers_of_5(-4, -3, -2, -1)),
        Entry(
            RENNALA,
            {f"batch {batch}": partial(RennalaSGD, batch=batch) for batch in batches},
            powers_of_5(-1, 0),
            fastest=min(USED, workers),
        ),
    )


def panels(quick: bool) -> list[Panel]:
    """Return the published noise, a tenth of it, and the noise of the public code."""
    dimension, workers, seeds = (50, 40, 1) if quick else (1_729, WORKERS, 2)
    seconds, shorter = (300.0, 200.0) if quick else (8_000.0, 4_000.0)
    cases = (
        (INDEPENDENT, TridiagonalQuadratic(dimension, 0.01), seconds),
        (LITTLE, TridiagonalQuadratic(dimension, 0.001), seconds),
        (SHARED, SharedNoiseQuadratic(dimension, 0.01), shorter),
    )
    return [
        Panel(title, problem, half_normal, workers, _entries(workers), seeds, seconds=limit)
        for title, problem, limit in cases
    ]


def _faster_than(other: str, measured: Measured) -> Verdict:
    speedups = {title: measured.speedup(title, RINGMASTER, other) for title in TITLES}
    got = "; ".join(f"{title}: {times(value)}" for title, value in speedups.items())
    return Verdict(got, agreement_of(value > 1 for value in speedups.values()))


PAPER = Paper(
    name="ringmaster",
    citation=(
        'Maranjyan, Tyurin and Richtárik, "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity" '
        "(ICML 2025), quadratic experiment"
    ),
    shows="a quadratic, 6,174 workers of very different speeds: Ringmaster, delay-adaptive asynchronous SGD, Rennala",
    minutes=3.0,
    panels=panels,
    claims=(
        Claim(
            "Section G",
            "Ringmaster ASGD is faster than delay-adaptive asynchronous SGD",
            partial(_faster_than, ASYNCHRONOUS),
        ),
        Claim("Section G", "Ringmaster ASGD is faster than Rennala SGD", partial(_faster_than, RENNALA)),
    ),
    differences=(
        "We had no access to the text of Section G. We assume: d = 1,729, n = 6,174, a gradient of worker i takes "
        "i + |N(0, i)| seconds, normal noise with standard deviation 0.01, stepsizes 5^p.",
        "The authors' public code (github.com/vectozavr/ringmaster-lmo, function.py) adds one normal number to all "
        "entries of a gradient. The third panel does the same; the others draw every entry independently.",
        "R is one of n/16, n/64, n/256, the batch of Rennala SGD 6 or 24. Virtual time ends at 8,000 seconds (4,000 "
        "in the third panel), which may be earlier than in the paper.",
        "Rennala SGD is simulated with the 128 fastest workers: rounds are shorter than a gradient of the others, so "
        "its steps are the same.",
    ),
)
