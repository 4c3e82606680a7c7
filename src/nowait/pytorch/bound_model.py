"""Models whose parameters and gradients are views of params and gradient vectors."""

from __future__ import annotations

from typing import Any, Protocol, final

import numpy as np
import torch

from nowait.pytorch.flat import DTYPES, TENSOR_DTYPES, CachedViews, ModelLayout, tensor_of


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
class ViewingModel:
    """A model on the device where points and gradients are.

    Parameters are views of the point and their ``.grad`` are views of ``out``: no copies.
    """

    def __init__(self, model: torch.nn.Module, layout: ModelLayout, device: torch.device) -> None:
        self.model, self.device = model.to(device), device
        self._layout = layout
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._views = CachedViews(layout.parameters)

    def load(self, point: Any) -> None:
        """Make the parameters views of the point, and copy its statistics into the buffers, which a model changes."""
        flat, views = self._views.of(point)
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.data = view
        with torch.no_grad():
            self._layout.load_buffers(self.model, flat)

    def zero_gradient(self, out: Any) -> None:
        """Fill ``out`` with zeros, and make the gradients views of it."""
        out[:] = 0
        for parameter, view in zip(self._parameters, self._views.of(out)[1], strict=True):
            parameter.grad = view

    def store_gradient(self, out: Any, divisor: float = 1.0) -> None:
        """Write the buffers into ``out``, and gradients that autograd put into other tensors, such as sparse ones."""
        flat, views = self._views.of(out)
        with torch.no_grad():
            _copy_replaced_gradients(self._parameters, views)
            for parameter in self._parameters:
                parameter.grad = None
            if divisor != 1:
                flat[: self._layout.num_parameters] /= divisor
            self._layout.store_buffers(self.model, flat)
        _wait_for(self.device)


@final
class CopyingModel:
    """A model on another device than points and gradients, or of another dtype. Its parameters are views of one tensor.

    Arrays are copied through pinned memory, and tensors of other devices directly.
    """

    def __init__(self, model: torch.nn.Module, layout: ModelLayout, device: torch.device) -> None:
        self.model, self.device, self._layout = model.to(device), device, layout
        kind = TENSOR_DTYPES[np.dtype(layout.dtype).type]
        self._point = torch.empty(layout.length, dtype=kind, device=device)
        self._gradient = torch.empty_like(self._point)
        """Both as the server has them, with its dtype and the statistics at the end."""
        self._staging = torch.empty(layout.length, dtype=kind, pin_memory=device.type == "cuda")
        trained = self._point[: layout.num_parameters], self._gradient[: layout.num_parameters]
        self._flat, self._flat_gradient = (tensor.to(layout.model_dtype) for tensor in trained)
        """The same memory, or tensors of the model's dtype, if that is another one."""
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._views, self._gradient_views = layout.views(self._flat), layout.views(self._flat_gradient)

    def load(self, point: Any) -> None:
        """Copy the point to the device; parameters that the model has moved elsewhere become views again.

        ``flatten_parameters`` of recurrent layers moves them.
        """
        source = point
        if not isinstance(point, torch.Tensor):
            self._staging.copy_(tensor_of(point))
            source = self._staging
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self._views, strict=True):
                if parameter.data_ptr() != view.data_ptr():
                    parameter.data = view
            self._point.copy_(source, non_blocking=self.device.type == "cuda")
            _copy_if_other(self._point, self._flat)
            self._layout.load_buffers(self.model, self._point)

    def zero_gradient(self, out: Any) -> None:
        """Set the flat gradient on the device to zero, and make the gradients views of it."""
        self._flat_gradient.zero_()
        for parameter, view in zip(self._parameters, self._gradient_views, strict=True):
            parameter.grad = view

    def store_gradient(self, out: Any, divisor: float = 1.0) -> None:
        """Copy the gradients and buffers from the device into ``out``."""
        gradient = self._gradient[: self._layout.num_parameters]
        with torch.no_grad():
            _copy_replaced_gradients(self._parameters, self._gradient_views)
            _copy_if_other(self._flat_gradient, gradient)
            if divisor != 1:
                gradient /= divisor
            self._layout.store_buffers(self.model, self._gradient)
            if isinstance(out, torch.Tensor):
                out.copy_(self._gradient)
                _wait_for(out.device)
            else:
                self._staging.copy_(self._gradient)
                tensor_of(out).copy_(self._staging)


def _copy_if_other(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy as many entries as both have, unless they are in the same memory."""
    if source.data_ptr() != target.data_ptr():
        count = min(len(source), len(target))
        target[:count].copy_(source[:count])


def bound_model(
    model: torch.nn.Module, layout: ModelLayout, device: torch.device, vectors_on: torch.device
) -> BoundModel:
    """Return the model on this device, ready to compute gradients from vectors that are on ``vectors_on``."""
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True  # otherwise a replay could compute other bits
    same_dtype = DTYPES.get(layout.model_dtype) == layout.dtype
    kind = ViewingModel if device == vectors_on and same_dtype else CopyingModel
    return kind(model, layout, device)


def _wait_for(device: torch.device) -> None:
    """Wait for the computations on a device, but not for the copies of the next batch, which have their own stream."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _copy_replaced_gradients(parameters: list[torch.nn.Parameter], views: list[torch.Tensor]) -> None:
    """Copy gradients that are no longer views, because autograd or a hook replaced them, into their views."""
    for parameter, view in zip(parameters, views, strict=True):
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            view.copy_(gradient.to_dense())  # a sparse tensor has no data_ptr to compare
        elif gradient is not None and gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
