"""What a run knows of each worker: where it was, how much it delivered, and where its time went."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from nowait.core.types import Integers
from nowait.recording.phases import Phases, PhaseTotals

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
        """Mean seconds from order to arrival: receiving, loading, computing and sending; 0 without a gradient."""
        busy = self.phases
        seconds = busy.receiving + busy.loading + busy.computing + busy.sending
        return seconds / self.gradients if self.gradients else 0.0

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
