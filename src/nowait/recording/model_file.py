"""The file ``model.safetensors``: the tensors of a model, by the names of its state dict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from nowait.core.types import Vector
from nowait.recording.errors import DamagedFileError
from nowait.recording.files import Contents, TensorEntry, read_tensors, tensor_header

MODEL = "model.safetensors"
Places = dict[str, tuple[int, int]]
"""The first entry in params of every tensor, by name, and that after its last one."""


@final
@dataclass(frozen=True)
class ModelTensor:
    """A tensor of the file."""

    entry: TensorEntry
    data: Callable[[Vector], Any]
    """``data(params)`` returns its values in contiguous memory: of params, or others that training does not change."""
    place: tuple[int, int] | None = None
    """Its place in params, if they have the same values, bit for bit."""


@final
@dataclass(frozen=True)
class ModelFile:
    """Says what is written to the file. Other threads may use it: it builds no model."""

    tensors: tuple[ModelTensor, ...]
    """The largest dtypes first, so that every tensor is aligned."""
    aliases: Mapping[str, str]
    """The names of tied tensors that are not in the file, and the names they are under."""

    @property
    def places(self) -> Places:
        """The places of the tensors that are a part of params."""
        return {tensor.entry.name: tensor.place for tensor in self.tensors if tensor.place is not None}

    def pieces(self, params: Vector, metadata: Mapping[str, str] | None = None) -> Iterable[Any]:
        """Yield the bytes of the file for these params, a NumPy array, with at most one tensor copied at a time."""
        yield tensor_header([tensor.entry for tensor in self.tensors], dict(self.aliases) | dict(metadata or {}))
        for tensor in self.tensors:
            if tensor.entry.num_bytes:
                yield tensor.data(params)


def rest_of(params: Vector, places: Places) -> Vector:
    """Return the entries of params that are in none of these places."""
    rest: Vector = np.concatenate([params[gap] for gap in _gaps(places, len(params))])
    return rest


def read_params(path: Path, contents: Contents, places: Places, rest: Vector) -> Vector:
    """Return the params of which a model file has the tensors at these places; ``rest`` are the others."""
    tensors = read_tensors(path, contents)
    for name, (start, stop) in places.items():
        if name not in tensors or tensors[name].size != stop - start or tensors[name].dtype != rest.dtype:
            raise DamagedFileError(path, f"its tensor {name} is missing or of another size or dtype")
    length = len(rest) + sum(stop - start for start, stop in places.values())
    gaps = _gaps(places, length)
    if any(gap.start > gap.stop for gap in gaps):
        raise DamagedFileError(path, "the places of its tensors in params do not fit together")
    params: Vector = np.empty(length, rest.dtype)
    for name, (start, stop) in places.items():
        params[start:stop] = tensors.pop(name).reshape(-1)
    first = 0
    for gap in gaps:
        size = gap.stop - gap.start
        params[gap] = rest[first : first + size]
        first += size
    return params


def _gaps(places: Places, length: int) -> list[slice]:
    """Return the parts of a vector between and after the places; the last one may be empty."""
    bounds = [bound for place in sorted(places.values()) for bound in place]
    edges = [0, *bounds, length]
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
