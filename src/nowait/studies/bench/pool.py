"""Jobs of a benchmark on several processes. Imported when a benchmark starts, because it loads ``multiprocessing``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from nowait.studies.bench.jobs import Job, compute
from nowait.system import die_with_parent


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
            for future in sorted(done, key=lambda one: one.exception() is not None):  # keep results before an error
                yield running[future], _result(running.pop(future), future)
    finally:
        _end(pool)


def _result(job: Job, future: Future[Any]) -> Any:
    """Return the result of a job, or raise an error that names the job."""
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        raise ValueError("a process of the benchmark was killed; if memory is short, use fewer --processes") from error
    if error is not None:
        raise ValueError(f"{job.work.key} failed: {type(error).__name__}: {error}") from error
    return future.result()


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
