"""A PyTorch model and its data as a problem."""

from __future__ import annotations

import copy
import logging
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast, final

import numpy as np
import torch
from torch.utils.data import TensorDataset

from nowait.core import Layout, Sample, Stepsize, Update, checks
from nowait.core.memory import Memory, memory_of, namespace_of, to_host
from nowait.core.randomness import checked_seed
from nowait.core.types import Floats, Vector
from nowait.problems.shards import SPLITS, Shards
from nowait.pytorch.adapter import Adapter, Recipe
from nowait.pytorch.auto_sizes import AutoSizes
from nowait.pytorch.batches import Batches, moved
from nowait.pytorch.bound_model import HOST, BoundModel, Buffers, bound_model
from nowait.pytorch.cuda_runtime import ALLOCATION_BYTES, Allocation, clear_memory_errors
from nowait.pytorch.evaluation import (
    EvaluatedItems,
    EvaluationBatch,
    Evaluations,
    Metric,
    SeparateEvaluations,
    UsualEvaluations,
    checked_metrics,
    evaluated,
)
from nowait.pytorch.flat import DTYPES, ModelLayout, tensor_of
from nowait.pytorch.global_settings import GlobalSettings, check_global_settings
from nowait.pytorch.gradients import Gradients, usual_forward
from nowait.pytorch.manual import Manual, ManualStep
from nowait.pytorch.memory import TorchMemory
from nowait.pytorch.model_checks import (
    WriteCheck,
    changed_buffers,
    check_factory,
    check_function,
    check_layout,
    check_separate,
    check_shapes,
    have_same_values,
    momentum_of_statistics,
)
from nowait.pytorch.model_file import is_small, model_file_of, write_with_safetensors
from nowait.pytorch.optimizer import TorchOptimizer
from nowait.pytorch.per_worker import PerWorker
from nowait.pytorch.process import before_workers_are_forked, fork_breaks_cuda
from nowait.pytorch.reading import params_of
from nowait.pytorch.rng import seeded
from nowait.pytorch.settings import ComputeSettings
from nowait.recording.files import write_file
from nowait.recording.model_file import MODEL, ModelFile

logger = logging.getLogger("nowait")

UPDATE = "nowait.pytorch.TorchOptimizer(torch.optim.AdamW, weight_decay=0.1)"
"""An example for errors."""


