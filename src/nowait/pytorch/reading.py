"""Reads params from state dicts, models and safetensors files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nowait.core.types import Vector
from nowait.pytorch.compiled_names import named_as_in, plain_name
from nowait.pytorch.flat import TENSOR_DTYPES, ModelLayout
from nowait.recording.checkpoints import REST, params_in
from nowait.recording.model_file import MODEL

logger = logging.getLogger("nowait")


def params_of(source: Any, model: torch.nn.Module, layout: ModelLayout) -> Vector:
    """Return the params in a state dict, a model or a file; ``model`` is a new one, into which they are loaded."""
    if isinstance(source, torch.nn.Module):
        source = source.state_dict() | _unsaved_statistics(source, layout)
    elif isinstance(source, str | Path):
        source = _tensors_in(Path(source))
    elif isinstance(source, torch.Tensor):
        source = {"params": source}
    if not isinstance(source, Mapping):
        raise TypeError(
            f"initial must be a vector, a state dict, a model or the path of a .safetensors file, "
            f"got {type(source).__name__}"
        )
    flat = source.get("params")
    if flat is not None and "params" not in model.state_dict():
        return _checked_flat(flat, layout)
    return _loaded(named_as_in(model, source), model, layout)


def _tensors_in(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"initial names {path}, but there is no such file")
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
        if REST in tensors:  # of a checkpoint, whose other params are in the file of its model
            if not (path.parent / MODEL).is_file():
                raise ValueError(f"{path} has few of the params: pass the {MODEL} that was beside it")
            tensors = {"params": torch.from_numpy(params_in(path.parent))}
    except SafetensorError as error:
        raise ValueError(
            f"{path} cannot be read as a safetensors file ({error}): pass torch.load(path) if torch.save wrote it"
        ) from None
    return tensors


def _checked_flat(flat: Any, layout: ModelLayout) -> Vector:
    if tuple(flat.shape) != (layout.length,) or flat.dtype != TENSOR_DTYPES[layout.dtype]:
        raise ValueError(
            f"params must have {layout.length} entries of {TENSOR_DTYPES[layout.dtype]}, "
            f"got {tuple(flat.shape)} of {flat.dtype}: these are the params of another problem"
        )
    vector: Vector = flat.detach().cpu().numpy().copy()
    return vector


def _unsaved_statistics(model: torch.nn.Module, layout: ModelLayout) -> dict[str, torch.Tensor]:
    """Return the buffers that are statistics but not in state dicts (``persistent=False``), by name."""
    statistics = {plain_name(block.name) for block in layout.buffers}
    saved = model.state_dict()
    return {
        name: buffer for name, buffer in model.named_buffers() if name not in saved and plain_name(name) in statistics
    }


def _load_unsaved_statistics(state: dict[str, Any], model: torch.nn.Module, layout: ModelLayout) -> None:
    """Set the statistics that are not in state dicts, and remove them from this one, which may have them."""
    for name, buffer in _unsaved_statistics(model, layout).items():
        if name in state:
            buffer.copy_(state.pop(name))
        else:
            logger.warning(
                "state dicts and model files have no %s, which is registered with persistent=False: it starts with "
                "the value that build_model gives it",
                name,
            )


def _loaded(state: dict[str, Any], model: torch.nn.Module, layout: ModelLayout) -> Vector:
    _load_unsaved_statistics(state, model, layout)
    before = {name: tensor.clone() for name, tensor in _fixed(model, layout).items()}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # other shapes
        raise ValueError(f"the state dict is of another model: {error}") from None
    tensors = model.state_dict(keep_vars=True)
    found = {id(tensor) for name, tensor in tensors.items() if name in state}
    lacking = [name for name in missing if id(tensors[name]) not in found]  # tied weights may be stored once
    if lacking or unexpected:
        faults = [f"no {', no '.join(lacking[:3])}"] if lacking else []
        faults += [f"an unknown {', '.join(unexpected[:3])}"] if unexpected else []
        raise ValueError(f"the state dict is of another model: it has {' and '.join(faults)}")
    for name, tensor in _fixed(model, layout).items():
        if not torch.equal(tensor, before[name]):
            raise ValueError(
                f"the state dict has another {name}, which is not trained and so is no part of params: "
                f"load it in build_model"
            )
    return layout.vector_of(model)


def _fixed(model: torch.nn.Module, layout: ModelLayout) -> dict[str, torch.Tensor]:
    """Return the tensors that are not in params: frozen parameters, and buffers that training does not change."""
    tensors = model.state_dict(keep_vars=True)
    in_params = {*layout.parameters, *(block.name for block in layout.buffers)}
    trained = {id(tensor) for name, tensor in tensors.items() if name in in_params}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if id(tensor) not in trained and isinstance(tensor, torch.Tensor) and not name.endswith("num_batches_tracked")
    }
