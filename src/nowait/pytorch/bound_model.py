"""Models whose parameters and gradients are views of params and gradient vectors."""

from __future__ import annotations

from typing import Any, Protocol, final

import numpy as np
import torch

from nowait.pytorch.cuda_runtime import PinnedArrays
from nowait.pytorch.flat import TENSOR_DTYPES, CachedViews, ModelLayout, tensor_of
from nowait.pytorch.process import current_stream, in_worker

HOST = torch.device("cpu")


class BoundModel(Protocol):
    """A model on some device, through which gradients are computed. Vectors are NumPy arrays or tensors."""

    model: torch.nn.Module
    device: torch.device

    def load(self, point: Any) -> None:
        """Set the parameters and buffers of the model to a point."""

    def zero_gradient(self, out: Any) -> None:
        """Set the gradients of the parameters to zero, before they are accumulated for ``out``."""

    def store_gradient(self, out: Any, divisor: float = 1.0) -> None:
        """Write the gradients, divided by a number, and the buffers into ``out``. They are complete when it returns."""


@final
class Buffers:
    """The buffers of a model that are statistics at the end of params, copied in few operations on a GPU."""

    def __init__(self, model: torch.nn.Module, layout: ModelLayout) -> None:
        names = [block.name.rpartition(".") for block in layout.buffers]
        self._owners = [(model.get_submodule(path), name) for path, _, name in names]
        """Modules and names: a module may put another tensor in the place of a buffer."""
        self._shapes = [block.shape for block in layout.buffers]
        self._sizes = [block.stop - block.start for block in layout.buffers]
        self._first = layout.num_parameters

    def load(self, flat: torch.Tensor) -> None:
        """Copy the statistics in params into the buffers."""
        if self._owners:
            _copy_all(self._views(flat), self._tensors())

    def store(self, flat: torch.Tensor) -> None:
        """Copy the buffers, and the 1 after them, into a flat tensor."""
        if self._owners:
            _copy_all(self._tensors(), self._views(flat))
            flat[-1] = 1.0

    def _tensors(self) -> list[torch.Tensor]:
        return [getattr(owner, name) for owner, name in self._owners]

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        pieces = torch.split(flat[self._first : -1], self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]