@final
class TorchProblem:
    """A model, its loss and its data, for ``nw.train``, ``nw.simulate`` and ``nw.replay``.

    ``build_model`` makes the model; ``loss(output, target)`` returns a scalar tensor; ``train_set`` is a data set of
    (input, target) pairs, or of any items that ``forward(model, batch) -> (output, target)`` accepts. The loss of a run
    is the mean over ``validation``, or over the first items of the training set; ``metrics`` are functions of (output,
    target), whose means ``evaluate`` returns. Several validation sets by name, as ``{"near": …, "far": …}``, have
    numbers of their own, such as ``near_loss``; the loss is then the mean over the items of all. With
    ``sampling="epochs"`` a worker takes every item once per epoch; by default items are drawn with replacement.
    ``validation_loss`` is the loss of evaluations if it is another one than that of gradients, such as one without
    label smoothing. ``clip_norm`` clips gradients on the worker; ``accumulate`` is the number of batches per gradient.
    It and ``batch_size`` are a number, or a dictionary, list or function that gives one for each worker.
    ``batch_size="auto"``, or ``"auto:32"`` for a mean of 32, gives fast workers larger batches: the first ``nw.train``
    measures the workers and chooses the sizes. ``loader_workers`` processes of each worker draw its next batches while
    it computes. ``skip_bad_items=True`` replaces items whose reading raises an exception; evaluations leave them out.
    ``collate_fn`` makes a batch of a list of items, as in a ``DataLoader``; ``evaluation_batch_size`` is the size of
    the batches of evaluations; ``seed`` seeds PyTorch for ``build_model`` and for evaluations. ``sampler`` and
    ``batch_sampler`` choose items as in a ``DataLoader``, for example a ``WeightedRandomSampler``; every worker makes
    passes of its own over them.

    ``device`` is one device, or a list of devices that workers take in turn. On GPUs, params and gradients of
    ``nw.train`` stay in the memory of the first one, and updates, outputs and methods compute there with tensors;
    ``params_on="host"`` keeps them in host memory, for your own classes that need NumPy. Every worker uses ``threads``
    threads. ``autocast`` ("bfloat16" or "float16") computes in mixed precision; with float16, a ``loss_scale`` such as
    1024 keeps small gradients from becoming zero. A gradient that overflows is rejected like any other that is not
    finite. Models with parameters in bfloat16 or float16 are trained with params in float32. ``deterministic=True``
    makes PyTorch use deterministic algorithms only, so that a run on a GPU replays bit for bit; it may be slower, and
    some layers do not have them.

    Buffers that training changes, such as the statistics of batch normalisation, are the last entries of params:
    workers measure them, and the server keeps a running mean.

    ``manual(model, batch, sample)`` computes custom gradients: it calls ``backward`` itself, leaves the gradients
    in ``.grad``, and returns a loss, or a dict of numbers with a ``"loss"``. If ``loss`` is None, evaluations call it
    too, without using its gradients, and the numbers are the metrics. ``from_trainer`` and ``from_lightning`` set
    ``adapter``.

    ``update`` is the default update of runs, in Python and on the command line:
    ``update=TorchOptimizer(torch.optim.AdamW, weight_decay=0.1)``. Without it runs use ``torch.optim.SGD``.
    """

    def __init__(
        self,
        build_model: Callable[[], torch.nn.Module],
        loss: Callable[[Any, Any], torch.Tensor] | None,
        train_set: Any,
        *,
        batch_size: Any = 64,
        validation: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        forward: Callable[[torch.nn.Module, Any], tuple[Any, Any]] | None = None,
        sampling: str = "replacement",
        sampler: Any = None,
        batch_sampler: Any = None,
        loader_workers: int = 0,
        skip_bad_items: bool = False,
        evaluation_batch_size: int | None = None,
        clip_norm: float | None = None,
        accumulate: Any = 1,
        device: str | Sequence[str] = "cpu",
        threads: int = 1,
        autocast: str | None = None,
        loss_scale: float = 1.0,
        deterministic: bool = False,
        params_on: str = "device",
        seed: int = 0,
        validation_loss: Callable[[Any, Any], torch.Tensor] | None = None,
        manual: Manual | None = None,
        adapter: Adapter | None = None,
        update: Update | None = None,
    ) -> None:
        check_global_settings()
        check_factory(build_model)
        check_function(forward, "forward", "(model, batch)", optional=True)
        check_function(collate_fn, "collate_fn", "a list of items", optional=True)
        check_function(loss, "loss", "(output, target)", optional=manual is not None)
        check_function(validation_loss, "validation_loss", "(output, target)", optional=True)
        self._build, self._loss, self._forward = build_model, cast(Any, loss), forward or usual_forward
        self._validation_loss = cast(Any, loss if validation_loss is None else validation_loss)
        self._adapter = adapter
        self._update = None if update is None else checks.instance(update, Update, "update", UPDATE)
        self._manual = None if manual is None else ManualStep.of(manual, accumulate, loss_scale)
        if self._manual is not None:
            self._loss, self._forward = self._manual.loss, self._manual.forward
        self._metrics = checked_metrics(metrics, has_own=adapter is not None or self._validation_loss is None)
        self._batches = Batches.of(
            train_set,
            batch_size,
            sampling,
            collate_fn,
            skip_bad_items=bool(skip_bad_items),
            sampler=sampler,
            batch_sampler=batch_sampler,
        )
        self._loader_workers = checks.at_least(0, loader_workers, "loader_workers", "it counts processes")
        self._evaluated_items = EvaluatedItems.of(self._batches, validation, evaluation_batch_size)
        self._validation = validation
        self._clip = None if clip_norm is None else checks.positive(clip_norm, "clip_norm", "it is a length")
        self._accumulate = PerWorker.of(accumulate, "accumulate", "it counts batches")
        self._devices = _checked_devices(device)
        self._settings = ComputeSettings.of(threads, autocast, loss_scale, deterministic)
        if params_on not in ("device", "host"):
            raise ValueError(f'params_on must be "device" or "host", got {params_on!r}')
        self._params_on = params_on
        self._has_share = False
        self._seed = checked_seed(seed)
        self._gradients = Gradients(
            self._forward, self._loss, self._batches, self._accumulate, self._devices, self._settings
        )
        self._models: dict[tuple[int, str, str], BoundModel] = {}
        self._write_checks: dict[BoundModel, WriteCheck] = {}
        usual = UsualEvaluations(forward or usual_forward, self._validation_loss, self._metrics)
        own = self._manual if self._validation_loss is None else None
        self._evaluations: Evaluations = adapter or own or usual
        names = self._evaluated_items.names
        if names and not (adapter is not None and adapter.evaluates_sets_together):
            self._evaluations = SeparateEvaluations(names, self._evaluations)
        with self._settings.active(), seeded(self._seed):
            self._layout, initial, reproducible = self._checked_layout()
            self._initial = None if reproducible else initial
            """Not stored if ``build_model`` returns the same params again: they may be large."""
            self._checksum = zlib.crc32(initial.data)
            if self._validation is not None:
                self._means(initial, self._evaluated_items.first_batches(), with_metrics=True)

    @classmethod
    def from_trainer(cls, trainer: Any, **options: Any) -> Self:
        """Return the problem of a ``transformers.Trainer``: its model, data, loss and metrics.

        What workers would not do is an error that names it; ``nowait.pytorch.trainer_support`` has the list.
        ``usual_update()``, ``usual_stepsize()`` and ``usual_steps()`` are its optimiser, schedule and number of steps.
        ``options`` are arguments of ``TorchProblem`` to use in place of those of the trainer, such as ``device``.
        """
        from nowait.pytorch.hugging_face import problem_arguments

        return cls(**problem_arguments(trainer, options))

    @classmethod
    def from_lightning(
        cls,
        module: Any,
        datamodule: Any = None,
        val_dataloaders: Any = None,
        *,
        train_dataloaders: Any = None,
        epochs: int = 1,
        **options: Any,
    ) -> Self:
        """Return the problem of a ``LightningModule`` with the data of a ``LightningDataModule``, or with its own.

        The loaders of training and validation may be passed in its place, as to ``Trainer.fit``. ``usual_update()``,
        ``usual_stepsize()`` and ``usual_steps()`` are its optimiser, its schedule and the number of steps in so many
        epochs. ``options`` are arguments of ``TorchProblem``, such as ``clip_norm``.
        """
        from nowait.pytorch.lightning import problem_arguments

        loaders = train_dataloaders, val_dataloaders
        return cls(**problem_arguments(module, datamodule, loaders, epochs, options))

    # The problem, as engines use it

    @property
    def dimension(self) -> int:
        """The number of params: trained parameters, buffers, and a 1 after the buffers."""
        return self._layout.length

    @property
    def num_statistics(self) -> int:
        """The number of the last params that hold buffers and the 1 after them."""
        return self._layout.num_statistics

    @property
    def statistics_momentum(self) -> float:
        """The largest fraction by which one gradient moves the running statistics of batch normalisation.

        1 if training changes other buffers, whose momentum is not known.
        """
        return self._statistics_momentum

    @property
    def layout(self) -> Layout:
        """The names, shapes and positions of the trained parameters in params: ``layout["0.weight"].of(run.params)``.

        The buffers follow after ``layout.length`` entries.
        """
        return self._layout.parameters

    @property
    def num_shards(self) -> int:
        """The number of workers that the data are split for; 1 if all workers draw from all items."""
        return self._batches.num_shards

    @property
    def auto_batch_sizes(self) -> AutoSizes | None:
        """The sizes of batches if ``batch_size="auto"``."""
        size = self._batches.size
        return size if isinstance(size, AutoSizes) else None

    @property
    def items_of(self) -> Callable[[int], int] | None:
        """``items_of(worker)`` is the number of items per gradient of a worker; None if it is the same for all."""
        size, accumulate = self._batches.size, self._accumulate
        if isinstance(size, PerWorker) and size.is_one_number and accumulate.is_one_number:
            return None
        return lambda worker: size.of_worker(worker) * accumulate.of_worker(worker)

    @property
    def replayable(self) -> bool:
        """False for an IterableDataset: its items come in an order that is not recorded."""
        return not self._batches.is_stream

    @property
    def repeatable(self) -> bool:
        """True if every worker can draw the items of another one: not of an IterableDataset."""
        return not self._batches.is_stream

    @property
    def uses_job_numbers(self) -> bool:
        """True if items are taken in order, as in epochs: job n of a worker then takes the items after job n - 1."""
        return self._batches.choice is not None and self._batches.choice.uses_job_numbers

    def initial(self) -> Vector:
        """The parameters and buffers of the model as ``build_model`` returns it."""
        if self._initial is not None:
            return self._initial.copy()
        initial = self._layout.vector_of(self._built())
        if zlib.crc32(initial.data) != self._checksum:
            raise ValueError(
                "build_model returns other params than when the problem was made: has a model or file it uses changed?"
            )
        return initial

    def usual_update(self) -> Update:
        """Return a copy of ``update``, or the optimiser of the framework.

        Without both it is ``torch.optim.SGD``, which rounds as a plain PyTorch loop does.
        """
        if self._update is not None:
            return copy.deepcopy(self._update)
        if self._adapter is not None:
            return self._adapter.recipe.update()
        return TorchOptimizer(torch.optim.SGD, fused="device")

    def usual_stepsize(self) -> Stepsize:
        """Return the learning rate and the schedule of the framework as a delay-adaptive rule, for methods."""
        return self._recipe().stepsize()

    def usual_steps(self) -> int:
        """Return the number of steps that the framework would make in one process."""
        steps = self._recipe().steps
        if steps is None:
            raise ValueError("the number of items of an IterableDataset is not known: choose steps yourself")
        return steps

    def prepare(self) -> bool:
        """Build the model before workers are forked, with one thread, because threads do not survive a fork.

        Returns False if CUDA is needed and was initialised while the problem was loaded: it does not survive either.
        """
        torch.set_num_threads(1)
        before_workers_are_forked()
        if all(device.type == "cpu" for device in self._devices):
            self._model_for(0, HOST)
            return True
        with self._settings.active():
            pass  # PyTorch imports much when it is first asked for deterministic algorithms
        return not fork_breaks_cuda()

    def process_settings(self) -> GlobalSettings:
        """Return PyTorch's global settings in this process, such as the precision of matrix products."""
        return GlobalSettings.of_this_process()

    def take_share(self, share: int, num_shares: int) -> None:
        """Set the share of an iterable data set that this process reads; ``split`` divides other data."""
        self._has_share = True
        if self._batches.is_stream:
            self._batches.divide_stream(share, num_shares)

    def start_worker(self, worker: int, num_workers: int) -> None:
        """Start the processes that load the batches of this worker."""
        if not self._has_share:  # a wrapper that passes on this call only
            self.take_share(worker, num_workers)
        if self._loader_workers and sys.platform == "linux":
            self._gradients.start_loaders(worker, self._loader_workers)

    def device_memory(self) -> Memory | None:
        """Return the memory of the first GPU, where params and gradients of local workers are; None without a GPU.

        None as well, with a message in the log, if processes cannot share the memory of that GPU.
        """
        device = self._devices[0]
        if device.type != "cuda" or self._params_on == "host":
            return None
        try:
            Allocation.new(device, ALLOCATION_BYTES).handle()
        except (OSError, RuntimeError) as error:
            logger.warning(
                "params stay in host memory, which is slower: processes cannot share that of %s (%s)", device, error
            )
            return None
        return TorchMemory(device)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """Return the gradient of the loss on the batch of a ticket."""
        out: Vector = namespace_of(point).empty_like(point)
        self.gradient_into(point, sample, out)
        return out

    def gradient_into(self, point: Vector, sample: Sample, out: Vector) -> None:
        """Write the gradient into ``out``. Both vectors may be NumPy arrays, or tensors on the same device.

        A model that is on the device of the vectors computes in their memory; otherwise they are copied.
        """
        point = self._fitting(point)
        with self._settings.active(), clear_memory_errors():
            if self._manual is not None:
                self._manual.sample = sample
            if self._adapter is not None:
                self._adapter.begin(sample)
            bound = self._model_for(sample.worker, _device_of(point))
            bound.load(point)
            bound.zero_gradient(out)
            if not bound.model.training:
                bound.model.train()
            with self._write_checks[bound]:
                self._gradients.add(bound, sample)
            if self._clip is not None:
                torch.nn.utils.clip_grad_norm_(bound.model.parameters(), self._clip * self._settings.loss_scale)
            bound.store_gradient(out, self._settings.loss_scale)

    def between_gradients(self) -> None:
        """Load the next batch, unless that was already done while the GPU computed."""
        self._gradients.between_gradients()

    def loss(self, point: Vector) -> float:
        """Return the mean loss over the validation set, in evaluation mode.

        Evaluations are seeded by the problem: random layers and data sets draw the same numbers every time, and the
        states of the global generators are restored.
        """
        return self._means(point, self._validation_batches(), with_metrics=False)["loss"]

    def training_loss(self) -> float | None:
        """Return the mean loss of the batches from which the latest gradient of this process was computed."""
        return self._gradients.mean_loss()

    def loading_seconds(self) -> tuple[float, float]:
        """Return how long the latest gradient of this process waited for its batches, inside of it and before it."""
        return self._gradients.loading_seconds

    def device_of(self, worker: int) -> str:
        """Return the name of the device on which a worker computes."""
        return str(self._gradients.device_of(worker))

    # For users

    def evaluate(self, params: Vector) -> dict[str, float]:
        """Return the mean loss over the validation set and the mean of each metric, by name."""
        return self._means(params, self._validation_batches(), with_metrics=True)

    def params_of(self, source: Mapping[str, Any] | torch.nn.Module | str | Path) -> Vector:
        """Return the params of a state dict, a model, or a ``.safetensors`` file with one of them, or with ``params``.

        Such files are ``model.safetensors``, ``params.safetensors`` and ``best.safetensors`` of a run, and
        ``model.safetensors`` of a checkpoint, which may also be named by its ``state.safetensors``.
        """
        return params_of(source, self._built(), self._layout)

    def model(self, params: Vector) -> torch.nn.Module:
        """Return a new model with these params, such as ``run.params``, in evaluation mode."""
        params = self._fitting(to_host(params))
        model = self._built()
        flat = tensor_of(params)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with torch.no_grad():
            for parameter, view in zip(trained, self._layout.views(flat), strict=True):
                parameter.copy_(view)
            Buffers(model, self._layout).load(flat)
        return model.eval()

    def checkpoint_model(self) -> ModelFile | None:
        """Return what checkpoints have in ``model.safetensors``; None: they do not have it.

        They do not if more bytes are frozen than trained, which would be written every time, or if the state dict has
        something else than parameters and buffers.
        """
        return self._model_file

    def write_files(self, params: Vector, folder: Path) -> None:
        """Write ``model.safetensors``, which ``safetensors.torch.load_model`` reads without nowait."""
        unfinished = folder / f".{MODEL}.unfinished"
        self.write_model(params, unfinished, {})
        os.replace(unfinished, folder / MODEL)

    def write_model(self, params: Vector, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the model with these params to a file that ``safetensors.torch.load_model`` reads without nowait."""
        params = self._fitting(to_host(params))
        file = self._model_file or model_file_of(self._built(), self._layout)
        if file is None:
            write_with_safetensors(self.model(params), path, metadata)
        else:
            write_file(path, file.pieces(params, metadata))

    def save_pretrained(self, params: Vector, folder: str | Path) -> None:
        """Write the model with these params in the layout that ``from_pretrained`` reads, with its tokeniser."""
        model = self.model(params)
        save = getattr(model, "save_pretrained", None)
        if not callable(save):
            raise TypeError(f"{type(model).__name__} has no save_pretrained: models of transformers and peft have it")
        save(folder)
        if self._adapter is not None:
            self._adapter.write_beside(Path(folder))

    def split(self, workers: int, by: str = "iid", seed: int = 0) -> Self:
        """Give every worker its own items: at random (``"iid"``), or sorted by target (``"label"``, ``"sorted"``).

        Worker w takes shard w modulo ``workers``.
        """
        if self._batches.is_stream:
            raise TypeError("an IterableDataset cannot be split: select the items of each worker in the data set")
        count = len(self._batches.data)
        workers = checks.at_least(1, workers, "workers", "every shard belongs to a worker")
        if workers > count:
            raise ValueError(f"cannot split {count} items among {workers} workers: some would have none")
        checks.one_of(by, SPLITS, "by")
        order = np.random.default_rng(checked_seed(seed)).permutation(count)
        if by != "iid":
            order = order[np.argsort(self._targets()[order], kind="stable")]
        other = copy.copy(self)
        other._batches = self._batches.with_shards(Shards.split(order, workers))
        other._gradients = self._gradients.with_batches(other._batches)
        other._evaluated_items = replace(self._evaluated_items, training=other._batches)
        other._models, other._write_checks = {}, {}
        return other

    def _targets(self) -> Floats:
        """Return one number for every item of the training set."""
        data = self._batches.data
        targets = data.tensors[1] if isinstance(data, TensorDataset) else getattr(data, "targets", None)
        try:
            if targets is None:
                targets = [float(data[place][1]) for place in range(len(data))]
            numbers = np.asarray(targets, dtype=np.float64)
        except (TypeError, ValueError, KeyError, IndexError, OSError, RuntimeError):
            numbers = np.empty(0)
        if numbers.shape != (len(data),):
            raise ValueError(
                "splitting by label needs a number for every item: items (input, number), or train_set.targets"
            )
        return numbers

    def parts_to_send(self) -> dict[str, Any]:
        """Return what is sent to workers, by argument name, so that an error can name what cannot be pickled."""
        return {
            "build_model": self._build,
            "loss": self._loss,
            "validation_loss": self._validation_loss,
            "train_set": self._batches.data,
            "validation": self._validation,
            "metrics": self._metrics,
            "collate_fn": self._batches.collate,
            "sampler": self._batches.choice,
            "forward": self._forward,
            "manual": self._manual,
            "adapter": self._adapter,
        } | ({} if self._update is None else {"update": self._update})

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the models: every process builds its own."""
        return self.__dict__ | {"_models": {}, "_write_checks": {}}

    def __repr__(self) -> str:
        data = "a stream" if self._batches.is_stream else f"{len(self._batches.data):,} items"
        buffers = f" and {self.num_statistics - 1} of buffers" if self.num_statistics else ""
        return f"TorchProblem({self._layout.num_parameters:,} params{buffers}, {data}, batch_size={self._batches.size})"

    # Internals

    def _means(self, params: Vector, batches: Iterable[EvaluationBatch], *, with_metrics: bool) -> dict[str, float]:
        params, evaluation = self._fitting(params), self._evaluations.evaluation(with_metrics=with_metrics)
        with self._settings.active(), clear_memory_errors(), torch.no_grad():
            bound = self._model_for(0, _device_of(params))  # before seeding: building a model draws numbers
            bound.load(params)
            return evaluated(evaluation, bound, batches, self._settings, self._seed)

    def _recipe(self) -> Recipe:
        if self._adapter is None:
            raise TypeError(
                "only problems of from_trainer and from_lightning have a usual stepsize and number of steps"
            )
        return self._adapter.recipe

    def _fitting(self, params: Any) -> Any:
        """Return params as a contiguous vector, or raise a ValueError if they have another size or dtype."""
        memory_of(params)  # raises if they are no vector
        if params.shape == (self.dimension,):
            if isinstance(params, torch.Tensor) and DTYPES.get(params.dtype) == self._layout.dtype:
                return params.contiguous()
            if not isinstance(params, torch.Tensor) and params.dtype == self._layout.dtype:
                return np.ascontiguousarray(params)
        raise ValueError(
            f"params must have {self.dimension} entries of {np.dtype(self._layout.dtype)}, "
            f"got {tuple(params.shape)} of {params.dtype}: these are the params of another problem"
        )

    def _built(self) -> torch.nn.Module:
        """Call ``build_model`` with the seed of the problem, so that every process builds the same model."""
        with seeded(self._seed):
            torch.manual_seed(self._seed)
            model = self._build()
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"build_model must return a torch.nn.Module, got {type(model).__name__}")
        check_shapes(model)
        return model

    def _model_for(self, worker: int, vectors_on: torch.device) -> BoundModel:
        """Return the model of this process on the device of a worker, for vectors on this device; built once."""
        device = self._gradients.device_of(worker)
        name = (os.getpid() if device.type != "cpu" else 0, str(device), str(vectors_on))
        if name not in self._models:
            model = self._built()
            check_layout(ModelLayout.of(model, [block.name for block in self._layout.buffers]), self._layout)
            self._models[name] = bound_model(model, self._layout, device, vectors_on)
            self._write_checks[self._models[name]] = WriteCheck(model)
        return self._models[name]

    def _checked_layout(self) -> tuple[ModelLayout, Vector, bool]:
        """Check the model on one batch, so that mistakes are reported early.

        Returns its layout, its params, and True if it is built with the same params every time.
        """
        model, other = self._built(), self._built()
        ModelLayout.of(model)
        check_separate(model, other)
        if ModelLayout.of(model) != ModelLayout.of(other):
            raise ValueError("build_model must return the same model on every call, but the shapes of two calls differ")
        reproducible = have_same_values(model, other)
        device = self._devices[0]
        batch = moved(self._batches.first(self._batches.size.usual), device)
        with self._settings.precision(device):
            passes: Counter[str] = Counter()
            statistics = changed_buffers(other.to(device), self._forward, self._loss, batch, passes)
        layout = ModelLayout.of(model, statistics)
        del other  # it has gradients as well
        file = model_file_of(model, layout)
        self._model_file = file if file is not None and is_small(file, layout) else None
        """What is in ``model.safetensors``. Not stored if there are more frozen tensors than trained ones."""
        self._statistics_momentum = momentum_of_statistics(model, statistics, passes, self._accumulate.largest)
        initial = layout.vector_of(model)
        if not (np.isfinite(initial.min()) and np.isfinite(initial.max())):
            raise ValueError("the model's initial parameters or statistics are not finite")
        return layout, initial, reproducible

    def _validation_batches(self) -> Iterator[EvaluationBatch]:
        return self._evaluated_items.batches()


def _device_of(vector: Any) -> torch.device:
    return vector.device if isinstance(vector, torch.Tensor) else HOST


def _checked_devices(device: str | Sequence[str]) -> list[torch.device]:
    if not isinstance(device, str | torch.device | Sequence):
        raise TypeError(f"device must be a name such as 'cuda', or a list of them, got {device!r}")
    names = [device] if isinstance(device, str | torch.device) else list(device)
    if not names:
        raise ValueError("device is an empty list: give at least one device")
    devices = []
    for name in names:
        try:
            tensor = torch.ones(1, device=name)
            float(tensor)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"device {name!r} is not available: {str(error).splitlines()[0]}") from None
        devices.append(tensor.device)  # "cuda" has become "cuda:0"
    return devices
