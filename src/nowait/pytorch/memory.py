"""Params, gradients and all other vectors of a server as PyTorch tensors on one device."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, final

import numpy as np
import torch

from nowait.core.memory import NOT_FINITE, MakeSlots, Memory, Slots, Stepper, not_real, register
from nowait.core.types import Vector
from nowait.pytorch.flat import DTYPES, TENSOR_DTYPES
from nowait.pytorch.slots import CudaSlots, HostTensorSlots


@final
class TorchMemory(Memory):
    """Tensors on a device, such as ``TorchMemory("cuda:0")``, for ``Server(..., memory=...)``.

    All work is queued on the current stream of the device. A step of ``Sgd`` or of a fused ``TorchOptimizer`` waits for
    the device once. Other updates wait twice: their state must not change before the gradient is known to be finite. A
    model with statistics, such as batch normalisation, adds one wait. Additions to sums are only queued: call ``wait``
    before a worker writes to its gradient again.

    Results agree with those of host memory up to rounding. With tensors of the processor, steps of ``Sgd``,
    ``Momentum`` and ``Nesterov`` have the same bits. Norms of float32 vectors are added up in float32, unless that
    overflows, so about six digits of a recorded norm agree.

    PyTorch has no read-only tensors: methods, updates and outputs must not write to params, points and gradients.
    """

    kind = torch.Tensor
    namespace = torch

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)

    def __repr__(self) -> str:
        return f"TorchMemory({str(self.device)!r})"

    # Vectors, and copies from and to the host

    def empty(self, like: Vector) -> torch.Tensor:
        """Return a new tensor on the device."""
        return torch.empty(like.size, dtype=TENSOR_DTYPES[like.dtype.type], device=self.device)

    def write(self, values: Vector, out: torch.Tensor) -> None:
        """Copy an array to the device."""
        out.copy_(self.from_host(values))

    def from_host(self, values: Vector) -> torch.Tensor:
        """Return a new tensor with the values of an array."""
        return torch.from_numpy(np.array(values)).to(self.device)

    def to_host(self, vector: torch.Tensor) -> Vector:
        """Return a read-only array: the memory of a tensor of the processor, a copy of others."""
        values: Vector = vector.numpy(force=True).view()
        values.flags.writeable = False
        return values

    def copy_to_host(self, vector: torch.Tensor) -> Vector:
        """Return a copy in a new array."""
        values: Vector = np.empty(vector.shape, DTYPES[vector.dtype])
        torch.from_numpy(values).copy_(vector)
        return values

    def snapshot(self, vector: torch.Tensor) -> Any:
        """Return a copy on the device, or in host memory if the device has no room for one."""
        try:
            return vector.clone()
        except torch.cuda.OutOfMemoryError:
            return self.copy_to_host(vector)

    def fetch(self, vector: torch.Tensor) -> Vector:
        """Copy a tensor to the host on a stream of its own, after what is queued now. Steps go on."""
        if self.device.type != "cuda":
            return self.to_host(vector)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.stream(stream):
            return self.copy_to_host(vector)

    def read_only(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself."""
        return vector

    def shared_slots(self, make: MakeSlots, length: int, dtype: Any, fd: int | None, *, writeable: bool) -> Slots:
        """Return tensors on the device that processes share. On a GPU all processes can write to them."""
        if self.device.type == "cpu":
            return HostTensorSlots(make, length, dtype, fd, writeable=writeable)
        return CudaSlots(self.device, make, length, dtype, fd)

    @property
    def is_queued(self) -> bool:
        """True on a GPU."""
        return self.device.type != "cpu"

    def wait(self) -> None:
        """Wait for the current stream of the device."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    # Arithmetic

    def squared_norm(self, vector: torch.Tensor) -> float:
        """Return the sum of squares. Waits for the device."""
        norm = float(torch.linalg.vector_norm(vector))
        if not math.isfinite(norm):  # in float32, squares of finite entries may overflow
            norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        return norm * norm

    def is_finite(self, vector: torch.Tensor) -> bool:
        """Return True if no entry is NaN or infinite. Waits for the device."""
        return math.isfinite(float(torch.linalg.vector_norm(vector, math.inf)))

    def add_scaled(self, total: torch.Tensor, vector: torch.Tensor, weight: float) -> None:
        """Compute ``total += weight * vector``."""
        total.add_(vector, alpha=weight)

    def scaled(self, vector: torch.Tensor, factor: float, out: torch.Tensor | None) -> torch.Tensor:
        """Return ``factor * vector``."""
        return torch.mul(vector, factor, out=out)

    def move_towards(self, mean: torch.Tensor, point: torch.Tensor, fraction: float) -> None:
        """Compute ``mean += fraction * (point - mean)`` in float64."""
        mean.add_(point - mean, alpha=fraction)

    def fitted(self, direction: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the direction as a contiguous tensor of the right dtype."""
        if not isinstance(direction, torch.Tensor) or direction.device != like.device:
            raise TypeError(f"a direction must be a tensor on {like.device}, as params are, got {_where(direction)}")
        if direction.is_complex():
            raise not_real(direction, like)
        return direction.to(like.dtype).contiguous()

    def sgd_stepper(self, params: torch.Tensor) -> Stepper:
        """Return a function that queues the step and both checks, and then waits for the device once."""
        check = StepCheck(params)
        move = _two_operations if params.device.type == "cpu" else _one_operation

        def step(
            params: torch.Tensor, direction: torch.Tensor, stepsize: float, out: torch.Tensor
        ) -> tuple[float, float]:
            check.measure(direction)
            move(params, direction, stepsize, out)
            norm, zero = check.read(out)
            if not math.isfinite(norm):
                return (self.squared_norm(direction), zero) if self.is_finite(direction) else NOT_FINITE
            return norm * norm, zero

        return step


@final
class StepCheck:
    """The norm of a direction and whether the next params are finite: computed on the device and read together."""

    def __init__(self, like: torch.Tensor) -> None:
        self._found = torch.empty(2, dtype=like.dtype, device=like.device)
        self.norm, self._largest = self._found.unbind()

    def measure(self, direction: torch.Tensor) -> None:
        """Queue the computation of the norm of a direction. It is infinite if float32 squares overflow."""
        torch.linalg.vector_norm(direction, out=self.norm)

    def read(self, out: torch.Tensor) -> tuple[float, float]:
        """Return the norm, and 0 if the next params are finite, else NaN. Waits for the device."""
        torch.linalg.vector_norm(out, math.inf, out=self._largest)
        norm, largest = self._found.tolist()
        return norm, 0.0 if math.isfinite(largest) else math.nan


def _two_operations(params: torch.Tensor, direction: torch.Tensor, stepsize: float, out: torch.Tensor) -> None:
    """Compute ``out = params - stepsize * direction``, with the roundings of numpy."""
    torch.mul(direction, stepsize, out=out)
    torch.sub(params, out, out=out)


def _one_operation(params: torch.Tensor, direction: torch.Tensor, stepsize: float, out: torch.Tensor) -> None:
    """Compute the same in one pass over memory, with one rounding less."""
    torch.sub(params, direction, alpha=stepsize, out=out)


def _where(vector: object) -> str:
    return f"one on {vector.device}" if isinstance(vector, torch.Tensor) else type(vector).__name__


@cache
def _memory_on(device: torch.device) -> TorchMemory:
    return TorchMemory(device)


def _memory_of(vector: torch.Tensor) -> TorchMemory:
    return _memory_on(vector.device)


register(torch.Tensor, _memory_of)