def _copy_all(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
    """Copy tensors, those of the same dtypes in one operation."""
    groups: dict[tuple[torch.dtype, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for source, target in zip(sources, targets, strict=True):
        froms, tos = groups.setdefault((source.dtype, target.dtype), ([], []))
        froms.append(source)
        tos.append(target)
    for froms, tos in groups.values():
        torch._foreach_copy_(tos, froms)


@final
class ViewingModel:
    """A model on the device where points and gradients are.

    Parameters are views of the point: no copies. On the processor, gradients are accumulated in views of ``out``. On a
    GPU autograd makes new tensors, which are copied to ``out`` together: that takes half the memory traffic and fewer
    operations than to fill ``out`` with zeros and to add to it.
    """

    def __init__(self, model: torch.nn.Module, layout: ModelLayout, device: torch.device) -> None:
        self.model, self.device = model.to(device), device
        self._layout, self._buffers = layout, Buffers(model, layout)
        self._accumulates_in_place = device.type == "cpu"
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._views = CachedViews(layout.parameters)
        for parameter in self._parameters:  # the values that it was built with are not needed
            parameter.data = parameter.data.new_empty(0)

    def load(self, point: Any) -> None:
        """Make the parameters views of the point, and copy its statistics into the buffers, which a model changes."""
        flat, views = self._views.of(point)
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.data = view
        with torch.no_grad():
            self._buffers.load(flat)

    def zero_gradient(self, out: Any) -> None:
        """Remove the gradients, or fill ``out`` with zeros and make the gradients views of it."""
        if not self._accumulates_in_place:
            for parameter in self._parameters:
                parameter.grad = None
            return
        out[:] = 0
        for parameter, view in zip(self._parameters, self._views.of(out)[1], strict=True):
            parameter.grad = view

    def store_gradient(self, out: Any, divisor: float = 1.0) -> None:
        """Write the buffers into ``out``, and gradients that are in other tensors."""
        flat, views = self._views.of(out)
        with torch.no_grad():
            _copy_gradients(self._parameters, views)
            for parameter in self._parameters:
                parameter.grad = None
            if divisor != 1:
                flat[: self._layout.num_parameters] /= divisor
            self._buffers.store(flat)
        _wait_for(self.device)


@final
class CopyingModel:
    """A model on another device than points and gradients, or of other dtypes.

    Its parameters are views of one tensor, or of a few if they have several dtypes.
    Copies between a GPU and the host go through pinned memory. In worker processes the memory of points and gradients
    is pinned itself, if that is possible.
    """

    def __init__(
        self, model: torch.nn.Module, layout: ModelLayout, device: torch.device, vectors_on: torch.device = HOST
    ) -> None:
        self.model, self.device, self._layout = model.to(device), device, layout
        self._buffers = Buffers(model, layout)
        kind = TENSOR_DTYPES[np.dtype(layout.dtype).type]
        pin = device.type == "cpu" and vectors_on.type == "cuda"
        self._point = torch.empty(layout.length, dtype=kind, device=device, pin_memory=pin)
        self._gradient = torch.empty(layout.length, dtype=kind, device=device, pin_memory=pin)
        """Both as the server has them, with its dtype and the statistics at the end."""
        self._staging: torch.Tensor | None = None
        self._arrays = PinnedArrays(device) if device.type == "cuda" and in_worker() else None
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._values, self._gradients = _TensorsOf(self._point, layout), _TensorsOf(self._gradient, layout)

    def load(self, point: Any) -> None:
        """Copy the point to the device; parameters that the model has moved elsewhere become views again.

        ``flatten_parameters`` of recurrent layers moves them.
        """
        source = point
        if not isinstance(point, torch.Tensor):
            source = self._on_host(point)
            if source is self._staging:
                source.copy_(tensor_of(point))
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self._values.tensors, strict=True):
                if parameter.data_ptr() != view.data_ptr():
                    parameter.data = view
            self._point.copy_(source, non_blocking=self.device.type == "cuda")
            self._values.read()
            self._buffers.load(self._point)

    def zero_gradient(self, out: Any) -> None:
        """Set the gradient on the device to zero, and make the gradients of the parameters views of it."""
        self._gradients.set_to_zero()
        for parameter, view in zip(self._parameters, self._gradients.tensors, strict=True):
            parameter.grad = view

    def store_gradient(self, out: Any, divisor: float = 1.0) -> None:
        """Copy the gradients and buffers from the device into ``out``."""
        gradient = self._gradient[: self._layout.num_parameters]
        with torch.no_grad():
            _copy_gradients(self._parameters, self._gradients.tensors)
            self._gradients.write()
            if divisor != 1:
                gradient /= divisor
            self._buffers.store(self._gradient)
            if isinstance(out, torch.Tensor):
                out.copy_(self._gradient)
                _wait_for(out.device)
            else:
                target = self._on_host(out)
                target.copy_(self._gradient)
                if target is self._staging:
                    tensor_of(out).copy_(target)

    def _on_host(self, array: Any) -> torch.Tensor:
        """Return a tensor through which an array is copied: the array itself, or one in pinned memory."""
        if self.device.type == "cpu" or (self._arrays is not None and self._arrays.pin(array)):
            return tensor_of(array)
        if self._staging is None:
            self._staging = torch.empty(self._layout.length, dtype=self._point.dtype, pin_memory=True)
        return self._staging


@final
class _TensorsOf:
    """One tensor for each parameter of a model: a view of a vector like params, or of memory of the parameter's dtype.

    Parameters of another dtype than params that follow each other share one tensor, which is copied at once.
    """

    def __init__(self, vector: torch.Tensor, layout: ModelLayout) -> None:
        self.tensors: list[torch.Tensor] = []
        self._flats: list[torch.Tensor] = []
        self._parts: list[torch.Tensor] = []
        """The parts of the vector that are converted, and the memory that they are converted to."""
        self._converted: list[torch.Tensor] = []
        for kind, blocks in layout.runs():
            start = blocks[0].start
            part = vector[start : blocks[-1].stop]
            flat = part.to(kind)
            self._flats.append(flat)
            if kind != vector.dtype:
                self._parts.append(part)
                self._converted.append(flat)
            self.tensors += [flat[block.start - start : block.stop - start].view(block.shape) for block in blocks]

    def set_to_zero(self) -> None:
        """Set all tensors to zero."""
        torch._foreach_zero_(self._flats)

    def read(self) -> None:
        """Convert the vector to the tensors that are no views of it."""
        _copy_all(self._parts, self._converted)

    def write(self) -> None:
        """Convert these tensors, and write them into the vector."""
        _copy_all(self._converted, self._parts)


def bound_model(
    model: torch.nn.Module, layout: ModelLayout, device: torch.device, vectors_on: torch.device
) -> BoundModel:
    """Return the model on this device, ready to compute gradients from vectors that are on ``vectors_on``."""
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True  # otherwise a replay could compute other bits
    if device == vectors_on and layout.has_dtype_of_params:
        return ViewingModel(model, layout, device)
    return CopyingModel(model, layout, device, vectors_on)


def _wait_for(device: torch.device) -> None:
    """Wait for the computations on a device, but not for the copies of the next batch, which have their own stream."""
    if device.type == "cuda":
        current_stream(device).synchronize()


def _copy_gradients(parameters: list[torch.nn.Parameter], views: list[torch.Tensor]) -> None:
    """Copy gradients that are no views, because autograd or a hook made other tensors, into their views."""
    sources, targets = [], []
    for parameter, view in zip(parameters, views, strict=True):
        gradient = parameter.grad
        if gradient is None:  # the loss does not depend on this parameter
            view.zero_()
        elif gradient.is_sparse:
            view.copy_(gradient.to_dense())  # a sparse tensor has no data_ptr to compare
        elif gradient.data_ptr() != view.data_ptr():
            sources.append(gradient)
            targets.append(view)
    if sources:
        _copy_all(sources, targets)
