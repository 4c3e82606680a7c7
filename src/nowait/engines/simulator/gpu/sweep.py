"""Sweeps on a GPU: plans are made on all cores, while the GPU executes the runs whose plans have been made."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

import numpy as np

from nowait.core.types import Floats
from nowait.engines.budget import Budget
from nowait.engines.progress import Progress
from nowait.engines.simulator.gpu.device import BATCHES, find_device, free_bytes, synchronise
from nowait.engines.simulator.gpu.execution import DeviceExecution, DeviceProblem, LaunchShape
from nowait.engines.simulator.gpu.operations import Operations, batch_of, operations_of
from nowait.engines.simulator.gpu.support import NotOnGpuError, check_problem
from nowait.engines.simulator.plan import NotPlannable
from nowait.engines.simulator.sweep import Keep, num_cores
from nowait.engines.simulator.sweep_plans import Planning, SweepParts
from nowait.recording import SweepRun

RUNS_TOGETHER = 4096
"""About how many runs are executed together, in a batch: enough to fill the GPU."""
SHARE_OF_MEMORY = 0.5
"""How much of the free memory of the GPU runs and plans may take; losses need some too."""
HOST_BYTES = 1 << 31
"""How much memory of the host the plans that are being made may take, about."""
BYTES_PER_EVENT = 200
"""How much memory of the host an event of a plan and its operations take, about."""
MOST_QUEUED = 1 << 31
"""How many operations, times their runs, are queued before waiting for the GPU: so Ctrl-C takes about a second."""


def sweep_on_gpu(
    parts: SweepParts,
    stepsizes: Floats,
    seeds: list[int],
    *,
    device: str,
    threads: int | None,
    bar: Progress,
    keep: Keep,
    shape: LaunchShape | None = None,
) -> None:
    """Make all runs and pass them to ``keep`` when complete. ``NotOnGpuError`` says what the GPU cannot do.

    ``shape`` None chooses how runs are distributed over the GPU.
    """
    found = find_device(device)
    check_problem(parts.problem, parts.data, parts.initial)
    work = _Work(parts, found, threads or num_cores(), bar, keep, shape)
    try:
        work.make_all(stepsizes, seeds)
    except NotPlannable as error:
        raise NotOnGpuError(error.reason) from None
    except _out_of_memory() as error:
        raise NotOnGpuError(f"the memory of the GPU is too small ({error})") from error
    finally:
        work.close()


@final
@dataclass(frozen=True, eq=False)
class _Job:
    """The runs of one plan: a seed, and the stepsizes that share the plan of the first one."""

    seed: int
    stepsizes: Floats


@final
@dataclass(frozen=True, eq=False)
class _Prepared:
    job: _Job
    operations: Operations
    """On the GPU."""
    moments: list[Floats]


@final
@dataclass(frozen=True, eq=False)
class _Running:
    """Jobs that the GPU executes."""

    jobs: list[_Prepared]
    execution: DeviceExecution


@final
class _Work:
    def __init__(
        self, parts: SweepParts, device: Any, cores: int, bar: Progress, keep: Keep, shape: LaunchShape | None
    ) -> None:
        assert parts.data is not None
        self._parts, self._data, self._device, self._bar, self._keep = parts, parts.data, device, bar, keep
        self._shape, self._cores = shape, cores
        self._planning = Planning(parts)
        self._check_memory()
        self._pool = ThreadPoolExecutor(cores)
        weights, dtype = parts.problem.shards.weights, parts.initial.dtype
        self._problem = self._pool.submit(DeviceProblem, parts.data, weights, dtype, device)
        self._running: deque[_Running] = deque()
        self._num_started = 0
        self._ahead = 1
        self._done, self._to_do = 0.0, 0
        self._queued = 0

    def close(self) -> None:
        """Stop the threads, and wait for the GPU if it still executes something."""
        self._planning.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._running:
            synchronise(self._device)

    def make_all(self, stepsizes: Floats, seeds: list[int]) -> None:
        """Make the runs, batch by batch."""
        if self._planning.plans_scale(stepsizes, seeds[0]):
            jobs = [_Job(seed, stepsizes) for seed in seeds]
        else:
            jobs = [_Job(seed, stepsizes[place : place + 1]) for seed in seeds for place in range(len(stepsizes))]
        self._to_do = len(stepsizes) * len(seeds)
        wanted = math.ceil(len(jobs) / max(1, self._to_do // RUNS_TOGETHER))
        self._ahead = min(max(wanted, self._cores), most_planned(self._parts.budget))
        prepared = self._prepare_ahead(jobs)
        first = next(prepared)
        fitting = self._most_together(first)
        together = min(wanted, fitting)
        self._ahead = min(max(together, self._cores), fitting, num_plans(len(first.operations)))
        batch = [first, *islice(prepared, together - 1)]
        while batch:
            self._start(batch)
            if len(self._running) == BATCHES:
                self._finish_oldest()
            batch = list(islice(prepared, together))
        while self._running:
            self._finish_oldest()

    def _prepare_ahead(self, jobs: list[_Job]) -> Iterator[_Prepared]:
        """Yield the jobs, prepared; the pool prepares up to ``_ahead`` of them before they are needed."""
        waiting: deque[Future[_Prepared]] = deque()
        for job in jobs:
            waiting.append(self._pool.submit(self._prepare, job))
            while len(waiting) > self._ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _prepare(self, job: _Job) -> _Prepared:
        planned = self._planning.plan(float(job.stepsizes[0]), job.seed)
        operations = operations_of(planned.plan, planned.events, self._data, job.seed)
        return _Prepared(job, self._problem.result().upload(operations), planned.moments())

    def _most_together(self, first: _Prepared) -> int:
        """Return how many jobs like this one fit into memory together, if as many are being planned meanwhile."""
        needed = self._problem.result().bytes_of_runs(first.operations, len(first.job.stepsizes))
        return max(1, int(SHARE_OF_MEMORY * free_bytes(self._device)) // needed // (BATCHES + 1))

    def _start(self, prepared: list[_Prepared]) -> None:
        """Let the GPU execute these jobs together."""
        factors = [each.job.stepsizes / each.job.stepsizes[0] for each in prepared]
        batch = batch_of([each.operations for each in prepared], factors)
        problem = self._problem.result()
        shape = self._shape or problem.launch_shape(batch.num_runs, len(factors[0]))
        execution = DeviceExecution(problem, batch, self._parts.initial, shape, self._num_started % BATCHES)
        self._running.append(_Running(prepared, execution))
        self._num_started += 1
        evaluations = len(batch.bounds) - 1
        operations = batch.num_operations * batch.num_runs // len(prepared) // max(1, evaluations)

        def on_evaluation() -> None:
            self._on_progress(batch.num_runs / evaluations, operations)

        execution.start(self._parts.initial_loss, on_evaluation)

    def _finish_oldest(self) -> None:
        """Wait for the jobs that were started first, and keep their runs."""
        running = self._running[0]
        losses = running.execution.curves()
        self._running.popleft()
        self._planning.check()
        ends = np.cumsum([len(each.job.stepsizes) for each in running.jobs])
        for each, rows in zip(running.jobs, np.split(losses, ends[:-1]), strict=True):
            step, gradients, time = each.moments
            runs = [SweepRun(row, step, gradients, time) for row in rows[:, : len(step)]]
            self._keep(each.job.seed, each.job.stepsizes, runs)

    def _on_progress(self, runs: float, operations: int) -> None:
        self._done += runs
        self._queued += operations
        if self._queued > MOST_QUEUED:
            synchronise(self._device)
            self._queued = 0
        self._bar.show(min(1.0, self._done / self._to_do))

    def _check_memory(self) -> None:
        needed, free = DeviceProblem.num_bytes(self._data, self._parts.initial.dtype), free_bytes(self._device)
        if needed > free:
            raise NotOnGpuError(
                f"the data of the problem takes {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of the memory of "
                f"the GPU are free"
            )


def most_planned(budget: Budget) -> int:
    """Return how many plans may be made at a time, before the first one is known."""
    events = budget.steps or budget.gradients
    return 1 if events is None else num_plans(events)


def num_plans(events: int) -> int:
    """Return how many plans with about this many events the host has memory for."""
    return max(1, HOST_BYTES // (BYTES_PER_EVENT * max(1, events)))


def _out_of_memory() -> type[Exception]:
    import torch

    return torch.cuda.OutOfMemoryError
