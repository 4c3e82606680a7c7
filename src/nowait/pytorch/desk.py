"""A model bound to the memory that a worker is given."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from nowait.core.types import Vector
from nowait.pytorch.flat import Layout, tensor_of

MOST_BOUND = 256
"""Views of so many points and gradients are remembered, by address: they keep nothing alive."""


class Desk(Protocol):
    """Where gradients are computed."""

    model: torch.nn.Module
    device: torch.device

    def read(self, point: Vector) -> None:
        """Let the model have these params."""

    def begin(self, out: Vector) -> None:
        """Let its gradients, zero now, go into ``out``."""

    def finish(self, out: Vector) -> None:
        """See to it that gradients and buffers are in ``out``."""


class HostDesk:
    """On the processor: parameters are views of the point, their ``.grad`` views of the gradient. Nothing is copied."""

    def __init__(self, model: torch.nn.Module, layout: Layout) -> None:
        self.model, self.device = model, torch.device("cpu")
        self._layout = layout
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._bound: dict[tuple[int, int, str], tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def read(self, point: Vector) -> None:
        """Point the parameters at it; buffers are copied, for the model changes them."""
        flat, views = self._views(point)
        for parameter, view in zip(self._parameters, views, strict=True):
            parameter.data = view
        with torch.no_grad():
            self._layout.load_buffers(self.model, flat)

    def begin(self, out: Vector) -> None:
        """Point the gradients at it."""
        out[:] = 0
        for parameter, view in zip(self._parameters, self._views(out)[1], strict=True):
            parameter.grad = view

    def finish(self, out: Vector) -> None:
        """Buffers; and the gradients that autograd put elsewhere, such as sparse ones."""
        flat, views = self._views(out)
        with torch.no_grad():
            for parameter, view in zip(self._parameters, views, strict=True):
                if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                    view.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
                parameter.grad = None
            self._layout.store_buffers(self.model, flat)

    def _views(self, array: Vector) -> tuple[torch.Tensor, list[torch.Tensor]]:
        address = (array.ctypes.data, array.size, array.dtype.char)
        if address not in self._bound:
            if len(self._bound) >= MOST_BOUND:
                self._bound.clear()
            flat = tensor_of(array)
            self._bound[address] = (flat, self._layout.views(flat))
        return self._bound[address]


class DeviceDesk:
    """On an accelerator: parameters are views of one flat tensor there, filled through pinned memory."""

    def __init__(self, model: torch.nn.Module, layout: Layout, device: torch.device) -> None:
        torch.backends.cudnn.deterministic = True  # else a replay would not meet the same bits
        self.model, self.device, self._layout = model.to(device), device, layout
        kind = torch.float32 if layout.dtype == np.float32 else torch.float64
        self._flat = torch.empty(layout.length, dtype=kind, device=device)
        self._gradient = torch.empty_like(self._flat)
        pinned = device.type == "cuda"
        self._staging = torch.empty(layout.length, dtype=kind, pin_memory=pinned)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._views, self._gradients = layout.views(self._flat), layout.views(self._gradient)

    def read(self, point: Vector) -> None:
        """Copy it over; parameters that the model has bound elsewhere, as ``flatten_parameters`` does, come back."""
        self._staging.copy_(tensor_of(point))
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self._views, strict=True):
                if parameter.data_ptr() != view.data_ptr():
                    parameter.data = view
            self._flat.copy_(self._staging, non_blocking=True)
            self._layout.load_buffers(self.model, self._flat)

    def begin(self, out: Vector) -> None:
        """Gradients gather in one flat tensor."""
        self._gradient.zero_()
        for parameter, view in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = view

    def finish(self, out: Vector) -> None:
        """Copy them back."""
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self._gradients, strict=True):
                if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
                    view.copy_(parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
            self._layout.store_buffers(self.model, self._gradient)
            self._staging.copy_(self._gradient)
            tensor_of(out).copy_(self._staging)


def desk_for(model: torch.nn.Module, layout: Layout, device: torch.device) -> Any:
    """The desk on this device."""
    return HostDesk(model, layout) if device.type == "cpu" else DeviceDesk(model, layout, device)
