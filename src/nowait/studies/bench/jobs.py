"""The work of a benchmark, on several processes. Each job is a pure function of its arguments."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nowait.studies.bench.contenders import Contender
from nowait.studies.bench.folder import BenchFolder
from nowait.studies.bench.measuring import Cell, Entry
from nowait.studies.bench.own_methods import own_contender
from nowait.studies.bench.phase import PhaseEntry, phase_entry
from nowait.studies.bench.phase_grid import PhasePoint
from nowait.studies.bench.suite import Suite, Task, suite
from nowait.system import die_with_parent

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

    @property
    def key(self) -> str:
        """The name of the result."""
        return self.work.key


def compute(job: Job) -> Entry | PhaseEntry:
    """Return the result of a job. Runs in any process."""
    return compute_in(suite(job.suite), job)


def compute_in(chosen: Suite, job: Job) -> Entry | PhaseEntry:
    """Return the result of a job of a suite."""
    if isinstance(job.work, PhasePoint):
        return phase_entry(job.work)
    use_one_thread()
    cell = Cell(chosen, job.work, contender_of(chosen, job.work))
    return cell.entry(BenchFolder(job.folder, {}).save_trace)


def contender_of(chosen: Suite, task: Task) -> Contender:
    """Return the search space of a method of the suite, or of the user's own."""
    return chosen.contender(task) if task.method in chosen.methods else own_contender(task.method)


def use_one_thread() -> None:
    """Let PyTorch, if it is loaded, use one thread: several processes compute, and sums keep their order."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def computed(jobs: Sequence[Job], processes: int, check: Callable[[], None]) -> Iterator[tuple[Job, Any]]:
    """Yield every job with its result, in the order in which they finish. ``check`` may raise, to stop.

    When the caller stops, or this process dies, the processes end with it.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(os.getpid(),))
    left, running = list(reversed(jobs)), dict[Future[Any], Job]()
    try:
        while left or running:
            while left and len(running) < 2 * processes:
                job = left.pop()
                running[pool.submit(compute, job)] = job
            done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            check()
            for future in done:
                yield running.pop(future), future.result()
    finally:
        _end(pool)


def _begin(parent: int) -> None:
    """Prepare a process: Ctrl-C is for its parent alone, and it ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        die_with_parent(parent)


def _end(pool: ProcessPoolExecutor) -> None:
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()
