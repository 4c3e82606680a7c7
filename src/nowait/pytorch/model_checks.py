"""Checks of a model that run before any process starts: its buffers, its tensors and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

SCALAR = "loss must return a scalar tensor, got {}: take its mean"
Forward = Callable[[torch.nn.Module, Any], tuple[Any, Any]]


def changed_buffers(model: torch.nn.Module, forward: Forward, loss: Callable[..., Any], batch: Any) -> list[str]:
    """Run the model once in evaluation and once in training mode; return the names of the buffers that change.

    These buffers are its statistics. Integer buffers, such as the batch counter of batch normalisation, are left out;
    they keep their initial values. Raises ValueError if the model writes to its parameters.
    """
    _refuse_cumulative_averages(model)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for mode in (False, True):
        model.train(mode)
        versions = {name: parameter._version for name, parameter in model.named_parameters()}
        _check_loss(loss(*forward(model, batch)))
        written = [name for name, parameter in model.named_parameters() if parameter._version != versions[name]]
        if written:
            raise ValueError(
                f"the model writes to its parameter {written[0]} in forward (max_norm of an embedding does that): "
                f"parameters are shared, read-only memory"
            )
    changed = [name for name, buffer in model.named_buffers() if not _same(buffer, before[name])]
    for name in changed:
        if before[name].is_complex():
            raise ValueError(f"the buffer {name} is complex and changes in training: it cannot be merged")
    return [name for name in changed if before[name].is_floating_point()]


def check_separate(first: torch.nn.Module, second: torch.nn.Module) -> None:
    """Raise a ValueError if two models share tensors: ``build_model`` must return a new model on every call."""
    mine = {tensor.data_ptr() for tensor in (*first.parameters(), *first.buffers()) if tensor.numel()}
    if any(tensor.data_ptr() in mine for tensor in (*second.parameters(), *second.buffers()) if tensor.numel()):
        raise ValueError("build_model must return a new model on every call, but two calls returned the same tensors")


def momentum_of_statistics(model: torch.nn.Module, statistics: Iterable[str], batches: int) -> float:
    """Return the largest fraction by which some batches move the running statistics of normalisation layers.

    1 if one of the statistics is not of such a layer, or there are none.
    """
    layers = [one for one in model.modules() if isinstance(one, torch.nn.modules.batchnorm._NormBase)]
    known = {id(buffer) for layer in layers for buffer in (layer.running_mean, layer.running_var)}
    if not layers or any(id(model.get_buffer(name)) not in known for name in statistics):
        return 1.0
    return 1.0 - (1.0 - max(min(1.0, layer.momentum or 0.0) for layer in layers)) ** batches


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise TypeError(SCALAR.format(came))
    if not loss.requires_grad:
        raise TypeError("the loss does not depend on the model's parameters: no gradient can be computed")
    torch.autograd.backward(loss)


def _refuse_cumulative_averages(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        is_norm = isinstance(module, torch.nn.modules.batchnorm._NormBase)
        if is_norm and module.track_running_stats and module.momentum is None:
            raise ValueError(
                f"{name} averages over all batches (momentum=None), which workers cannot: give it a momentum"
            )


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))
