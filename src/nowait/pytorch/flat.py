"""The parameters and buffers of a model as one flat vector, without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, final

import numpy as np
import torch

from nowait.core.layout import Block, Layout
from nowait.core.types import Vector

DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
HALF_PRECISION = (torch.bfloat16, torch.float16)
"""Dtypes of models whose params are float32: a stepsize times a gradient is often too small to change a bfloat16."""
TENSOR_DTYPES = {dtype: tensor_dtype for tensor_dtype, dtype in DTYPES.items()}


def tensor_of(array: Vector) -> torch.Tensor:
    """Return a tensor that shares the memory of an array, which may be read-only; it does not keep the array alive.

    Workers map their points read-only: writing to such a tensor crashes the process.
    """
    kind = ctypes.c_float if array.dtype == np.float32 else ctypes.c_double
    memory = (kind * array.size).from_address(array.ctypes.data)
    return torch.from_numpy(np.ctypeslib.as_array(memory))


@final
@dataclass(frozen=True)
class ModelLayout:
    """The positions of the trained parameters and the buffers of a model in params.

    Parameters come first, then the buffers that training changes, as statistics with a 1 at the end
    (``nowait.core.statistics``). Frozen parameters and all other buffers are left out; tied parameters appear once.
    """

    parameters: Layout
    buffers: tuple[Block, ...]
    dtype: Any
    """The NumPy dtype of params: float64 if the model has it, float32 if any of its parameters has half precision."""
    model_dtypes: tuple[torch.dtype, ...]
    """The dtypes of the trained parameters of the model, in their order."""

    @classmethod
    def of(cls, model: torch.nn.Module, statistics: Iterable[str] = ()) -> ModelLayout:
        """Return the layout of a model with these buffers as statistics; raise an error if it cannot be trained."""
        trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
        if not trained:
            raise ValueError(f"{type(model).__name__} has no parameters that require gradients: nothing to train")
        kinds = {tensor.dtype for _, tensor in trained}
        if kinds != {torch.float64} and not kinds <= {torch.float32, *HALF_PRECISION}:
            names = ", ".join(sorted(str(kind) for kind in kinds))
            raise TypeError(
                f"parameters must be float32, bfloat16 or float16, or all of them float64, got {names}: cast the model"
            )
        parameters = Layout.of({name: tensor.shape for name, tensor in trained})
        wanted = set(statistics)
        buffers = _blocks(
            [(name, tensor) for name, tensor in model.named_buffers() if name in wanted], parameters.length
        )
        dtype = np.float64 if torch.float64 in kinds else np.float32
        return cls(parameters, buffers, dtype, tuple(tensor.dtype for _, tensor in trained))

    @property
    def num_parameters(self) -> int:
        """The number of trained entries."""
        return self.parameters.length

    @property
    def num_statistics(self) -> int:
        """The number of entries of the buffers and the 1 at the end; 0 without buffers."""
        return self.buffers[-1].stop - self.num_parameters + 1 if self.buffers else 0

    @property
    def length(self) -> int:
        """The number of params."""
        return self.num_parameters + self.num_statistics

    @property
    def model_bytes(self) -> int:
        """The bytes of the parameters in the model, and of the statistics in params."""
        blocks = zip(self.parameters.blocks, self.model_dtypes, strict=True)
        trained: int = sum((block.stop - block.start) * kind.itemsize for block, kind in blocks)
        statistics: int = self.num_statistics * np.dtype(self.dtype).itemsize
        return trained + statistics

    @property
    def has_dtype_of_params(self) -> bool:
        """True if all parameters of the model have the dtype of params."""
        return {DTYPES.get(kind) for kind in self.model_dtypes} == {self.dtype}

    def vector_of(self, model: torch.nn.Module) -> Vector:
        """Return the parameters and buffers of a model as params."""
        vector: Vector = np.empty(self.length, self.dtype)
        flat, tensors = torch.from_numpy(vector), dict(model.named_parameters()) | dict(model.named_buffers())
        for block in (*self.parameters.blocks, *self.buffers):
            flat[block.entries].copy_(tensors[block.name].detach().reshape(-1))
        if self.buffers:
            vector[-1] = 1.0
        return vector

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return a view of the flat tensor for each parameter."""
        return self.parameters.views(flat)

    def runs(self) -> list[tuple[torch.dtype, list[Block]]]:
        """Return the parameters that follow each other and have the same dtype."""
        pairs = zip(self.model_dtypes, self.parameters.blocks, strict=True)
        return [(kind, [block for _, block in run]) for kind, run in groupby(pairs, key=lambda pair: pair[0])]


def _blocks(named: Iterable[tuple[str, torch.Tensor]], start: int) -> tuple[Block, ...]:
    blocks = []
    for name, tensor in named:
        blocks.append(Block(name, tuple(tensor.shape), start, start + tensor.numel()))
        start += tensor.numel()
    return tuple(blocks)


MAX_CACHED_VIEWS = 256
"""Views are cached for this many vectors, by address."""


@final
class CachedViews:
    """Views of the blocks of vectors, which are made once for each address."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._cached: dict[tuple[int, int, str], tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def of(self, vector: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the vector as a tensor, and its views. They do not keep an array alive, but a tensor they do."""
        if isinstance(vector, torch.Tensor):
            address = (vector.data_ptr(), vector.numel(), str(vector.dtype))
        else:
            address = (vector.ctypes.data, vector.size, vector.dtype.char)
        if address not in self._cached:
            if len(self._cached) >= MAX_CACHED_VIEWS:
                self._cached.clear()
            flat = vector if isinstance(vector, torch.Tensor) else tensor_of(vector)
            self._cached[address] = (flat, self._layout.views(flat))
        return self._cached[address]
