"""What a run knows of each worker: where it was, how much it delivered, and where its time went.

It also defines what pages and messages mean by the seconds per gradient of a worker (``WorkerStats``), by a straggler
(``is_straggler``) and by a ticket that takes far longer than usual (``hangs``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, final

from nowait.core.notes import STRAGGLER_TIMES
from nowait.core.types import Integers
from nowait.recording.phases import Phases, PhaseTotals

HANGS_TIMES, HANGS_SECONDS = 3.0, 1.0
"""A ticket takes far longer than usual if it takes more than this many times as long, and more than these seconds."""
Loading = dict[int, tuple[float, float]]
"""Seconds that each worker loaded data: inside of computing a gradient, and before it began."""


class Placement(NamedTuple):
    """A process of a worker was started at a time, on a node, and computes on a device."""

    worker: int
    time: float
    node: str
    """The name of the machine; for Ray, that of the node. Empty if it is not known."""
    device: str
    """Such as "cpu" or "cuda:0"."""


@final
@dataclass(frozen=True)
class WorkerStats:
    """One worker of a run, up to its end or up to now. The phases add up to the time for which it was a worker."""

    worker: int
    node: str
    """Where its latest process ran; empty if that is not known."""
    device: str
    gradients: int
    """Its arrivals, whatever became of them."""
    share: float
    """Its share of the valid gradients of the run."""
    phases: Phases
    """The seconds of each phase."""
    in_flight: float = 0.0
    """Of ``phases.unfinished``, the seconds since its latest arrival, or since it joined."""

    @property
    def seconds_per_gradient(self) -> float:
        """Mean seconds from order to arrival: receiving, loading, computing and sending; 0 without a gradient.

        The first ticket of a process counts from when it began to compute: before, the process was starting.
        """
        return self.phases.busy / self.gradients if self.gradients else 0.0

    @property
    def pace(self) -> float:
        """Seconds per gradient; if it has delivered none, the seconds for which nothing has come from it."""
        return self.seconds_per_gradient if self.gradients else self.phases.unfinished

    def share_of(self, phase: str) -> float:
        """Return the share of its time that a phase took, such as "sending"."""
        total = self.phases.total
        seconds: float = getattr(self.phases, phase)
        return seconds / total if total > 0 else 0.0

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> WorkerStats:
        """Return the worker that an entry of ``stats.json`` describes."""
        return cls(**{**values, "phases": Phases(**values["phases"])})


def stats_of_workers(
    totals: PhaseTotals, valid: Integers, placements: Iterable[Placement], end: float
) -> tuple[WorkerStats, ...]:
    """Return all workers of a run by number; ``valid`` counts the valid gradients of each up to a time ``end``."""
    latest = {placement.worker: placement for placement in placements}
    all_valid = max(1, int(valid.sum()))
    found = []
    in_flight = totals.in_flight(end)
    for worker, phases in totals.of_workers(end).items():
        place = latest.get(worker, Placement(worker, 0.0, "", ""))
        share = int(valid[worker]) / all_valid if worker < len(valid) else 0.0
        gradients = int(totals.arrivals[worker])
        found.append(WorkerStats(worker, place.node, place.device, gradients, share, phases, in_flight[worker]))
    return tuple(found)


def is_straggler(seconds: float, others: float) -> bool:
    """Return whether a worker is much slower than the others.

    ``seconds`` are its seconds per gradient, ``others`` is the median of those of the other workers.
    """
    return seconds > others and seconds >= STRAGGLER_TIMES * others


def hangs(computing: float, usual: float) -> bool:
    """Return whether a ticket takes far longer than usual: ``computing`` seconds so far, ``usual`` seconds on average.

    Pages then show the time so far. Nothing is warned of or killed: this is for ``Durations.deadline`` to decide.
    """
    return computing > max(HANGS_TIMES * usual, HANGS_SECONDS)


def stragglers_of(workers: Sequence[WorkerStats], most: int = 1) -> list[WorkerStats]:
    """Return the stragglers of a run, the slowest first, at most ``most``.

    A worker is compared with the others that have delivered. One that has not delivered counts with its time so far.
    """
    found: list[WorkerStats] = []
    for worker in sorted(workers, key=lambda worker: (-worker.pace, worker.worker))[:most]:
        others = others_of(worker, workers)
        if not others or not is_straggler(worker.pace, median(other.pace for other in others)):
            break
        found.append(worker)
    return found


def others_of(worker: WorkerStats, workers: Sequence[WorkerStats]) -> list[WorkerStats]:
    """Return the other workers that have delivered: those that a worker is compared with."""
    return [other for other in workers if other.gradients and other is not worker]


def workers_body(placements: Sequence[Placement], loading: Loading) -> bytes:
    """Return placements and seconds of loading as JSON."""
    seconds = [[worker, *both] for worker, both in loading.items()]
    return json.dumps({"placements": placements, "loading": seconds}).encode()


def read_workers(body: str | bytes) -> tuple[tuple[Placement, ...], Loading]:
    """Return the placements and seconds of loading that ``workers_body`` wrote; raise ValueError if it did not."""
    try:
        values = json.loads(body)
        placements = tuple(Placement(*entry) for entry in values["placements"])
        return placements, {int(worker): (float(one), float(two)) for worker, one, two in values["loading"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it does not say where workers were ({error!r})") from None


def nodes_of(workers: Sequence[WorkerStats]) -> list[str]:
    """Return the names of the nodes of these workers, without those that are not known."""
    return sorted({worker.node for worker in workers if worker.node})
