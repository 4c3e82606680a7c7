"""Who is slow now, or was in a run that is over: one row for every worker, the slowest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers
from nowait.dashboard.recent import Recent
from nowait.recording.worker_stats import WorkerStats, hangs, is_straggler

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
    """Seconds per gradient of its latest jobs, or of all jobs if the run is over; NaN without an arrival."""
    delay: int
    """The delay of its latest gradient; 0 without one."""
    job_seconds: float = 0.0
    """Seconds that it has worked on the job that it computes; 0 if it waits or has left."""

    @property
    def pace(self) -> float:
        """Seconds per gradient of its latest jobs, or of the job that it computes if the worker seems to hang."""
        if not math.isfinite(self.recent):
            return self.job_seconds
        return self.job_seconds if hangs(self.job_seconds, self.recent) else self.recent


class Straggler(NamedTuple):
    """The slowest worker, if it is much slower than the others."""

    worker: int
    pace: float
    """Its seconds per gradient."""
    others: float
    """The median of the seconds per gradient of the others."""

    @property
    def times(self) -> float:
        """How many times as long as the others it takes for a gradient."""
        return self.pace / self.others if self.others > 0 else math.inf


def worker_rows(
    stats: Sequence[WorkerStats], recent: Recent, pace: Floats, present: NDArray[np.bool_], since_step: float
) -> list[WorkerRow]:
    """Return all workers now, the slowest first and those that have left last.

    ``pace``: seconds per gradient of the latest jobs of each. The latest step was ``since_step`` ago.
    """
    held = recent.is_held
    rows = []
    for one in stats:
        known = one.worker < len(recent.delay)
        is_held = known and bool(held[one.worker])
        state = _state(one, bool(present[one.worker]), is_held)
        seconds = float(pace[one.worker]) if one.worker < len(pace) else math.nan
        delay = int(recent.delay[one.worker]) if known else 0
        rows.append(WorkerRow(one, state, seconds, delay, _job_seconds(one, state, since_step)))
    return sorted(rows, key=lambda row: (row.state == "left", -row.pace, row.stats.worker))


def rows_of_the_whole_run(rows: Sequence[WorkerRow]) -> list[WorkerRow]:
    """Return workers of a run that is over, the slowest first: seconds per gradient are those of the whole run."""
    whole = []
    for row in rows:
        mean, silent = (row.stats.pace, 0.0) if row.stats.gradients else (math.nan, row.stats.pace)
        whole.append(WorkerRow(row.stats, row.state, mean, row.delay, silent))
    return sorted(whole, key=lambda row: (-row.pace, row.stats.worker))


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


def straggler_of(rows: Sequence[WorkerRow], *, is_over: bool = False) -> Straggler | None:
    """Return the slowest worker if it is a straggler.

    Workers that have left count if the run ``is_over``, as in ``run.stats.diagnosis``.
    """
    compared = [row for row in rows if row.state != "left"]
    if is_over:
        compared = [row for row in rows if row.stats.gradients or row is rows[0]]
    if len(compared) < 2:
        return None
    found, others = compared[0], median(row.pace for row in compared[1:])
    if not is_straggler(found.pace, others):
        return None
    return Straggler(found.stats.worker, found.pace, others)


def lanes_of(rows: Sequence[WorkerRow], most: int = MOST_LANES, slowest: int = SLOWEST_LANES) -> list[int]:
    """Return the workers to draw, by number: all, or the slowest and some that are spread over the others."""
    workers = [row.stats.worker for row in rows]
    if len(workers) > most:
        rest: Integers = np.linspace(slowest, len(workers) - 1, most - slowest).round().astype(np.int64)
        workers = workers[:slowest] + [workers[place] for place in rest.tolist()]
    return sorted(workers)
