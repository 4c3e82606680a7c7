"""The batches of tickets: which items of a data set each of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from nowait.core import Sample
from nowait.core.types import Integers
from nowait.problems.shards import Shards
from nowait.pytorch.auto_sizes import REASON, USUAL, AutoSizes
from nowait.pytorch.bad_items import MISSING, BadItems
from nowait.pytorch.per_worker import PerWorker
from nowait.pytorch.samplers import SAMPLINGS, Choice, Rows, checked_choice
from nowait.pytorch.streams import Stream

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
    collate: Any
    bad_items: BadItems | None = None
    """Not None: items that cannot be read are skipped."""
    choice: Choice | None = None
    """Chooses the items of batches; None for an IterableDataset."""
    _stream: Stream | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        data: Any,
        size: Any,
        sampling: str,
        collate: Any,
        *,
        skip_bad_items: bool,
        sampler: Any = None,
        batch_sampler: Any = None,
    ) -> Batches:
        """Check the arguments of a problem and make its batches."""
        if sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}")
        if batch_sampler is not None and size != USUAL:
            raise ValueError(f"batch_sampler says which items a batch has: leave out batch_size, got {size!r}")
        sizes = AutoSizes.of(size) if isinstance(size, str) else PerWorker.of(size, "batch_size", REASON)
        batches = cls(data, sizes, collate or default_collate, BadItems() if skip_bad_items else None)
        if not batches.is_stream:
            _check_items(data)
            return replace(batches, choice=checked_choice(sampler, batch_sampler, len(data), sampling))
        if skip_bad_items:
            raise ValueError("skip_bad_items needs items with an index: let an IterableDataset skip its bad items")
        if sampler is not None or batch_sampler is not None:
            raise ValueError("a sampler needs items with an index: an IterableDataset gives items in its own order")
        return batches

    def with_shards(self, shards: Shards) -> Batches:
        """Return the same with the data split."""
        if not isinstance(self.choice, Rows):
            raise ValueError("the items of a sampler cannot be split: leave out sampler and batch_sampler")
        return replace(self, choice=Rows(shards, self.choice.sampling), _stream=None)

    @property
    def is_stream(self) -> bool:
        """True for an IterableDataset, whose items come in its own order."""
        return isinstance(self.data, IterableDataset)

    @property
    def num_shards(self) -> int:
        """The number of workers that the data are split for; 1 if all draw from the same data."""
        return self.choice.shards.count if isinstance(self.choice, Rows) else 1

    @property
    def is_plain(self) -> bool:
        """True if batches are rows of tensors: drawing them involves no code of the user, and no random numbers."""
        return _is_plain(self.data) and self.collate is default_collate

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open stream."""
        return self.__dict__ | {"_stream": None}

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
        """Return the first items, or the first batch of a ``batch_sampler``, for checks."""
        if self.is_stream:
            items = [item for item, _ in zip(self.data, range(count), strict=False)]
            if not items:
                raise ValueError("train_set is an empty stream: there is nothing to train on")
            return self.collate(items)
        places = None if self.choice is None else self.choice.first_batch
        return self.some(np.arange(min(count, len(self.data))) if places is None else places, self.data)[1]

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
        assert self.choice is not None
        items: list[Any] = []
        for place in places:
            item = self.bad_items.read(self.data, int(place), "train_set")
            tries = 0
            while item is MISSING:
                tries, number = tries + 1, number + 1
                if tries > MOST_TRIES:
                    raise ValueError(f"{tries} items in a row of train_set cannot be read: the log names them")
                other = self.choice.draw_one(sample.part(REPLACEMENTS + number))
                item = self.bad_items.read(self.data, other, "train_set")
            items.append(item)
        return items

    def _places(self, sample: Sample, part: int, parts: int) -> Integers:
        assert self.choice is not None
        return self.choice.places(sample, part, parts, self.size.of_worker(sample.worker))


def _check_items(data: Any) -> None:
    if isinstance(data, DataLoader):
        raise TypeError("train_set must be a data set, got a DataLoader: pass its dataset, and batch_size=")
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise TypeError(f"train_set must have a length and items, or be an IterableDataset, got {data!r}")
    if len(data) == 0:
        raise ValueError("train_set is empty: there is nothing to train on")
    if _is_tuple_of_columns(data):
        raise TypeError("train_set is a tuple of arrays, not of items: pass torch.utils.data.TensorDataset(*tensors)")


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
