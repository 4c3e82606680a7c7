"""FedBuff against synchronous and unbuffered asynchronous federated learning, with stragglers among the clients."""

from __future__ import annotations

from functools import partial

import numpy as np

from nowait.core import Momentum
from nowait.methods import FedBuff, MinibatchSGD
from nowait.problems import LocalSteps
from nowait.speeds import HalfNormal, Speeds
from nowait.studies.reproduce.federated import federated_softmax
from nowait.studies.reproduce.measured import Measured, times
from nowait.studies.reproduce.paper import AGREES, DISAGREES, PARTLY, Claim, Entry, Panel, Paper, Verdict, not_checked

FEDBUFF, FEDASYNC, FEDAVG, FEDAVGM = "FedBuff, buffer 10", "FedAsync, buffer 1", "FedAvg", "FedAvgM"
FEW, MANY, TIMED, STRAGGLERS = (
    "20 clients, by client updates",
    "200 clients, by client updates",
    "200 clients, by time",
    "20 clients, one in ten is 10 times slower, by time",
)
SYNCHRONOUS_FACTOR, ASYNCHRONOUS_FACTOR = 3.3, 2.5
"""What the abstract reports: FedBuff is so many times more efficient than synchronous and asynchronous learning."""
LOCAL_STEPS, LOCAL_STEPSIZE = 5, 4.0


def half_normal(clients: int) -> Speeds:
    """Return clients whose training takes |N(0, 1)| seconds."""
    return HalfNormal(1e-3, 1.0, workers=clients)


def with_stragglers(clients: int) -> Speeds:
    """Return the same with every tenth client 10 times slower."""
    factors = np.where(np.arange(clients) % 10 == 9, 10.0, 1.0)
    return HalfNormal((1e-3 * factors).tolist(), factors.tolist())


def _entries() -> tuple[Entry, ...]:
    large = (0.5, 1.0, 2.0, 4.0, 8.0)
    return (
        Entry.of(FEDBUFF, partial(FedBuff, buffer=10), 0.15, 0.3, 0.5, 0.8),
        Entry.of(FEDASYNC, partial(FedBuff, buffer=1), 0.02, 0.05, 0.1, 0.2),
        Entry.of(FEDAVG, MinibatchSGD, *large),
        Entry(FEDAVGM, {"": MinibatchSGD}, (0.1, 0.3, 1.0), update=Momentum(0.9)),
    )


def panels(quick: bool) -> list[Panel]:
    """Return few clients, many clients, and few clients with stragglers."""
    few, many, updates, seeds = (10, 40, 200, 1) if quick else (20, 200, 5_000, 2)
    short, seconds = (4.0, 20.0) if quick else (20.0, 150.0)
    problems = {
        clients: LocalSteps(
            federated_softmax(clients, 6_000 // clients, concentration=1.0, batch_size=8), LOCAL_STEPS, LOCAL_STEPSIZE
        )
        for clients in (few, many)
    }
    return [
        Panel(FEW, problems[few], half_normal, few, _entries(), seeds, gradients=updates),
        Panel(MANY, problems[many], half_normal, many, _entries(), seeds, gradients=updates),
        Panel(TIMED, problems[many], half_normal, many, _entries(), seeds, seconds=short),
        Panel(STRAGGLERS, problems[few], with_stragglers, few, _entries(), seeds, seconds=seconds),
    ]


def _lead(measured: Measured, title: str) -> float:
    """Return how many times sooner FedBuff is than the best synchronous method."""
    return min(measured.speedup(title, FEDBUFF, other) for other in (FEDAVG, FEDAVGM))


def _judged(gains: dict[str, float], factor: float) -> Verdict:
    got = "; ".join(f"{title}: {times(value)}" for title, value in gains.items())
    agreements = [_compared(value, factor) for value in gains.values()]
    return Verdict(got, agreements[0] if len(set(agreements)) == 1 else PARTLY)


def _compared(gain: float, factor: float) -> str:
    return AGREES if gain >= factor / 1.5 else PARTLY if gain > 1 else DISAGREES


def _synchronous(measured: Measured) -> Verdict:
    return _judged({title: _lead(measured, title) for title in (FEW, MANY, TIMED)}, SYNCHRONOUS_FACTOR)


def _asynchronous(measured: Measured) -> Verdict:
    gains = {title: measured.speedup(title, FEDBUFF, FEDASYNC) for title in (FEW, MANY)}
    return _judged(gains, ASYNCHRONOUS_FACTOR)


def _scales(measured: Measured) -> Verdict:
    few, many = _lead(measured, FEW), _lead(measured, MANY)
    got = f"by client updates, {times(few)} than the best synchronous method with 20 clients, {times(many)} with 200"
    return Verdict(got, AGREES if many > max(1.0, few) else PARTLY if many > few else DISAGREES)


def _stragglers(measured: Measured) -> Verdict:
    gain = _lead(measured, STRAGGLERS)
    return Verdict(f"{times(gain)} than the best synchronous method", AGREES if gain > 1 else DISAGREES)


PAPER = Paper(
    name="fedbuff",
    citation=(
        'Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated Learning with Buffered Asynchronous '
        'Aggregation" (AISTATS 2022)'
    ),
    shows="clients with half-normal training times and stragglers: FedBuff, FedAsync, FedAvg and FedAvgM",
    minutes=1.5,
    panels=panels,
    claims=(
        Claim("abstract", "FedBuff is up to 3.3 times more efficient than synchronous learning", _synchronous),
        Claim("abstract", "FedBuff is up to 2.5 times more efficient than asynchronous learning", _asynchronous),
        Claim("abstract", "synchronous learning does not scale beyond a few hundred clients in parallel", _scales),
        Claim("introduction", "FedBuff is robust to stragglers", _stragglers),
        Claim(
            "abstract",
            "FedBuff is compatible with secure aggregation and differential privacy",
            not_checked("neither is implemented here"),
        ),
    ),
    differences=(
        "They train networks on CelebA, Sent140 and CIFAR-10, with client counts up to a thousand and more, and count "
        "client updates until a target accuracy. Here: softmax regression on synthetic data, classes by client from "
        "Dirichlet(1), 5 local steps, and F − F*.",
        "Buffer 10, the discount 1/√(1 + δ) and half-normal training times are theirs. FedAsync is FedBuff with "
        "buffer 1.",
        "Here the same clients take part all the time; theirs are drawn from a large population in every round. "
        "They over-select clients in synchronous rounds; we do not, so stragglers hurt FedAvg more.",
        "The server's stepsize is tuned, on a coarse grid; that of the clients is 4.",
    ),
)
