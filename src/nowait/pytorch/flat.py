"""A model's parameters and buffers as one flat vector, without copies."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from nowait.core.types import Vector

DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


def tensor_of(array: Vector) -> torch.Tensor:
    """A tensor on the very memory of an array, also of one that numpy regards as read-only; it keeps nothing alive.

    Workers read their points from memory that is mapped for reading: who writes to such a tensor ends the process.
    """
    kind = ctypes.c_float if array.dtype == np.float32 else ctypes.c_double
    memory = (kind * array.size).from_address(array.ctypes.data)
    return torch.from_numpy(np.ctypeslib.as_array(memory))


@final
@dataclass(frozen=True)
class Piece:
    """A tensor's place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


@final
@dataclass(frozen=True)
class Layout:
    """Where the trained parameters and the buffers of a model are in params.

    Parameters come first; buffers that training changes follow as statistics, with a 1 at the end
    (``nowait.core.statistics``). Frozen parameters and other buffers are not part of it, tied ones are there once.
    """

    parameters: tuple[Piece, ...]
    buffers: tuple[Piece, ...]
    dtype: Any

    @classmethod
    def of(cls, model: torch.nn.Module, statistics: Iterable[str] = ()) -> Layout:
        """The layout of a model with these buffers as statistics, or an error that says what cannot be trained."""
        trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
        if not trained:
            raise ValueError(f"{type(model).__name__} has no parameters that require gradients: nothing to train")
        kinds = {tensor.dtype for _, tensor in trained}
        if len(kinds) > 1 or not kinds <= set(DTYPES):
            names = ", ".join(sorted(str(kind) for kind in kinds))
            raise TypeError(f"parameters must all be float32, or all float64, got {names}: cast the model first")
        parameters, end = _pieces(trained, 0)
        wanted = set(statistics)
        buffers, _ = _pieces([(name, tensor) for name, tensor in model.named_buffers() if name in wanted], end)
        return cls(parameters, buffers, DTYPES[kinds.pop()])

    @property
    def num_parameters(self) -> int:
        """How many entries are trained."""
        return self.parameters[-1].end

    @property
    def num_statistics(self) -> int:
        """How many entries the buffers take, and the 1 at the end."""
        return self.buffers[-1].end - self.num_parameters + 1 if self.buffers else 0

    @property
    def length(self) -> int:
        """The length of params."""
        return self.num_parameters + self.num_statistics

    def vector_of(self, model: torch.nn.Module) -> Vector:
        """The model's parameters and buffers as params."""
        vector = np.ones(self.length, self.dtype)
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        for piece in (*self.parameters, *self.buffers):
            vector[piece.start : piece.end] = tensors[piece.name].detach().cpu().reshape(-1).to(torch.float64).numpy()
        return vector

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """A view of the flat tensor for each parameter."""
        return [flat[piece.start : piece.end].view(piece.shape) for piece in self.parameters]

    def load_buffers(self, model: torch.nn.Module, flat: torch.Tensor) -> None:
        """Write the statistics of params into the model's buffers."""
        if self.buffers:
            tensors = dict(model.named_buffers())
            for piece in self.buffers:
                tensors[piece.name].copy_(flat[piece.start : piece.end].view(piece.shape))

    def store_buffers(self, model: torch.nn.Module, flat: torch.Tensor) -> None:
        """Write the model's buffers, and the 1 behind them, into a flat tensor."""
        if self.buffers:
            tensors = dict(model.named_buffers())
            for piece in self.buffers:
                flat[piece.start : piece.end].view(piece.shape).copy_(tensors[piece.name])
            flat[-1] = 1.0


def _pieces(named: Iterable[tuple[str, torch.Tensor]], start: int) -> tuple[tuple[Piece, ...], int]:
    pieces = []
    for name, tensor in named:
        pieces.append(Piece(name, tuple(tensor.shape), start, start + tensor.numel()))
        start += tensor.numel()
    return tuple(pieces), start
