"""The items of an IterableDataset, divided among workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch.utils.data._utils import worker as data_loader_worker


@final
class Stream:
    """The items that one worker of several takes from an IterableDataset, pass after pass.

    The data set is told the share of its worker by ``torch.utils.data.get_worker_info()``, as in a worker of a
    DataLoader. If it asks, it divides its items itself, and all items that it returns are taken. Otherwise share number
    s of M has the items s, s + M, s + 2M, … of each pass.
    """

    def __init__(self, data: Any, share: int = 0, num_shares: int = 1) -> None:
        self._data = data
        self._info = _WorkerInfo(data, share, num_shares)
        self._items: Iterator[Any] | None = None
        """The items of this pass."""
        self._read = self._taken = 0
        """How many items of this pass were read, and how many of them were this worker's."""

    def take(self) -> Any:
        """Return the next item."""
        with _set_worker_info(self._info if self._info.count > 1 else None):
            while True:
                if self._items is None:
                    self._items, self._read, self._taken = iter(self._data), 0, 0
                try:
                    item = next(self._items)
                except StopIteration:
                    self._end_pass()
                    continue
                self._read += 1
                if self._info.was_read or (self._read - 1) % self._info.count == self._info.number:
                    self._taken += 1
                    return item

    def _end_pass(self) -> None:
        self._items = None
        if not self._taken:
            raise ValueError(
                f"train_set, a stream, gave {self._read} items in a pass, and none of them to share "
                f"{self._info.number} of {self._info.count}: {self._advice()}"
            )

    def _advice(self) -> str:
        """Return what to do about a share without items; streams of Hugging Face divide whole shards of their own."""
        count = self._info.count
        try:
            shards = self._data.num_shards
        except AttributeError:
            shards = None
        if not self._info.was_read or not isinstance(shards, int) or shards >= count:
            return "it needs at least one item for every worker"
        return (
            f"its num_shards is {shards}, and each of its shards goes to one worker. Train with workers={shards}, or "
            f"make at least {count} shards, as with dataset.to_iterable_dataset(num_shards={count})"
        )


@final
class _WorkerInfo:
    """What ``get_worker_info()`` returns; notes whether a data set looks at the number of its worker."""

    def __init__(self, data: Any, number: int, count: int) -> None:
        self.dataset, self.number, self.count, self.was_read = data, number, count, False

    @property
    def id(self) -> int:
        self.was_read = True
        return self.number

    @property
    def num_workers(self) -> int:
        self.was_read = True
        return self.count

    @property
    def seed(self) -> int:
        """The seed of torch's generator, as in a DataLoader; another one for every pass."""
        return torch.initial_seed()


@contextmanager
def _set_worker_info(info: Any) -> Iterator[None]:
    before = data_loader_worker._worker_info
    data_loader_worker._worker_info = info
    try:
        yield
    finally:
        data_loader_worker._worker_info = before
