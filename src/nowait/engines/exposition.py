"""The numbers of a run in Prometheus' text format, version 0.0.4. No input or output.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from nowait.core.ledger import Counts
from nowait.core.notes import Note
from nowait.recording.phases import PHASES
from nowait.recording.worker_stats import WorkerStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE = "counter", "gauge"


@final
@dataclass(frozen=True)
class RunSnapshot:
    """What is known of a run at one time."""

    method: str
    engine: str
    seconds: float
    steps: int
    counts: Counts
    num_workers: int
    by_worker: tuple[WorkerStats, ...] = ()
    phase_seconds: Mapping[tuple[int, str], float] = field(default_factory=dict)
    """Seconds of each worker in each phase, which ``growing_seconds`` returns."""
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    delays: Mapping[float, float] = field(default_factory=dict)
    """Quantiles of the delays of recent arrivals, by their probability."""
    note: Note | None = None
    """The method's latest decision."""
    deaths: int = 0
    """Processes that died."""
    errors: int = 0
    """Gradients in whose place the problem raised an exception."""
    strays: int = 0
    """Reports on tickets that their worker was never given."""
    bytes_up: int = 0
    bytes_down: int = 0
    traffic: tuple[int, int] | None = None
    """Bytes received from other machines and sent to them; None if all workers are on this one."""
    checkpoint_age: float | None = None
    """Seconds since the latest checkpoint was begun; None without checkpoints."""


class _Family(NamedTuple):
    """A metric: its samples differ in their labels."""

    name: str
    kind: str
    help: str
    samples: list[tuple[Mapping[str, str], float]]


def exposition(snapshot: RunSnapshot | None) -> str:
    """Return the page that Prometheus reads; a comment if the run has not begun."""
    if snapshot is None:
        return "# The run has not begun.\n"
    return "".join(line for family in _families(snapshot) for line in _lines(family))


def _lines(family: _Family) -> Iterator[str]:
    if not family.samples:
        return
    yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    for labels, value in family.samples:
        inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield f"{family.name}{'{' + inside + '}' if inside else ''} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _families(run: RunSnapshot) -> Iterator[_Family]:
    about = {"method": run.method, "engine": run.engine}
    yield _Family("nowait_run_info", GAUGE, "Always 1; the labels say what runs.", [(about, 1)])
    yield _one("nowait_run_seconds", GAUGE, "Seconds since the run began.", run.seconds)
    yield _one("nowait_steps_total", COUNTER, "Steps made.", run.steps)
    yield _one("nowait_gradients_total", COUNTER, "Valid gradients.", run.counts.gradients)
    for name, text in (
        ("dropped", "Valid gradients that the method dropped."),
        ("rejected", "Gradients that were not finite or had the wrong shape."),
        ("late", "Gradients of cancelled tickets."),
    ):
        yield _one(f"nowait_gradients_{name}_total", COUNTER, text, getattr(run.counts, name))
    yield _one("nowait_tickets_lost_total", COUNTER, "Tickets lost with their workers.", run.counts.lost)
    yield _one("nowait_tickets_cancelled_total", COUNTER, "Tickets that the method cancelled.", run.counts.cancelled)
    yield _one("nowait_loss", GAUGE, "The latest loss.", run.loss)
    metrics: list[tuple[Mapping[str, str], float]] = [({"name": name}, value) for name, value in run.metrics.items()]
    yield _Family("nowait_metric", GAUGE, "The other metrics of the latest evaluation.", metrics)
    delays: list[tuple[Mapping[str, str], float]] = [({"quantile": f"{q:g}"}, d) for q, d in run.delays.items()]
    yield _Family("nowait_delay_steps", GAUGE, "Quantiles of the delays of recent gradients.", delays)
    noted = [] if run.note is None else run.note.numbers.items()
    numbers: list[tuple[Mapping[str, str], float]] = [({"name": name}, value) for name, value in noted]
    yield _Family("nowait_decision", GAUGE, "The numbers of the method's latest decision.", numbers)
    yield _one("nowait_workers", GAUGE, "Live workers.", run.num_workers)
    yield _one("nowait_worker_deaths_total", COUNTER, "Processes that died.", run.deaths)
    yield _one("nowait_worker_errors_total", COUNTER, "Exceptions of the problem in workers.", run.errors)
    yield _one(
        "nowait_reports_unknown_total", COUNTER, "Reports on tickets that their worker was never given.", run.strays
    )
    yield _one("nowait_gradient_bytes_total", COUNTER, "Bytes of the gradients that workers sent.", run.bytes_up)
    yield _one("nowait_params_bytes_total", COUNTER, "Bytes of the params that workers were sent.", run.bytes_down)
    received, sent = run.traffic or (None, None)
    yield _one("nowait_network_received_bytes_total", COUNTER, "Bytes received from other machines.", received)
    yield _one("nowait_network_sent_bytes_total", COUNTER, "Bytes sent to other machines.", sent)
    yield _one("nowait_checkpoint_age_seconds", GAUGE, "Seconds since the latest checkpoint.", run.checkpoint_age)
    yield from _worker_families(run.by_worker, run.phase_seconds)


def _worker_families(workers: tuple[WorkerStats, ...], seconds: Mapping[tuple[int, str], float]) -> Iterator[_Family]:
    named = [({"worker": str(one.worker), "node": one.node, "device": one.device}, one) for one in workers]
    yield _Family(
        "nowait_worker_gradients_total",
        COUNTER,
        "Gradients of each worker.",
        [(labels, one.gradients) for labels, one in named],
    )
    yield _Family(
        "nowait_worker_seconds_total",
        COUNTER,
        "Where the time of each worker went.",
        [
            (labels | {"phase": phase}, seconds[one.worker, phase])
            for labels, one in named
            for phase in PHASES
            if (one.worker, phase) in seconds
        ],
    )
    yield _Family(
        "nowait_worker_in_flight_seconds",
        GAUGE,
        "Seconds since the latest arrival of a worker.",
        [(labels, one.in_flight) for labels, one in named],
    )
    yield _Family(
        "nowait_worker_gradient_seconds",
        GAUGE,
        "Mean seconds from order to arrival.",
        [(labels, one.seconds_per_gradient) for labels, one in named if one.gradients],
    )


def growing_seconds(
    workers: Iterable[WorkerStats], before: Mapping[tuple[int, str], float]
) -> dict[tuple[int, str], float]:
    """Return the seconds of each worker in each phase, at least those of ``before``.

    They are without the ticket in flight, which may still arrive. Counters of Prometheus must not decrease, and the
    share of a phase may: data that were loaded beforehand are found out to be no part of receiving.
    """
    found = dict(before)
    for worker in workers:
        for phase in PHASES:
            seconds = getattr(worker.phases, phase) - (worker.in_flight if phase == "unfinished" else 0.0)
            found[worker.worker, phase] = max(seconds, before.get((worker.worker, phase), 0.0))
    return found


def _one(name: str, kind: str, text: str, value: float | None) -> _Family:
    """Return a metric without labels; None has no sample."""
    return _Family(name, kind, text, [] if value is None else [({}, value)])
