"""Prepares the next batch of a worker on a GPU while the current gradient is computed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from nowait.core import Sample
from nowait.numerics.splitmix import MASK, TICKET_STRIDE
from nowait.pytorch.batches import converted, moved
from nowait.pytorch.process import current_stream

Draw = Callable[[Sample], Any]
"""Returns the batch of a ticket in host memory."""


@final
class Prefetch:
    """The batch of the ticket that a worker most probably computes next, on its way to a device.

    A worker's tickets are numbered in order, and a batch is a pure function of the ticket. So the next batch can be
    drawn and copied while the device is busy. Nothing is prepared before two tickets in a row have shown that this
    process computes those of one worker only: a simulation computes those of many.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._last: tuple[int, int] | None = None
        """Worker and job of the latest ticket."""
        self._postponed: tuple[Sample, Draw] | None = None
        """The ticket whose batch has to be prepared."""
        self._prepared: tuple[int, Any, bool] | None = None
        """The key of a sample, its batch, and whether that is on the device, or on its way there."""

    def take(self, sample: Sample, draw: Draw) -> Any:
        """Return the batch of a ticket on the device: the prepared one, or one that is drawn now."""
        if self._prepared is None or self._prepared[0] != sample.key:
            return moved(draw(sample), self._device)  # what was prepared is of a later ticket
        (_, batch, is_moved), self._prepared = self._prepared, None
        if not is_moved:
            return moved(batch, self._device)
        if self._stream is not None:
            current = current_stream(self._device)
            current.wait_stream(self._stream)
            _each_tensor(batch, lambda tensor: tensor.record_stream(current))
        return batch

    def prepare_after(self, sample: Sample, draw: Draw, is_ready: Callable[[Sample], bool]) -> None:
        """Draw the batch of the ticket after this one, if that is possible now, and start to copy it to the device.

        That waits for ``between_gradients`` if the device has nothing to compute, or the batch is not ready: the
        gradient should not wait for it.
        """
        follows = self._last == (sample.worker, sample.job - 1)
        self._last, self._postponed = (sample.worker, sample.job), None
        if not follows:
            return
        following = Sample(sample.worker, sample.job + 1, (sample.key + TICKET_STRIDE) & MASK)
        if (self._stream is not None and self.is_idle()) or not is_ready(following):
            self._postponed = (following, draw)
        else:
            self._prepare(following, draw)

    @property
    def has_prepared(self) -> bool:
        """True if the batch of the next ticket is prepared."""
        return self._prepared is not None

    def is_idle(self) -> bool:
        """Return True if the device has computed everything it was given."""
        return self._stream is None or bool(current_stream(self._device).query())

    def between_gradients(self) -> None:
        """Prepare the next batch now, if that was postponed."""
        if self._postponed is not None:
            (following, draw), self._postponed = self._postponed, None
            self._prepare(following, draw)

    def _prepare(self, following: Sample, draw: Draw) -> None:
        try:
            batch = draw(following)
            is_plain = _is_plain(batch)
            self._prepared = (following.key, self._moved(batch) if is_plain else batch, is_plain)
        except Exception:  # if the ticket comes, it is drawn again, and the error is reported as its own
            self._prepared = None

    def _moved(self, batch: Any) -> Any:
        if self._stream is None:
            return moved(batch, self._device)
        with torch.cuda.stream(self._stream):
            return moved(_each_tensor(batch, _pinned), self._device, non_blocking=True)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def _is_plain(batch: Any) -> bool:
    """Return True if a batch consists of dense tensors of the processor, in lists, tuples and dictionaries.

    Objects that move themselves with ``to(device)`` hold tensors that cannot be protected from being overwritten.
    """
    if isinstance(batch, torch.Tensor):
        return batch.device.type == "cpu" and batch.layout == torch.strided
    if hasattr(batch, "to"):
        return False
    plain: list[bool] = []
    converted(batch, lambda item: plain.append(_is_plain(item)))
    return all(plain)


def _each_tensor(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Return a plain batch with a function applied to its tensors."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    return converted(batch, lambda item: _each_tensor(item, function))
