"""Who is slow now: one row for every worker, the slowest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Integers
from nowait.dashboard.recent import Recent
from nowait.recording.diagnosis import SLOW
from nowait.recording.worker_stats import WorkerStats

MOST_LANES = 40
"""Workers that are drawn in the timeline and the heatmap."""
SLOWEST_LANES = 16
"""Of these, the slowest; the others are spread over the rest."""
WAITS = 0.05
"""A worker that waited for this share of its time is waiting if its latest gradient is held for a step."""


@final
@dataclass(frozen=True)
class WorkerRow:
    """One worker."""

    stats: WorkerStats
    state: str
    """"computing", "waiting" for a step, "starting" (it has delivered nothing yet) or "left"."""
    recent: float
    """Seconds per gradient of its latest jobs; NaN without an arrival."""
    delay: int
    """The delay of its latest gradient; 0 without one."""
    job_seconds: float = 0.0
    """Seconds that it has worked on the job that it computes; 0 if it waits or has left."""

    @property
    def pace(self) -> float:
        """Seconds per gradient now: of its latest jobs, or of the job that it computes if that takes longer already."""
        return max(self.recent if math.isfinite(self.recent) else 0.0, self.job_seconds)


class Straggler(NamedTuple):
    """The slowest worker, if it is slower than the others."""

    worker: int
    times: float
    """How many times as long as the median worker it takes for a gradient."""


def worker_rows(
    stats: Sequence[WorkerStats], recent: Recent, present: NDArray[np.bool_], since_step: float
) -> list[WorkerRow]:
    """Return all workers, the slowest first and those that have left last. The latest step was ``since_step`` ago."""
    held = recent.is_held
    rows = []
    for one in stats:
        known = one.worker < len(recent.seconds)
        is_held = known and bool(held[one.worker])
        state = _state(one, bool(present[one.worker]), is_held)
        seconds = float(recent.seconds[one.worker]) if known else math.nan
        delay = int(recent.delay[one.worker]) if known else 0
        rows.append(WorkerRow(one, state, seconds, delay, _job_seconds(one, state, since_step)))
    return sorted(rows, key=lambda row: (row.state == "left", -row.pace, row.stats.worker))


def _state(stats: WorkerStats, is_present: bool, is_held: bool) -> str:
    if not is_present:
        return "left"
    if not stats.gradients:
        return "starting"
    return "waiting" if is_held and stats.share_of("waiting") > WAITS else "computing"


def _job_seconds(stats: WorkerStats, state: str, since_step: float) -> float:
    """Return how long a worker has computed its job. One that waits for steps began at the latest of them."""
    if state in ("waiting", "left"):
        return 0.0
    return min(stats.in_flight, since_step) if stats.share_of("waiting") > WAITS else stats.in_flight


def straggler_of(rows: Sequence[WorkerRow]) -> Straggler | None:
    """Return the slowest worker of the run if it is much slower than the median of the others."""
    live = [row for row in rows if row.state != "left"]
    if len(live) < 2:
        return None
    usual = median(row.pace for row in live[1:])
    if live[0].pace < SLOW * usual or live[0].pace == 0:
        return None
    return Straggler(live[0].stats.worker, live[0].pace / usual if usual > 0 else math.inf)


def lanes_of(rows: Sequence[WorkerRow], most: int = MOST_LANES, slowest: int = SLOWEST_LANES) -> list[int]:
    """Return the workers to draw, by number: all, or the slowest and some that are spread over the others."""
    workers = [row.stats.worker for row in rows]
    if len(workers) > most:
        rest: Integers = np.linspace(slowest, len(workers) - 1, most - slowest).round().astype(np.int64)
        workers = workers[:slowest] + [workers[place] for place in rest.tolist()]
    return sorted(workers)
