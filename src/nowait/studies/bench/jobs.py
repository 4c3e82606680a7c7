"""The work of a benchmark. Each job is a pure function of its arguments."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.measuring import Cell
from nowait.studies.bench.own_methods import own_contender, own_source
from nowait.studies.bench.phase import phase_entry
from nowait.studies.bench.phase_grid import PhasePoint
from nowait.studies.bench.records import Entry, PhaseEntry, Task
from nowait.studies.bench.suite import Suite, suite

PHASE_COST = 2.0
"""The processor time of a point of the phase diagram, relative to ``Workload.cost``."""


@final
@dataclass(frozen=True)
class Job:
    """An entry or a point of the phase diagram to compute."""

    suite: str
    folder: Path
    work: Task | PhasePoint
    cost: float


def compute(job: Job) -> Entry | PhaseEntry:
    """Return the result of a job. Runs in any process."""
    return compute_in(suite(job.suite), job)


def compute_in(chosen: Suite, job: Job) -> Entry | PhaseEntry:
    """Return the result of a job of a suite."""
    if isinstance(job.work, PhasePoint):
        return phase_entry(job.work)
    return cell_of(chosen, job.work).entry(BenchFolder(job.folder, {}).save_trace)


def cell_of(chosen: Suite, task: Task) -> Cell:
    """Return the cell of a method of the suite, or of the user's own. PyTorch then uses one thread.

    Several processes compute at the same time, and sums have the same order with any number of cores.
    """
    if task.method in chosen.methods:
        cell = Cell(chosen, task, chosen.contender(task))
    else:
        cell = Cell(chosen, task, own_contender(task.method), own_source(task.method))
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    return cell
