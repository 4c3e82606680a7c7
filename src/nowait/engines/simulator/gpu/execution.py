"""Executes batches of operations on a GPU, and evaluates the losses of their runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, final

import numpy as np

from nowait.core.types import Floats, Vector
from nowait.engines.simulator.gpu.device import num_processors, queue_on, streams_of, wait_for, wait_for_uploads
from nowait.engines.simulator.gpu.losses import losses_of, mark_diverged
from nowait.engines.simulator.gpu.operations import PADDING, Batch, Operations
from nowait.problems.compiled_data import ProblemData

ALIGNMENT = 16
"""Rows are padded to a multiple of this many columns, so that threads load 16 bytes at a time."""
BYTES_PER_THREAD = 128
"""How much of the params of a run one thread keeps in registers at most."""
MOST_BYTES_PER_THREAD = 896
"""How much of all vectors one thread may keep: it has 255 registers of 4 bytes, and other uses for some."""
ROWS_LOADED = 4
"""The rows of the present operation and those of the next one."""
THREADS_PER_WARP = 32
RUNS_PER_BLOCK = {4: ((2048, 4), (0, 1)), 8: ((2048, 4), (512, 2), (0, 1))}
"""By the bytes of a number: from how many runs on a block has how many of them. Measured on an H200; 8 are slower."""
BYTES_PER_OPERATION = 48
"""Operations are uploaded plan by plan, and copied when they are joined."""


@final
@dataclass(frozen=True)
class LaunchShape:
    """How runs are distributed over the GPU."""

    runs: int
    """How many runs with the same plan one block of threads executes: rows are loaded once for all of them."""
    warps: int
    """How many groups of 32 threads a block has."""
    neighbours: bool = True
    """Whether blocks with the same plan are placed on the same multiprocessors."""

    @classmethod
    def of(cls, width: int, itemsize: int, penalised: bool, num_runs: int, runs_per_plan: int) -> LaunchShape:
        """Choose the shape: with few runs each gets a block; with many, loads of rows would limit the speed."""
        bytes_per_warp = BYTES_PER_THREAD * THREADS_PER_WARP
        warps = max(1, block_width(width) * itemsize // bytes_per_warp)
        bytes_per_thread = block_width(width) * itemsize // (warps * THREADS_PER_WARP)
        runs = next(runs for least, runs in RUNS_PER_BLOCK[itemsize] if num_runs >= least)
        vectors_per_run = 3 if penalised else 1
        while runs > 1 and (
            runs > runs_per_plan or (ROWS_LOADED + runs * vectors_per_run) * bytes_per_thread > MOST_BYTES_PER_THREAD
        ):
            runs //= 2
        return cls(runs, warps)


def padded_width(dimension: int) -> int:
    """Return the number of columns of padded rows."""
    return -(-dimension // ALIGNMENT) * ALIGNMENT


def block_width(width: int) -> int:
    """Return the power of two that the kernel needs for rows of this width."""
    return 1 << (width - 1).bit_length()


@final
class DeviceProblem:
    """The data of a problem on a GPU."""

    def __init__(self, data: ProblemData, weights: Floats, dtype: np.dtype[Any], device: Any) -> None:
        self.data = data
        self.device = device
        self.dtype = dtype
        self.width = padded_width(data.features.shape[1])
        self.features = self.padded(data.features.astype(dtype, copy=False))
        self.targets = self.tensor(data.targets.astype(dtype, copy=False))
        self.weights = self.tensor(weights)

    @staticmethod
    def num_bytes(data: ProblemData, dtype: np.dtype[Any]) -> int:
        """Return the memory that the data takes on the GPU, without that of runs."""
        rows, dimension = data.features.shape
        return int(rows * ((padded_width(dimension) + 1) * dtype.itemsize + 8))

    def bytes_of_runs(self, operations: Operations, num_runs: int) -> int:
        """Return the memory that a plan and its runs take on the GPU."""
        vectors = operations.slots + 3 if self.data.l2 else 3
        floats = vectors * self.width + operations.slots * self.data.batch
        return BYTES_PER_OPERATION * len(operations) + num_runs * floats * self.dtype.itemsize

    def launch_shape(self, num_runs: int, runs_per_plan: int) -> LaunchShape:
        """Return how to distribute this many runs over the GPU."""
        return LaunchShape.of(self.width, self.dtype.itemsize, self.data.l2 > 0.0, num_runs, runs_per_plan)

    def tensor(self, values: Any) -> Any:
        """Return an array as a tensor on the device. It may share memory with the array, so it must not be changed."""
        import torch

        array = np.ascontiguousarray(values)
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)

    def upload(self, operations: Operations) -> Operations:
        """Return these operations with their arrays on the device."""
        return replace(operations, table=self.tensor(operations.table), weights=self.tensor(operations.weights))

    def padded(self, rows: Any) -> Any:
        """Return a copy of a matrix on the device, with columns of zeros after the last one."""
        import torch

        values = self.tensor(rows)
        missing = self.width - values.shape[1]
        return torch.nn.functional.pad(values, (0, missing)) if missing else values

    def losses_at(self, points: Any) -> Any:
        """Return the loss of every point, in float64."""
        import torch

        losses = losses_of(self.data.model, self.features, self.targets, self.weights, points)
        if self.data.l2:
            losses += 0.5 * self.data.l2 * (points.to(torch.float64) ** 2).sum(dim=1)
        return losses


@final
class DeviceExecution:
    """Executes the runs of a batch together, from evaluation to evaluation. Nothing waits for the GPU.

    The losses of an evaluation are computed beside the next steps, on a stream of their own: the steps of a run are a
    chain of short operations, which leaves most of the GPU idle. Batches with different numbers, from 0 to
    ``BATCHES - 1``, are executed side by side too.
    """

    def __init__(
        self, problem: DeviceProblem, batch: Batch, initial: Vector, shape: LaunchShape, number: int = 0
    ) -> None:
        """``batch`` has operations on the device (``DeviceProblem.upload``)."""
        import torch

        self._problem, self._shape = problem, shape
        data, tensor, runs = problem.data, problem.tensor, batch.num_runs
        # Triton compiles a kernel again for pointers of another alignment than 16 bytes: all rows have the same.
        self._bounds = tensor(np.pad(batch.bounds, ((0, 0), (0, batch.bounds.shape[1] % 2))))
        self._blocks = tensor(batch.blocks(shape.runs, num_processors(problem.device) if shape.neighbours else 1))
        self._table = torch.cat([*(each.table for each in batch.operations), tensor(PADDING)])
        self._weights = torch.cat([*(each.weights for each in batch.operations), tensor(np.zeros(len(PADDING)))])
        self._factors = tensor(batch.factors)
        self._entries = batch.slots * data.batch
        self._decay = tensor(np.array([data.l2 * data.batch]))
        self.points = problem.padded(initial[None]).repeat(runs, 1)
        """The current params of each run."""
        self._evaluated = torch.empty_like(self.points)
        """The params at the latest evaluation."""
        empty = {"dtype": self.points.dtype, "device": problem.device}
        self._slopes = torch.zeros((runs, self._entries), **empty)
        self._old_points = torch.zeros((runs, batch.slots, problem.width) if data.l2 else (1,), **empty)
        self._alive = torch.ones(runs, dtype=torch.bool, device=problem.device)
        self._curves = torch.empty((len(batch.bounds), runs), dtype=torch.float64, device=problem.device)
        self._steps_stream, self._losses_stream = streams_of(problem.device)[2 * number : 2 * number + 2]
        wait_for_uploads(self._steps_stream, problem.device)

    def run_to(self, place: int) -> None:
        """Queue the operations from evaluation ``place - 1`` to evaluation ``place``; 0 is the start."""
        problem, data = self._problem, self._problem.data
        with queue_on(self._steps_stream):
            _kernel()[(len(self._blocks),)](
                problem.features,
                problem.targets,
                self._table,
                self._weights,
                self._bounds[place - 1],
                self._bounds[place],
                self._blocks,
                self._factors,
                self.points,
                self._slopes,
                self._old_points,
                problem.width,
                self._entries,
                data.batch,
                self._decay,
                model=data.model,
                penalised=data.l2 > 0.0,
                num_runs=self._shape.runs,
                block_width=block_width(problem.width),
                num_warps=self._shape.warps,
                enable_fp_fusion=True,  # the default depends on the version of Triton
            )

    def start(self, first_loss: float, on_evaluation: Callable[[], None]) -> None:
        """Queue all steps and losses. ``on_evaluation`` is called when each evaluation has been queued."""
        with queue_on(self._steps_stream):
            self._curves[0] = first_loss
        for place in range(1, len(self._curves)):
            self.run_to(place)
            wait_for(self._steps_stream, self._losses_stream)
            with queue_on(self._steps_stream):
                self._evaluated.copy_(self.points)
            wait_for(self._losses_stream, self._steps_stream)
            with queue_on(self._losses_stream):
                self._curves[place] = self._problem.losses_at(self._evaluated)
                mark_diverged(self._curves[place], self._evaluated, first_loss, self._alive)
            on_evaluation()

    def curves(self) -> Floats:
        """Wait for the GPU; return the losses at the start and at every evaluation, [run, evaluation].

        They are infinite after a run has diverged.
        """
        wait_for(self._losses_stream, self._steps_stream)
        with queue_on(self._losses_stream):
            curves: Floats = self._curves.T.contiguous().cpu().numpy()
        return curves


@cache
def _kernel() -> Any:
    from nowait.engines.simulator.gpu.triton_kernels import execute

    return execute
