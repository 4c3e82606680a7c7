"""Checks of a model that run before any process starts: its buffers, its tensors and its loss."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch

from nowait.pytorch.flat import ModelLayout

logger = logging.getLogger("nowait")

SCALAR = "loss must return a scalar tensor, got {}: take its mean"
Forward = Callable[[torch.nn.Module, Any], tuple[Any, Any]]


def changed_buffers(
    model: torch.nn.Module, forward: Forward, loss: Callable[..., Any], batch: Any, passes: Counter[str] | None = None
) -> list[str]:
    """Run the model once in evaluation and once in training mode; return the names of the buffers that change.

    ``passes`` counts how often each normalisation layer runs for one gradient, by name; activation checkpointing runs
    layers again in the backward pass. The buffers that change are statistics of the model. Integer buffers, such as the
    batch counter of batch normalisation, are left out; they keep their initial values. Raises ValueError if the model
    writes to its parameters.
    """
    _refuse_cumulative_averages(model)
    _check_that_gradients_are_enabled()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    parameters = {name for name, _ in model.named_parameters()}
    for mode in (False, True):
        model.train(mode)
        with _counted(model, Counter() if passes is None or not mode else passes), WriteCheck(model):
            value = loss(*_pair(forward(model, batch)))
            _check_loss(value)
            if mode:
                torch.autograd.backward(value)
    _refuse_added(model, parameters, set(before))
    changed = [name for name, buffer in model.named_buffers() if not _same(buffer, before[name])]
    for name in changed:
        if before[name].is_complex():
            raise ValueError(f"the buffer {name} is complex and changes in training: it cannot be merged")
        if before[name].shape != model.get_buffer(name).shape:
            raise ValueError(f"the buffer {name} changes its shape in training: params have a fixed length")
    statistics = [name for name in changed if before[name].is_floating_point()]
    _warn_of_unsaved(model, statistics)
    return statistics


def _refuse_added(model: torch.nn.Module, parameters: set[str], buffers: set[str]) -> None:
    names = [name for name, _ in model.named_parameters() if name not in parameters]
    names += [name for name, _ in model.named_buffers() if name not in buffers]
    if names:
        raise ValueError(f"the model adds {names[0]} when it is called, so it would not be trained: add it in __init__")


def _warn_of_unsaved(model: torch.nn.Module, statistics: Sequence[str]) -> None:
    if unsaved := sorted({*statistics} - {*model.state_dict()}):
        logger.warning(
            "training changes the buffer %s, which is registered with persistent=False: params have it, but "
            "model.safetensors and best.safetensors do not",
            unsaved[0],
        )


@final
class WriteCheck:
    """A context in which a model must not write to its parameters; raises a ValueError at its end if it did.

    Where params are read-only memory, such as in worker processes, the write itself ends the process.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = dict(model.named_parameters())
        self._versions: list[int] = []

    def __enter__(self) -> None:
        self._versions = [parameter._version for parameter in self._parameters.values()]

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for (name, parameter), version in zip(self._parameters.items(), self._versions, strict=True):
                if parameter._version != version:
                    raise _written_to(name, parameter)


def _written_to(name: str, parameter: torch.nn.Parameter) -> ValueError:
    if parameter.requires_grad:
        return ValueError(
            f"the model writes to its parameter {name} in place (max_norm of an embedding does that, or a step of an "
            f"optimiser): parameters are shared, read-only memory; clone it before you change it"
        )
    return ValueError(
        f"the model writes to its frozen parameter {name}: it is not among the params of the run, so every worker "
        f"would have another value; register it as a buffer, which workers send with their gradients"
    )


def _check_that_gradients_are_enabled() -> None:
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        raise ValueError("gradients are switched off here: leave torch.no_grad() or torch.inference_mode() first")


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise TypeError(f"forward must return a pair (output, target), got a {type(result).__name__}")
    return result[0], result[1]


def check_function(function: Any, name: str, arguments: str, *, optional: bool) -> None:
    """Raise a TypeError unless an argument of a problem is a function, or None if it is optional."""
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        raise TypeError(f"{name} is the class {function.__name__}: pass an object of it, {function.__name__}()")
    if not callable(function) and not (function is None and optional):
        raise TypeError(f"{name} must be a function of {arguments}, got {function!r}")


