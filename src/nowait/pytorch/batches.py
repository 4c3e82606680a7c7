"""The batches of tickets: which items of a data set each of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from nowait.core import Sample
from nowait.core.randomness import child
from nowait.core.types import Integers
from nowait.numerics.splitmix import MASK, TICKET_STRIDE
from nowait.problems.shards import Shards
from nowait.pytorch.auto_sizes import REASON, AutoSizes
from nowait.pytorch.bad_items import MISSING, BadItems
from nowait.pytorch.per_worker import PerWorker
from nowait.pytorch.streams import Stream

SAMPLINGS = ("replacement", "epochs")
MOST_COLUMNS = 4
"""A tuple of more arrays is a data set of items."""
REPLACEMENTS = 1 << 28
"""Items in place of bad ones are drawn from parts of a ticket's sample with these numbers and above."""
REPLACEMENTS_PER_BATCH = 1 << 12
MOST_TRIES = 100
"""Bad items in a row after which reading is given up."""


@final
@dataclass
class Batches:
    """Makes the batches of tickets.

    A batch is a pure function of the ticket's sample, unless the data set is an IterableDataset.
    """

    data: Any
    size: PerWorker | AutoSizes
    sampling: str
    collate: Any
    bad_items: BadItems | None = None
    """Not None: items that cannot be read are skipped."""
    shards: Shards | None = None
    _permutations: dict[int, tuple[int, Integers]] = field(default_factory=dict, repr=False)
    """The current epoch of each worker, and the order of the rows in it."""
    _stream: Stream | None = field(default=None, repr=False)

    @classmethod
    def of(cls, data: Any, size: Any, sampling: str, collate: Any, *, skip_bad_items: bool) -> Batches:
        """Check the arguments of a problem and make its batches."""
        if sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}")
        sizes = AutoSizes.of(size) if isinstance(size, str) else PerWorker.of(size, "batch_size", REASON)
        batches = cls(data, sizes, sampling, collate or default_collate, BadItems() if skip_bad_items else None)
        if batches.is_stream:
            if skip_bad_items:
                raise ValueError("skip_bad_items needs items with an index: let an IterableDataset skip its bad items")
            return batches
        if not isinstance(data, DataLoader) and not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
            raise TypeError(f"train_set must have a length and items, or be an IterableDataset, got {data!r}")
        if isinstance(data, DataLoader):
            raise TypeError("train_set must be a data set, got a DataLoader: pass its dataset, and batch_size=")
        if len(data) == 0:
            raise ValueError("train_set is empty: there is nothing to train on")
        if _is_tuple_of_columns(data):
            raise TypeError(
                "train_set is a tuple of arrays, not of items: pass torch.utils.data.TensorDataset(*tensors)"
            )
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
        """Leave out caches and the open stream."""
        return self.__dict__ | {"_permutations": {}, "_stream": None}

    def divide_stream(self, share: int, num_shares: int) -> None:
        """Let this process take the items of one share; until then, it takes those of all."""
        self._stream = Stream(self.data, share, num_shares)

    def draw(self, sample: Sample, part: int, parts: int, *, pinned: bool = False) -> Any:
        """Return the batch of a ticket, or batch number ``part`` if it has several.

        With ``pinned``, batches that are plain rows of tensors are put into pinned memory at once.
        """
        if self.is_stream:
            self._stream = self._stream or Stream(self.data)
            return self.collate([self._stream.take() for _ in range(self.size.of_worker(sample.worker))])
        places = self._places(sample, part, parts)
        if self.bad_items is None:
            return self._fetched(places, self.data, pinned=pinned)
        try:
            return self._fetched(places, self.data, pinned=pinned)
        except Exception:  # find out which item it was
            return self.collate(self._with_replacements(places, sample, part * REPLACEMENTS_PER_BATCH))

    def some(self, places: Integers, data: Any, name: str = "train_set") -> tuple[int, Any]:
        """Return items of a data set as a batch, without those that are skipped, and how many they are."""
        if self.bad_items is None:
            return len(places), self._fetched(places, data)
        good = list(self._good_items(places, data, name, self.bad_items))
        if not good:
            raise ValueError(f"none of the items {places[0]} to {places[-1]} of {name} can be read")
        return len(good), self.collate(good)

    def first(self, count: int) -> Any:
        """Return the first items as a batch, for checks."""
        if self.is_stream:
            items = [item for item, _ in zip(self.data, range(count), strict=False)]
            if not items:
                raise ValueError("train_set is an empty stream: there is nothing to train on")
            return self.collate(items)
        return self.some(np.arange(min(count, len(self.data))), self.data)[1]

    def _fetched(self, places: Integers, data: Any, *, pinned: bool = False) -> Any:
        """Return these items as a batch, fetched in one call if the data set supports it."""
        if _is_plain(data) and self.collate is default_collate:
            chosen = torch.from_numpy(np.asarray(places, dtype=np.int64))
            return [_rows(tensor, chosen, pinned=pinned) for tensor in data.tensors]
        numbers = [int(place) for place in places]
        several = getattr(data, "__getitems__", None)
        return self.collate(several(numbers) if several is not None else [data[number] for number in numbers])

    def _good_items(self, places: Integers, data: Any, name: str, bad: BadItems) -> Iterable[Any]:
        for place in places:
            item = bad.read(data, int(place), name)
            if item is not MISSING:
                yield item

    def _with_replacements(self, places: Integers, sample: Sample, number: int) -> list[Any]:
        """Return these items; those that cannot be read are replaced by others, drawn from the ticket's sample."""
        assert self.bad_items is not None
        assert self.shards is not None
        items: list[Any] = []
        for place in places:
            item = self.bad_items.read(self.data, int(place), "train_set")
            tries = 0
            while item is MISSING:
                tries, number = tries + 1, number + 1
                if tries > MOST_TRIES:
                    raise ValueError(f"{tries} items in a row of train_set cannot be read: the log names them")
                other = self.shards.draw_one(sample.part(REPLACEMENTS + number))
                item = self.bad_items.read(self.data, other, "train_set")
            items.append(item)
        return items

    def _places(self, sample: Sample, part: int, parts: int) -> Integers:
        assert self.shards is not None
        size = self.size.of_worker(sample.worker)
        if self.sampling == "replacement":
            return self.shards.draw(sample if parts == 1 else sample.part(part), size)
        rows = self.shards.rows_of(sample.worker)
        first = (sample.job * parts + part) * size
        worker_key = (sample.key - sample.job * TICKET_STRIDE) & MASK
        positions = np.arange(first, first + size)
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


def _is_plain(data: Any) -> bool:
    return type(data) is TensorDataset  # a subclass may change its items


def _rows(tensor: torch.Tensor, chosen: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        return tensor[chosen]
    out = torch.empty((len(chosen), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=pinned)
    return torch.index_select(tensor.detach(), 0, chosen, out=out)


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


def _is_tuple_of_columns(data: Any) -> bool:
    """Return True for (inputs, targets) and the like: a few arrays of the same length."""
    if not isinstance(data, tuple) or not 2 <= len(data) <= MOST_COLUMNS:
        return False
    if not all(isinstance(item, torch.Tensor | np.ndarray) and item.ndim for item in data):
        return False
    return len({len(item) for item in data}) == 1
