"""Draws the batches of tickets and computes the gradients of their losses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

from nowait.core import Sample
from nowait.pytorch.batches import Batches, moved
from nowait.pytorch.bound_model import BoundModel
from nowait.pytorch.loaders import Drawn, Loaders
from nowait.pytorch.per_worker import PerWorker
from nowait.pytorch.prefetch import Prefetch
from nowait.pytorch.rng import generator_states, same_states, seeded, set_generator_states
from nowait.pytorch.settings import ComputeSettings


def usual_forward(model: torch.nn.Module, batch: Any) -> tuple[Any, Any]:
    """Return the output of a model and the target, for a batch that is a pair (input, target)."""
    if isinstance(batch, Mapping | torch.Tensor) or (isinstance(batch, list | tuple) and len(batch) != 2):
        raise TypeError(
            f"items must be pairs (input, target), but a batch is a {type(batch).__name__} of {len(batch)}: "
            f"pass forward=, a function of (model, batch) that returns (output, target)"
        )
    inputs, targets = batch
    return model(inputs), targets


@final
class Gradients:
    """Adds the gradients of a ticket to those of a model; ``loss(*forward(model, batch))`` is the loss of a batch.

    Batches come from the data set, from processes that draw them ahead, or from the copy to a GPU that was started
    while the gradient before was computed. Their items are the same in each case.
    """

    def __init__(
        self,
        forward: Callable[[torch.nn.Module, Any], tuple[Any, Any]],
        loss: Callable[[Any, Any], torch.Tensor],
        batches: Batches,
        accumulate: PerWorker,
        devices: Sequence[torch.device],
        settings: ComputeSettings,
    ) -> None:
        self._forward, self._loss = forward, loss
        self._batches, self._accumulate = batches, accumulate
        self._devices, self._settings = devices, settings
        self._prefetches: dict[tuple[int, str], Prefetch] = {}
        self._latest_losses: list[torch.Tensor] = []
        self.loading_seconds = (0.0, 0.0)
        """How long the latest ticket waited for its batches, and how long a batch was drawn before it began."""
        self._seconds_between = 0.0
        self.loaders: Loaders | None = None

    def with_batches(self, batches: Batches) -> Gradients:
        """Return the same for other batches."""
        return Gradients(self._forward, self._loss, batches, self._accumulate, self._devices, self._settings)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return self.__dict__ | {"_prefetches": {}, "_latest_losses": [], "loaders": None}

    def device_of(self, worker: int) -> torch.device:
        """Return the device on which a worker computes."""
        return self._devices[worker % len(self._devices)]

    def prefetches_on(self, device: torch.device) -> bool:
        """Return True if the next batch is copied to this device while the current gradient is computed."""
        return device.type == "cuda" and not self._batches.is_stream

    def start_loaders(self, worker: int, count: int) -> None:
        """Start the processes that draw the batches of a worker ahead."""
        parts = self._accumulate.of_worker(worker)
        self.loaders = Loaders(self.draw_ahead, parts, count, in_order=self._batches.is_stream)

    def add(self, bound: BoundModel, sample: Sample) -> None:
        """Add the gradients of all batches of a ticket to those of the model's parameters."""
        self._latest_losses.clear()
        self.loading_seconds, self._seconds_between = (0.0, self._seconds_between), 0.0
        if self.prefetches_on(bound.device):
            self._add_with_prefetch(bound, sample)
        else:
            self._add(bound, sample)

    def between_gradients(self) -> None:
        """Draw the next batch, if the GPU was too fast for that to be done while it computed."""
        began = time.perf_counter()
        with self._settings.active():
            for prefetch in self._prefetches.values():
                prefetch.between_gradients()
        self._seconds_between = time.perf_counter() - began

    def mean_loss(self) -> float | None:
        """Return the mean loss of the batches of the latest ticket; None before the first one."""
        losses = [float(loss) for loss in self._latest_losses]
        return sum(losses) / len(losses) if losses else None

    def draw_ahead(self, sample: Sample, part: int) -> Drawn | None:
        """Draw a batch as the worker would, in one of its loader processes.

        On the processor the states of the generators follow from the batches before. So a batch after the first one of
        a ticket can be drawn ahead only if it uses no generator; otherwise this returns None.
        """
        with self._settings.active():
            return self._drawn_ahead(sample, part)

    def _add(self, bound: BoundModel, sample: Sample) -> None:
        """Draw each batch and use it; the data set and the model draw from the same generators."""
        parts = self._accumulate.of_worker(sample.worker)
        with seeded(sample.part(parts).key):
            for part in range(parts):
                began = time.perf_counter()
                drawn = None if self.loaders is None else self.loaders.take(sample, part)
                if drawn is not None and drawn.states is not None:
                    set_generator_states(drawn.states)
                batch = self._batches.draw(sample, part, parts) if drawn is None else drawn.batch
                batch = moved(batch, bound.device)
                self._loaded_since(began)
                self._backward(bound, batch, parts)

    def _add_with_prefetch(self, bound: BoundModel, sample: Sample) -> None:
        """Do the same on a GPU, and copy the first batch of the next ticket there while the GPU computes.

        Generators are seeded before every batch is drawn and again before it is used, so that it does not matter when
        it was drawn.
        """
        name = (os.getpid(), str(bound.device))
        if name not in self._prefetches:
            self._prefetches[name] = Prefetch(bound.device)
        prefetch = self._prefetches[name]
        parts = self._accumulate.of_worker(sample.worker)
        for part in range(parts):
            began = time.perf_counter()
            if part == 0:
                batch = prefetch.take(sample, self._first_batch)
            else:
                batch = moved(self._batch(sample, part), bound.device)
            self._loaded_since(began)
            with seeded(sample.part(parts).key + part):
                self._backward(bound, batch, parts)
        began = time.perf_counter()
        prefetch.prepare_after(sample, self._first_batch, self._is_first_batch_ready)
        if prefetch.has_prepared and prefetch.is_idle():
            self._loaded_since(began)  # the device had nothing to do any more while the batch was drawn

    def _loaded_since(self, began: float) -> None:
        inside, before = self.loading_seconds
        self.loading_seconds = (inside + time.perf_counter() - began, before)

    def _backward(self, bound: BoundModel, batch: Any, parts: int) -> None:
        with self._settings.precision(bound.device):
            loss = self._loss(*self._forward(bound.model, batch))
        self._latest_losses.append(loss.detach())
        factor = self._settings.loss_scale / parts
        with self._settings.one_thread(bound.device):
            torch.autograd.backward(loss if factor == 1 else loss * factor)

    def _first_batch(self, sample: Sample) -> Any:
        return self._batch(sample, 0)

    def _is_first_batch_ready(self, sample: Sample) -> bool:
        return self.loaders is None or self.loaders.is_ready(sample, 0)

    def _batch(self, sample: Sample, part: int) -> Any:
        drawn = None if self.loaders is None else self.loaders.take(sample, part)
        pinned = any(device.type == "cuda" for device in self._devices)
        return self._drawn_batch(sample, part, pinned=pinned) if drawn is None else drawn.batch

    def _drawn_batch(self, sample: Sample, part: int, *, pinned: bool) -> Any:
        """Draw a batch with generators of its own."""
        parts = self._accumulate.of_worker(sample.worker)
        if self._batches.is_plain:
            return self._batches.draw(sample, part, parts, pinned=pinned)
        with seeded(sample.part(parts + 1 + part).key):
            return self._batches.draw(sample, part, parts)

    def _drawn_ahead(self, sample: Sample, part: int) -> Drawn | None:
        if self.prefetches_on(self.device_of(sample.worker)):
            return Drawn(self._drawn_batch(sample, part, pinned=False), None)  # this process must not use CUDA
        parts = self._accumulate.of_worker(sample.worker)
        with seeded(sample.part(parts).key):
            before = generator_states()
            batch = self._batches.draw(sample, part, parts)
            after = generator_states()
        if same_states(before, after):
            return Drawn(batch, None)
        return Drawn(batch, after) if part == 0 or self._batches.is_stream else None
