"""What a problem takes over from a ``DataLoader`` of another framework: data, batches, and in which order."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from nowait.pytorch.auto_sizes import AutoSizes
from nowait.pytorch.evaluation import EvaluationSet
from nowait.pytorch.per_worker import PerWorker

logger = logging.getLogger("nowait")


@final
@dataclass(frozen=True)
class TrainingData:
    """The data set of a loader, and how its batches are made."""

    data: Any
    collate: Any
    batch_size: int | None
    """None: a ``batch_sampler`` says which items a batch has."""
    sampling: str
    """"epochs" or "replacement", as for ``TorchProblem``."""
    sampler: Any
    """What draws the items, if it is another one than a usual shuffling; or the batches."""
    in_order: bool
    """True if the loader takes the items of a data set in their order, which workers do not."""
    entries: int | None
    """How many items an epoch has, or batches of a ``batch_sampler``; None if that is not known."""
    drop_last: bool

    @classmethod
    def of(cls, loader: Any, name: str) -> TrainingData:
        """Read the loader that a function of this name returns."""
        loader = checked_loader(loader, name)
        data, batches = loader.dataset, loader.batch_sampler
        is_stream, has_own_batches = isinstance(data, IterableDataset), type(batches) is not BatchSampler
        if has_own_batches and (is_stream or batches is None):
            raise TypeError(f"{name} must return a DataLoader with a batch_size, as every gradient is of a batch")
        sampler: Any = None if is_stream else batches if has_own_batches else batches.sampler
        counted = data if sampler is None else sampler
        shuffles, in_order = is_usual_shuffling(sampler, data), type(sampler) is SequentialSampler
        again = is_random(sampler) and sampler.replacement
        return cls(
            data=data,
            collate=loader.collate_fn,
            batch_size=None if has_own_batches else int(batches.batch_size),
            sampling="epochs" if shuffles or in_order else "replacement",
            sampler=None if shuffles or in_order or again else sampler,
            in_order=in_order,
            entries=len(counted) if hasattr(counted, "__len__") else None,
            drop_last=bool(getattr(batches, "drop_last", False)),
        )

    def arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``TorchProblem`` for the data; ``options`` take precedence."""
        own = {"sampler": self.sampler} if self.batch_size is not None else {"batch_sampler": self.sampler}
        usual = {"train_set": self.data, "collate_fn": self.collate, "batch_size": self.batch_size}
        usual |= {"sampling": self.sampling}
        if self.sampler is not None and not OTHER_CHOICES & options.keys():
            usual |= own
        if {"sampler", "batch_sampler"} & options.keys():
            usual["sampling"] = "replacement"
        if "batch_sampler" in usual | dict(options):
            del usual["batch_size"]
        return usual | dict(options)

    def epoch(self, arguments: Mapping[str, Any]) -> Epoch:
        """Return what an epoch is with these arguments of ``TorchProblem``, which may not be those of the loader."""
        data = arguments["train_set"]
        samplers = [arguments[name] for name in ("batch_sampler", "sampler") if arguments.get(name) is not None]
        chooses = samplers[0] if samplers else data
        is_own = data is self.data and chooses is (data if self.sampler is None else self.sampler)
        entries = self.entries if is_own else len(chooses) if hasattr(chooses, "__len__") else None
        size = _usual_size(arguments.get("batch_size"))
        accumulate = PerWorker.of(arguments.get("accumulate", 1), "accumulate", "it counts batches").usual
        if entries is None:
            return Epoch(None, accumulate)
        return Epoch(max(1, entries // size if self.drop_last else math.ceil(entries / size)), accumulate)


@final
@dataclass(frozen=True)
class Epoch:
    """How many batches take all items once; None if that is not known."""

    batches: int | None
    batches_per_step: int

    @property
    def steps(self) -> int | None:
        """How many steps it has in one process."""
        return None if self.batches is None else math.ceil(self.batches / self.batches_per_step)


DEFAULTS: Mapping[str, Any] = {
    "num_workers": 0,
    "pin_memory": False,
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "worker_init_fn": None,
}
"""Options of a ``DataLoader`` that only say how its processes load batches, and their defaults."""
PREFETCHED = 2
"""The ``prefetch_factor`` of loaders that have workers and are not given one."""


def warn_of_loader_options(loaders: Mapping[str, Any], honoured: Mapping[str, Any]) -> None:
    """Warn, in one line, of options of loaders that are set and have no effect here.

    Values of ``loaders``, by the names of the functions that return them, may be several loaders, or None. Values in
    ``honoured``, by option, are known to the caller.
    """
    named = {name: _set_options(loader, honoured) for name, loader in loaders.items()}
    texts = [f"{', '.join(options)} of {name}" for name, options in named.items() if options]
    if texts:
        logger.warning(
            "%s: no effect here, because every worker loads its own batches; loader_workers=n starts n processes for "
            "each worker that load the next ones",
            "; ".join(texts),
        )


def _set_options(loaders: Any, honoured: Mapping[str, Any]) -> list[str]:
    """Return the options that any of one or several loaders sets."""
    loaders = list(loaders.values()) if isinstance(loaders, Mapping) else loaders
    several = loaders if isinstance(loaders, list | tuple) else [loaders]
    every = [loader for loader in several if isinstance(loader, DataLoader)]
    usual = {name: [default, honoured.get(name, default)] for name, default in DEFAULTS.items()}
    usual["prefetch_factor"].append(PREFETCHED)
    return [name for name in usual if any(getattr(loader, name) not in usual[name] for loader in every)]


def _usual_size(size: Any) -> int:
    """Return a batch size that may be one per worker, or chosen later; 1 if a ``batch_sampler`` gives batches."""
    if size is None:
        return 1
    sizes = AutoSizes.of(size) if isinstance(size, str) else PerWorker.of(size, "batch_size", "a gradient needs items")
    return sizes.usual


OTHER_CHOICES = {"sampler", "batch_sampler", "sampling", "train_set"}
"""Arguments in place of the sampler of a loader."""


def is_random(sampler: Any) -> bool:
    """Return True for the random sampler of PyTorch, and the one that accelerate puts in its place."""
    is_known = type(sampler) is RandomSampler or type(sampler).__module__.startswith("accelerate.")
    return is_known and isinstance(sampler, RandomSampler)


def is_usual_shuffling(sampler: Any, data: Any) -> bool:
    """Return True if a sampler gives every item of a data set once, in a random order."""
    return is_random(sampler) and not sampler.replacement and len(sampler) == len(data)


def takes_all(sampler: Any, data: Any) -> bool:
    """Return True if a sampler gives every item once, in any order; those of transformers do."""
    is_known = type(sampler) is SequentialSampler or type(sampler).__module__.startswith("transformers.")
    return (is_known and len(sampler) == len(data)) or is_usual_shuffling(sampler, data)


def evaluation_set(loader: Any, name: str, set_name: str = "") -> EvaluationSet:
    """Return the data of a loader for evaluations, with its batches; ``name`` is that of the function it comes from."""
    loader = checked_loader(loader, name)
    data, batches = loader.dataset, loader.batch_sampler
    if type(batches) is not BatchSampler:
        raise TypeError(f"{name} must return a DataLoader with a batch_size: evaluations use no batch_sampler")
    if not isinstance(data, IterableDataset) and not takes_all(batches.sampler, data):
        raise ValueError(
            f"{name} has the sampler {type(batches.sampler).__name__}, but evaluations take all items: leave it out, "
            f"and pass a data set with the items that are wanted"
        )
    return EvaluationSet(data, set_name, int(batches.batch_size), loader.collate_fn)


def checked_loader(loader: Any, name: str) -> DataLoader[Any]:
    """Return a loader, or the only one in a list; raise for anything else."""
    loader = loader[0] if isinstance(loader, list | tuple) and len(loader) == 1 else loader
    if not isinstance(loader, DataLoader):
        raise TypeError(f"{name} must return one DataLoader, got {type(loader).__name__}")
    return loader
