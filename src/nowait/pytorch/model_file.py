"""What is in ``model.safetensors``: the state dict of a model, with its trained tensors taken from params."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nowait.core.types import Vector
from nowait.pytorch.compiled_names import PREFIX, use_plain_names
from nowait.pytorch.flat import DTYPES, ModelLayout, tensor_of
from nowait.recording.files import TensorEntry
from nowait.recording.model_file import ModelFile, ModelTensor

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The dtypes in the words of the safetensors format."""


def model_file_of(model: torch.nn.Module, layout: ModelLayout) -> ModelFile | None:
    """Return the file of a new model: the tensors that ``safetensors.torch.save_model`` writes, under the same names.

    None if the state dict has something else than the parameters and buffers of the model, or if two of them share
    memory without being the same: then only ``save_model`` knows what to write.
    """
    state = model.state_dict(keep_vars=True)
    if not _is_plain(model, state):
        return None
    names: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names.setdefault(id(tensor), []).append(name.replace(PREFIX, ""))
    kept = {min(names[id(tensor)]): tensor for tensor in state.values()}
    places, owned = _places(model, layout), sorted(kept, key=lambda name: (-kept[name].element_size(), name))
    tensors = tuple(_tensor(name, kept[name], places.get(id(kept[name])), layout) for name in owned)
    if any(tensor.dtype == torch.bfloat16 for tensor in kept.values()):  # NumPy, which reads params, does not have it
        tensors = tuple(replace(tensor, place=None) for tensor in tensors)
    return ModelFile(
        tensors,
        {name: min(tied) for tied in names.values() for name in tied if name != min(tied)},
    )


def is_small(file: ModelFile, layout: ModelLayout) -> bool:
    """Return True if the file has at most as many bytes of tensors that training does not change as of others."""
    total = sum(tensor.entry.num_bytes for tensor in file.tensors)
    return total <= 2 * layout.model_bytes


def write_with_safetensors(model: torch.nn.Module, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the file of any model that the safetensors package can write."""
    from safetensors.torch import save_model

    use_plain_names(model)
    save_model(model, str(path), dict(metadata))


def _is_plain(model: torch.nn.Module, state: Mapping[str, Any]) -> bool:
    owned = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    if not all(id(tensor) in owned and tensor.dtype in KINDS for tensor in state.values()):
        return False
    distinct = {id(tensor): tensor for tensor in state.values() if tensor.numel()}
    return len({tensor.untyped_storage().data_ptr() for tensor in distinct.values()}) == len(distinct)


def _places(model: torch.nn.Module, layout: ModelLayout) -> dict[int, tuple[int, int]]:
    """Return the places in params of the parameters and buffers that training changes, by the id of the tensor."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    blocks = (*layout.parameters.blocks, *layout.buffers)
    return {id(tensors[block.name]): (block.start, block.stop) for block in blocks}


def _tensor(name: str, tensor: torch.Tensor, place: tuple[int, int] | None, layout: ModelLayout) -> ModelTensor:
    entry = TensorEntry(name, KINDS[tensor.dtype], tuple(tensor.shape), tensor.numel() * tensor.element_size())
    if place is None:
        return ModelTensor(entry, partial(_constant, _bytes_of(tensor)))
    if DTYPES.get(tensor.dtype) == layout.dtype:
        return ModelTensor(entry, partial(_part, place=place), place)
    return ModelTensor(entry, partial(_converted, place=place, dtype=tensor.dtype))


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _constant(values: Any, _params: Vector) -> Any:
    return values


def _part(params: Vector, place: tuple[int, int]) -> Any:
    return params[slice(*place)]


def _converted(params: Vector, place: tuple[int, int], dtype: torch.dtype) -> Any:
    return _bytes_of(tensor_of(params[slice(*place)]).to(dtype))
