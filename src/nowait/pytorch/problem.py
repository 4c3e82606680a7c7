"""A PyTorch model and its data as a problem."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch

from nowait.core import Sample, Update, checks
from nowait.core.randomness import checked_seed
from nowait.core.types import Vector
from nowait.problems.shards import Shards
from nowait.pytorch.batches import Batches, moved
from nowait.pytorch.desk import desk_for
from nowait.pytorch.flat import Layout, tensor_of
from nowait.pytorch.optimizer import TorchOptimizer

Metric = Callable[[Any, Any], Any]
TRIED_ITEMS = 2
EVALUATED_ITEMS = 2_048
"""Without a validation set the loss is that of so many items of the training set."""
SEED_BITS = (1 << 63) - 1


def _usual_forward(model: torch.nn.Module, batch: Any) -> tuple[Any, Any]:
    inputs, targets = batch
    return model(inputs), targets


@final
class TorchProblem:
    """A model, its loss and its data, for ``nw.train``, ``nw.simulate`` and ``nw.replay``.

    ``build_model`` makes the model; ``loss(output, target)`` is a scalar tensor; ``train_set`` is a data set of (input,
    target) pairs, or anything that ``forward(model, batch) -> (output, target)`` can use. The loss of a run is the mean
    over ``validation``, or over the first items of the training set; ``metrics`` are functions of (output, target)
    whose means ``evaluate`` gives. ``sampling="epochs"`` takes every item once an epoch, else items are drawn with
    replacement. ``clip_norm`` clips gradients at the worker, ``accumulate`` adds up several batches.

    ``device`` is one, or a list over which workers are spread. Every worker computes with ``threads`` threads.

    The model's buffers, such as the statistics of batch normalisation, are the last entries of params: workers measure
    them, and the server keeps a running mean.
    """

    def __init__(
        self,
        build_model: Callable[[], torch.nn.Module],
        loss: Callable[[Any, Any], torch.Tensor],
        train_set: Any,
        *,
        batch_size: int = 64,
        validation: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        forward: Callable[[torch.nn.Module, Any], tuple[Any, Any]] | None = None,
        sampling: str = "replacement",
        clip_norm: float | None = None,
        accumulate: int = 1,
        device: str | Sequence[str] = "cpu",
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self._build, self._loss, self._forward = build_model, loss, forward or _usual_forward
        self._metrics = dict(metrics or {})
        self._batches = Batches.of(train_set, batch_size, sampling, collate_fn)
        if validation is not None and len(validation) == 0:
            raise ValueError("validation is empty: leave it out, and the training set serves")
        self._validation = validation
        self._clip = None if clip_norm is None else checks.positive(clip_norm, "clip_norm", "it is a length")
        self._accumulate = checks.at_least(1, accumulate, "accumulate", "it counts batches")
        self._devices = _checked_devices(device)
        self._threads = checks.at_least(1, threads, "threads", "somebody has to compute")
        self._seed = checked_seed(seed)
        self._desks: dict[tuple[int, str], Any] = {}
        with self._few_threads():
            model = self._made()
            self._layout = Layout.of(model)
            if Layout.of(self._made()) != self._layout:
                raise ValueError("build_model must make the same model every time: the shapes of two of them differ")
            self._initial = self._layout.vector_of(model)
            self._frozen = _frozen_state(model, self._layout)
            self._try(model)

    # What engines ask of a problem

    @property
    def dimension(self) -> int:
        """The number of params: trained ones, buffers, and a 1 behind those."""
        return self._layout.length

    @property
    def num_statistics(self) -> int:
        """How many of the last params are buffers."""
        return self._layout.num_statistics

    @property
    def num_shards(self) -> int:
        """For how many workers the data are split."""
        return 1 if self._batches.shards is None else self._batches.shards.count

    @property
    def replayable(self) -> bool:
        """Whether gradients follow from point and sample; not with an IterableDataset."""
        return not self._batches.is_stream

    def initial(self) -> Vector:
        """The params of the model as it was built."""
        return self._initial.copy()

    def usual_update(self) -> Update:
        """``torch.optim.SGD``, whose rounding is that of a plain PyTorch loop."""
        return TorchOptimizer(torch.optim.SGD)

    def prepare(self) -> None:
        """Build the model before workers are forked, with one thread: others would not survive the fork."""
        torch.set_num_threads(1)
        if all(device.type == "cpu" for device in self._devices):
            self._desk(0)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """The gradient of the loss on the ticket's batch."""
        out = np.empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """The same, written into ``out``; the parameters are ``point``'s memory, their gradients ``out``'s."""
        with self._few_threads():
            desk = self._desk(sample.worker)
            desk.read(point)
            desk.begin(out)
            desk.model.train()
            torch.manual_seed(sample.part(self._accumulate).key & SEED_BITS)
            for part in range(self._accumulate):
                batch = moved(self._batches.draw(sample, part, self._accumulate), desk.device)
                loss = self._loss(*self._forward(desk.model, batch))
                torch.autograd.backward(loss if self._accumulate == 1 else loss / self._accumulate)
            if self._clip is not None:
                torch.nn.utils.clip_grad_norm_(desk.model.parameters(), self._clip)
            desk.finish(out)

    def loss(self, point: Vector) -> float:
        """The mean loss over the validation set, in evaluation mode."""
        return self.evaluate(point)["loss"]

    # For people

    def evaluate(self, params: Vector) -> dict[str, float]:
        """The mean loss over the validation set, and the means of the metrics."""
        totals, count = dict.fromkeys(("loss", *self._metrics), 0.0), 0
        with self._few_threads(), torch.no_grad():
            desk = self._desk(0)
            desk.read(np.ascontiguousarray(params))
            desk.model.eval()
            for items, batch in self._validation_batches():
                output, target = self._forward(desk.model, moved(batch, desk.device))
                totals["loss"] += items * float(self._loss(output, target))
                for name, metric in self._metrics.items():
                    totals[name] += items * float(metric(output, target))
                count += items
        return {name: total / count for name, total in totals.items()}

    def model(self, params: Vector) -> torch.nn.Module:
        """A new model with these params, such as ``run.params``, in evaluation mode."""
        if params.shape != (self.dimension,):
            raise ValueError(
                f"params must have {self.dimension} entries, got {params.shape}: are they of this problem?"
            )
        model = self._made()
        flat = tensor_of(np.ascontiguousarray(params))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with torch.no_grad():
            for parameter, view in zip(trained, self._layout.views(flat), strict=True):
                parameter.copy_(view)
            model.load_state_dict(self._frozen, strict=False)
            self._layout.load_buffers(model, flat)
        return model.eval()

    def write_files(self, params: Vector, folder: Path) -> None:
        """``model.safetensors``, which ``safetensors.torch.load_model`` reads without nowait."""
        from safetensors.torch import save_model

        unfinished = folder / ".model.safetensors.unfinished"
        save_model(self.model(params), str(unfinished))
        os.replace(unfinished, folder / "model.safetensors")

    def split(self, workers: int, by: str = "iid", seed: int = 0) -> Self:
        """Give every worker items of its own: at random (``"iid"``), or sorted by target (``"label"``, ``"sorted"``).

        Workers with a number of ``workers`` or more take shards in turn.
        """
        if self._batches.is_stream:
            raise TypeError("an IterableDataset cannot be split: give every worker its part in the data set itself")
        count = len(self._batches.data)
        workers = checks.at_least(1, workers, "workers", "every shard belongs to a worker")
        if workers > count:
            raise ValueError(f"cannot split {count} items among {workers} workers: some would have none")
        if by not in ("iid", "label", "sorted"):
            raise ValueError(f"by must be 'iid', 'label' or 'sorted', got {by!r}")
        order = np.random.default_rng(seed).permutation(count)
        if by != "iid":
            targets = np.array([float(self._batches.data[int(place)][1]) for place in order])
            order = order[np.argsort(targets, kind="stable")]
        twin = copy.copy(self)
        twin._batches = copy.copy(self._batches)
        twin._batches.shards = Shards.split(order, workers)
        twin._batches._permutations = {}
        twin._desks = {}
        return twin

    def parts_to_send(self) -> dict[str, Any]:
        """What is sent to workers, by the names users know: to say which of them does not pickle."""
        return {
            "build_model": self._build,
            "loss": self._loss,
            "train_set": self._batches.data,
            "validation": self._validation,
            "metrics": self._metrics,
            "collate_fn": self._batches.collate,
            "forward": self._forward,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Without models: every process builds its own."""
        return self.__dict__ | {"_desks": {}}

    def __repr__(self) -> str:
        data = "a stream" if self._batches.is_stream else f"{len(self._batches.data):,} items"
        buffers = f" and {self.num_statistics - 1} of buffers" if self.num_statistics else ""
        return f"TorchProblem({self._layout.num_parameters:,} params{buffers}, {data}, batch_size={self._batches.size})"

    # Inside

    def _made(self) -> torch.nn.Module:
        """A model as the factory makes it, always with the same random numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            model = self._build()
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"build_model must return a torch.nn.Module, got {type(model).__name__}")
        return model

    def _desk(self, worker: int) -> Any:
        """The model of this process, on the worker's device."""
        device = self._devices[worker % len(self._devices)]
        name = (os.getpid() if device.type != "cpu" else 0, str(device))
        if name not in self._desks:
            model = self._made()
            if Layout.of(model) != self._layout:
                raise ValueError("build_model made a model of other shapes in this process than in the first one")
            model.load_state_dict(self._frozen, strict=False)
            self._desks[name] = desk_for(model, self._layout, device)
        return self._desks[name]

    def _try(self, model: torch.nn.Module) -> None:
        """One batch forward and backward, so that mistakes are told before any process starts."""
        device = self._devices[0]
        model.to(device).eval()  # batch normalisation does not train on a single item
        output, target = self._forward(model, moved(self._batches.first(TRIED_ITEMS), device))
        loss = self._loss(output, target)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise TypeError(f"loss must return a scalar tensor, got {came}: take its mean")
        if not loss.requires_grad:
            raise TypeError("the loss does not depend on the model's parameters: no gradient can be computed")
        torch.autograd.backward(loss)

    def _validation_batches(self) -> Iterator[tuple[int, Any]]:
        size = 4 * self._batches.size
        if self._validation is None and self._batches.is_stream:
            batch = self._batches.first(min(size, EVALUATED_ITEMS))
            yield size, batch
            return
        data = self._batches.data if self._validation is None else self._validation
        count = min(len(data), EVALUATED_ITEMS) if self._validation is None else len(data)
        for first in range(0, count, size):
            places = np.arange(first, min(first + size, count))
            yield len(places), self._batches.items(places, data)

    @contextmanager
    def _few_threads(self) -> Iterator[None]:
        """Sums depend on the number of threads: every process computes with the same one."""
        before = torch.get_num_threads()
        if before == self._threads:
            yield
            return
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _checked_devices(device: str | Sequence[str]) -> list[torch.device]:
    names = [device] if isinstance(device, str | torch.device) else list(device)
    if not names:
        raise ValueError("device is an empty list: name at least one")
    devices = []
    for name in names:
        try:
            one = torch.device(name)
            torch.empty(1, device=one)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device {name!r} is not there: {str(error).splitlines()[0]}") from None
        devices.append(one)
    return devices


def _frozen_state(model: torch.nn.Module, layout: Layout) -> dict[str, torch.Tensor]:
    """What of the model is neither trained nor a buffer in params."""
    known = {piece.name for piece in (*layout.parameters, *layout.buffers)}
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items() if name not in known}
