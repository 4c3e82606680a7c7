"""Sweeps on a GPU: plans are made on all cores, then all runs are executed at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.core.problem import loss_of
from nowait.core.types import Floats
from nowait.engines.progress import Progress
from nowait.engines.simulator.gpu.device import find_device, free_bytes, synchronise
from nowait.engines.simulator.gpu.execution import DeviceExecution, DeviceProblem, LaunchShape
from nowait.engines.simulator.gpu.operations import Operations, batch_of, operations_of
from nowait.engines.simulator.gpu.support import NotOnGpuError, check_problem
from nowait.engines.simulator.plan import NotPlannable
from nowait.engines.simulator.sweep import Keep, num_cores
from nowait.engines.simulator.sweep_plans import Planning, SweepParts, plans_scale
from nowait.recording import SweepRun

SHARE_OF_MEMORY = 0.5
"""How much of the free memory of the GPU the runs of a batch may take; losses need some too."""
HOST_BYTES = 1 << 31
"""How much memory of the host the operations of a batch may take."""
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
    moments: list[Floats]


@final
class _Work:
    def __init__(
        self, parts: SweepParts, device: Any, cores: int, bar: Progress, keep: Keep, shape: LaunchShape | None
    ) -> None:
        assert parts.data is not None
        self._parts, self._data, self._device, self._bar, self._keep = parts, parts.data, device, bar, keep
        self._shape = shape
        self._first_loss = loss_of(parts.problem, parts.initial)
        self._planning = Planning(parts)
        self._pool = ThreadPoolExecutor(cores)
        self._check_memory()
        self._problem = DeviceProblem(parts.data, parts.problem.shards.weights, parts.initial.dtype, device)
        self._done, self._to_do = 0.0, 0
        self._queued = 0

    def close(self) -> None:
        """Stop the threads."""
        self._planning.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def make_all(self, stepsizes: Floats, seeds: list[int]) -> None:
        """Make the runs, as many together as fit into memory."""
        if plans_scale(self._parts, stepsizes, seeds[0]):
            jobs = [_Job(seed, stepsizes) for seed in seeds]
        else:
            jobs = [_Job(seed, stepsizes[place : place + 1]) for seed in seeds for place in range(len(stepsizes))]
        self._to_do = len(stepsizes) * len(seeds)
        first = self._prepare(jobs[0])
        together = self._num_together(first)
        for start in range(0, len(jobs), together):
            prepared = [first] if start == 0 else []
            prepared += self._pool.map(self._prepare, jobs[start + len(prepared) : start + together])
            self._make(prepared)

    def _prepare(self, job: _Job) -> _Prepared:
        planned = self._planning.plan(float(job.stepsizes[0]), job.seed)
        operations = operations_of(planned.plan, planned.events, self._data, job.seed)
        return _Prepared(job, operations, planned.moments())

    def _num_together(self, first: _Prepared) -> int:
        """Return how many jobs like this one fit into memory."""
        needed = self._problem.bytes_of_runs(first.operations, len(first.job.stepsizes))
        on_device = int(SHARE_OF_MEMORY * free_bytes(self._device)) // needed
        on_host = HOST_BYTES // (first.operations.table.nbytes + first.operations.weights.nbytes + 1)
        return max(1, min(on_device, on_host))

    def _make(self, prepared: list[_Prepared]) -> None:
        """Execute these jobs together and keep their runs."""
        factors = [each.job.stepsizes / each.job.stepsizes[0] for each in prepared]
        batch = batch_of([each.operations for each in prepared], factors)
        shape = self._shape or self._problem.launch_shape(batch.num_runs, len(factors[0]))
        execution = DeviceExecution(self._problem, batch, self._parts.initial, shape)
        evaluations = len(batch.bounds) - 1
        operations = len(batch.table) * batch.num_runs // len(prepared) // max(1, evaluations)

        def on_evaluation() -> None:
            self._on_progress(batch.num_runs / evaluations, operations)

        losses = execution.curves(evaluations, self._first_loss, on_evaluation)
        self._planning.check()
        ends = np.cumsum([len(each.job.stepsizes) for each in prepared])
        for each, rows in zip(prepared, np.split(losses, ends[:-1]), strict=True):
            step, gradients, time = each.moments
            runs = [SweepRun(row[: len(step)].copy(), step, gradients, time) for row in rows]
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


def _out_of_memory() -> type[Exception]:
    import torch

    return torch.cuda.OutOfMemoryError
