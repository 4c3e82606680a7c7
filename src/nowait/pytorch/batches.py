"""The batches of tickets: which items of a data set each of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from nowait.core import Sample, checks
from nowait.core.randomness import child
from nowait.core.types import Integers
from nowait.numerics.splitmix import MASK, TICKET_STRIDE
from nowait.problems.shards import Shards

SAMPLINGS = ("replacement", "epochs")


@final
@dataclass
class Batches:
    """Makes the batches of tickets.

    A batch is a pure function of the ticket's sample, unless the data set is an IterableDataset.
    """

    data: Any
    size: int
    sampling: str
    collate: Any
    shards: Shards | None = None
    _permutations: dict[int, tuple[int, Integers]] = field(default_factory=dict, repr=False)
    """The current epoch of each worker, and the order of the rows in it."""
    _stream: Iterator[Any] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, data: Any, size: int, sampling: str, collate: Any) -> Batches:
        """Check the arguments of a problem and make its batches."""
        if sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}")
        size = checks.at_least(1, size, "batch_size", "a gradient needs items")
        batches = cls(data, size, sampling, collate or default_collate)
        if batches.is_stream:
            return batches
        if not isinstance(data, DataLoader) and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
            raise TypeError(f"train_set must have a length and items, or be an IterableDataset, got {data!r}")
        if isinstance(data, DataLoader):
            raise TypeError("train_set must be a data set, got a DataLoader: pass its dataset, and batch_size=")
        if len(data) == 0:
            raise ValueError("train_set is empty: there is nothing to train on")
        batches.shards = Shards.all_rows(len(data))
        return batches

    @property
    def is_stream(self) -> bool:
        """True for an IterableDataset, whose items come in its own order."""
        return isinstance(self.data, IterableDataset)

    @property
    def is_plain(self) -> bool:
        """True if batches are rows of tensors: drawing them involves no code of the user, and no random numbers."""
        return _is_plain(self.data) and self.collate is default_collate

    def __getstate__(self) -> dict[str, Any]:
        """Leave out caches and the open iterator."""
        return self.__dict__ | {"_permutations": {}, "_stream": None}

    def draw(self, sample: Sample, part: int, parts: int, *, pinned: bool = False) -> Any:
        """Return the batch of a ticket, or batch number ``part`` if it has several.

        With ``pinned``, batches that are plain rows of tensors are put into pinned memory at once.
        """
        if self.is_stream:
            return self.collate([self._next() for _ in range(self.size)])
        return self.items(self._places(sample, part, parts), pinned=pinned)

    def items(self, places: Integers, data: Any = None, *, pinned: bool = False) -> Any:
        """Return items of the data set (or of ``data``) as a batch, fetched in one call if the data set supports it."""
        data = self.data if data is None else data
        if _is_plain(data) and self.collate is default_collate:
            chosen = torch.from_numpy(np.asarray(places, dtype=np.int64))
            return [_rows(tensor, chosen, pinned=pinned) for tensor in data.tensors]
        numbers = [int(place) for place in places]
        several = getattr(data, "__getitems__", None)
        return self.collate(several(numbers) if several is not None else [data[number] for number in numbers])

    def first(self, count: int) -> Any:
        """Return the first items as a batch, for checks."""
        if self.is_stream:
            items = [item for item, _ in zip(self.data, range(count), strict=False)]
            if not items:
                raise ValueError("train_set is an empty stream: there is nothing to train on")
            return self.collate(items)
        return self.items(np.arange(min(count, len(self.data))))

    def _places(self, sample: Sample, part: int, parts: int) -> Integers:
        assert self.shards is not None
        if self.sampling == "replacement":
            return self.shards.draw(sample if parts == 1 else sample.part(part), self.size)
        rows = self.shards.rows_of(sample.worker)
        first = (sample.job * parts + part) * self.size
        worker_key = (sample.key - sample.job * TICKET_STRIDE) & MASK
        positions = np.arange(first, first + self.size)
        return np.array(
            [
                self._permuted(worker_key, len(rows), int(place) // len(rows), rows)[place % len(rows)]
                for place in positions
            ]
        )

    def _permuted(self, worker_key: int, length: int, epoch: int, rows: Integers) -> Integers:
        """Return the rows in the order of an epoch, a function of seed, worker and epoch."""
        known_epoch, order = self._permutations.get(worker_key, (-1, rows))
        if known_epoch != epoch:
            rng = np.random.Generator(np.random.Philox(key=child(worker_key ^ length, epoch)))
            order = rng.permutation(rows)
            self._permutations[worker_key] = (epoch, order)
        return order

    def _next(self) -> Any:
        if self._stream is None:
            self._stream = iter(self.data)
        try:
            return next(self._stream)
        except StopIteration:
            self._stream = iter(self.data)
            return next(self._stream)


def _is_plain(data: Any) -> bool:
    return type(data) is TensorDataset  # a subclass may change its items


def _rows(tensor: torch.Tensor, chosen: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return tensor[chosen]
    out = torch.empty((len(chosen), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=pinned)
    return torch.index_select(tensor, 0, chosen, out=out)


def moved(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Move the tensors of a batch, and other objects that have ``to(device)``, to a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if hasattr(batch, "to"):
        return batch.to(device)
    return converted(batch, lambda item: moved(item, device, non_blocking=non_blocking))


def converted(batch: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a list, tuple or dictionary with its items converted; anything else as it is."""
    if isinstance(batch, Mapping):
        return {name: convert(item) for name, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(convert(item) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(convert(item) for item in batch)
    return batch
