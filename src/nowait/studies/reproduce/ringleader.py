"""The experiment with heterogeneous data of the paper that introduced Ringleader ASGD."""

from __future__ import annotations

from functools import partial

import numpy as np

from nowait.core import DelayAdaptive
from nowait.methods import AsynchronousSGD, GradientTable, MaleniaSGD, RingleaderASGD
from nowait.speeds import HalfNormal, Speeds
from nowait.studies.reproduce.federated import federated_softmax
from nowait.studies.reproduce.measured import Measured, times
from nowait.studies.reproduce.paper import AGREES, DISAGREES, PARTLY, Claim, Entry, Panel, Paper, Verdict

RINGLEADER, MALENIA, TABLE, ASYNCHRONOUS = (
    "Ringleader ASGD",
    "Malenia SGD",
    "IA²SGD (gradient table)",
    "asynchronous SGD, delay-adaptive",
)
TITLE = "softmax regression, classes differ by worker"
THEIR_RATIO = 100.0
"""The stepsizes in the authors' repository: Malenia SGD 0.5, Ringleader ASGD and IA²SGD 0.005."""


def shuffled(workers: int) -> Speeds:
    """Return workers whose gradients take 1, …, n seconds in random order, plus |N(0, i)| for worker i."""
    minimum = 1.0 + np.random.default_rng(0).permutation(workers)
    return HalfNormal(minimum.tolist(), np.sqrt(np.arange(1, workers + 1)).tolist())


def _entries(workers: int) -> tuple[Entry, ...]:
    small = tuple(round(2.0**power / workers, 6) for power in range(8))
    return (
        Entry.of(RINGLEADER, RingleaderASGD, *small),
        Entry.of(MALENIA, partial(MaleniaSGD, batch=workers), *(2.0**power for power in range(7))),
        Entry.of(TABLE, GradientTable, *small),
        Entry.of(ASYNCHRONOUS, lambda size: AsynchronousSGD(DelayAdaptive(size)), *small),
    )


def panels(quick: bool) -> list[Panel]:
    """Return 100 workers, each with data of few classes."""
    workers, rows, seconds, seeds = (10, 20, 300.0, 1) if quick else (100, 60, 6_000.0, 3)
    problem = federated_softmax(workers, rows, concentration=0.1, batch_size=4)
    return [Panel(TITLE, problem, shuffled, workers, _entries(workers), seeds, seconds=seconds)]


def _faster_than(other: str, measured: Measured) -> Verdict:
    speedup = measured.speedup(TITLE, RINGLEADER, other)
    errors = measured.curve(TITLE, RINGLEADER).final / measured.curve(TITLE, other).final
    return Verdict(
        f"{times(speedup)}; its last error is {errors:.2g} times theirs", AGREES if speedup > 1 else DISAGREES
    )


def _stepsizes(measured: Measured) -> Verdict:
    sizes = {name: measured.curve(TITLE, name).stepsize for name in (RINGLEADER, MALENIA, TABLE)}
    ratio = sizes[MALENIA] / sizes[RINGLEADER]
    got = f"{ratio:.3g} times (IA²SGD: {sizes[MALENIA] / sizes[TABLE]:.3g} times)"
    return Verdict(got, AGREES if THEIR_RATIO / 4 <= ratio <= THEIR_RATIO * 4 else PARTLY if ratio > 4 else DISAGREES)


def _biased(measured: Measured) -> Verdict:
    plain, best = measured.curve(TITLE, ASYNCHRONOUS).final, measured.best(TITLE)
    got = f"its last error is {plain / best.final:.2g} times that of {best.entry}, the best here"
    return Verdict(got, AGREES if plain > 1.5 * best.final else DISAGREES)


PAPER = Paper(
    name="ringleader",
    citation=(
        'Maranjyan and Richtárik, "Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data '
        'Heterogeneity" (2025, arXiv 2509.22860), experiment with 100 workers'
    ),
    shows="100 workers with different data and speeds: Ringleader, Malenia, the gradient table, asynchronous SGD",
    minutes=1.0,
    panels=panels,
    claims=(
        Claim("experiments", "Ringleader ASGD converges faster than Malenia SGD", partial(_faster_than, MALENIA)),
        Claim("experiments", "Ringleader ASGD converges faster than IA²SGD", partial(_faster_than, TABLE)),
        Claim("their repository", "the best stepsize of Malenia SGD is 100 times that of Ringleader ASGD", _stepsizes),
        Claim("introduction", "asynchronous SGD suffers from data that differ by worker", _biased),
    ),
    differences=(
        "The setting is that of tune_and_plot_single_seed.py in github.com/vectozavr/ringmaster-lmo, which has code of "
        "the same authors: 100 workers, seconds 1 to 100 in random order plus a half-normal part, classes by worker "
        "from Dirichlet(0.1), stepsizes tuned. We had no access to the text of the experiments.",
        "They train a small network on Fashion-MNIST for 200,000 seconds or more and show ‖∇F‖². Nothing is downloaded "
        "here: softmax regression on synthetic data, 6,000 seconds, F − F*.",
        "Their Ringleader code restarts some workers at new params where the paper keeps them at their own; ours "
        "follows the paper.",
    ),
)