def check_factory(build_model: Any) -> None:
    """Raise a TypeError unless ``build_model`` is a function or a class, and not a model itself."""
    if isinstance(build_model, torch.nn.Module):
        raise TypeError(
            f"build_model must be a function that returns a new model, got a model ({type(build_model).__name__}): "
            f"pass lambda: copy.deepcopy(model)"
        )
    if not callable(build_model):
        raise TypeError(f"build_model must be a function that returns a new model, got {build_model!r}")


def check_shapes(model: torch.nn.Module) -> None:
    """Raise a ValueError if a lazy layer does not know its shape yet, or a tensor has no values."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ValueError(f"{name} of the model is on the device 'meta', where tensors have no values: load them")
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"{name} of the model has no shape yet, because its layer is lazy: call the model once in build_model, "
                f"on an input of the right shape, before you return it"
            )


def check_layout(layout: ModelLayout, expected: ModelLayout) -> None:
    """Raise a ValueError unless a model has the parameters of the model from which the problem was made."""
    if layout == expected:
        return
    if layout.parameters == expected.parameters and layout.model_dtypes != expected.model_dtypes:
        pairs = zip(layout.parameters.blocks, layout.model_dtypes, expected.model_dtypes, strict=True)
        name, kind, before = next((block.name, kind, before) for block, kind, before in pairs if kind != before)
        raise ValueError(
            f"build_model returned a model whose {name} is {kind}, but {before} when the problem was made: set the "
            f"dtype in build_model, or call torch.set_default_dtype before the problem is made and not later"
        )
    raise ValueError("build_model returned a model with other shapes than when the problem was made")


def check_separate(first: torch.nn.Module, second: torch.nn.Module) -> None:
    """Raise a ValueError if two models share tensors: ``build_model`` must return a new model on every call."""
    mine = {tensor.data_ptr() for tensor in (*first.parameters(), *first.buffers()) if tensor.numel()}
    if any(tensor.data_ptr() in mine for tensor in (*second.parameters(), *second.buffers()) if tensor.numel()):
        raise ValueError("build_model must return a new model on every call, but two calls returned the same tensors")


@contextmanager
def _counted(model: torch.nn.Module, passes: Counter[str]) -> Iterator[None]:
    """Count how often each normalisation layer runs."""

    def counting(name: str) -> Callable[..., None]:
        return lambda *_: passes.update([name])

    hooks = [layer.register_forward_hook(counting(name)) for name, layer in _normalisation_layers(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _normalisation_layers(model: torch.nn.Module) -> list[tuple[str, Any]]:
    kind = torch.nn.modules.batchnorm._NormBase
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, kind)]


def momentum_of_statistics(
    model: torch.nn.Module, statistics: Sequence[str], passes: Mapping[str, int], batches: int | None
) -> float:
    """Return the largest fraction by which one gradient moves the running statistics of normalisation layers.

    ``passes`` says how often each layer runs per batch. 1 if one of the statistics is not of such a layer, if there are
    none, or if the number of batches is not known.
    """
    layers = _normalisation_layers(model)
    known = {id(buffer) for _, layer in layers for buffer in (layer.running_mean, layer.running_var)}
    if not statistics or batches is None or any(id(model.get_buffer(name)) not in known for name in statistics):
        return 1.0
    kept = min((1.0 - min(1.0, layer.momentum or 0.0)) ** (max(1, passes[name]) * batches) for name, layer in layers)
    return 1.0 - kept if kept < 1.0 else 1.0


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise TypeError(SCALAR.format(came))
    if not loss.requires_grad:
        raise TypeError("the loss does not depend on the model's parameters: no gradient can be computed")
    if bool(torch.isnan(loss.detach())):
        raise ValueError(
            "the loss of the first batch is NaN, with the model as build_model returns it: look at the first items of "
            "train_set, the initial weights and the loss"
        )


def _refuse_cumulative_averages(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        is_norm = isinstance(module, torch.nn.modules.batchnorm._NormBase)
        if is_norm and module.track_running_stats and module.momentum is None:
            raise ValueError(
                f"{name} averages over all batches (momentum=None), which workers cannot: give it a momentum"
            )


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape and torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))


def have_same_values(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Return True if two models have the same parameters and buffers."""
    others = other.state_dict()
    return all(
        isinstance(tensor, torch.Tensor) and torch.equal(tensor, others[name])
        for name, tensor in model.state_dict().items()
    )
