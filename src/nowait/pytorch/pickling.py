"""Tensors as buffers beside a pickle: they are not copied into it, and processes can share their memory.

Operators, such as ``torch.ops.aten.relu``, are pickled by name.
"""

from __future__ import annotations

from pickle import PickleBuffer
from typing import Any

import torch

from nowait.core.pickling import imported, register_reducer


def register_tensors() -> None:
    """Let ``nowait.core.pickling`` pickle tensors as buffers, and operators."""
    register_reducer(torch.Tensor, reduced_tensor)
    for kind in (torch._ops.OpOverloadPacket, torch._ops.OpOverload):
        register_reducer(kind, reduced_operator)


def reduced_operator(operator: Any) -> Any:
    """Return how to pickle an operator: its name is, for example, "aten.relu" or "aten.relu.default"."""
    return imported, ("torch", ("ops", *str(operator).split(".")))


def reduced_tensor(tensor: torch.Tensor) -> Any:
    """Return how to pickle a tensor: one that is plain contiguous memory as a buffer, any other as PyTorch does."""
    if not _is_plain_memory(tensor):
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    data: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return rebuilt_tensor, (PickleBuffer(data), tensor.dtype, tuple(tensor.shape))


def rebuilt_tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor in the memory of a buffer; of one that is read-only, in a copy."""
    memory = memoryview(buffer)
    return torch.frombuffer(bytearray(memory) if memory.readonly else memory, dtype=dtype).view(shape)


def _is_plain_memory(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and tensor.dim() > 0
        and not tensor.__dict__
    )
