"""Which items a batch has: drawn by nowait, or chosen by a ``sampler`` or ``batch_sampler`` of the user.

A sampler of PyTorch is an iterable with a state, such as a generator of random numbers; a batch of nowait must be the
same in every process and in a replay: a function of seed, worker and job. So a pass over a sampler is made with seeded
generators, and samplers whose passes still differ are refused.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Protocol, final

import numpy as np
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from nowait.core import Sample
from nowait.core.randomness import child
from nowait.core.types import Floats, Integers
from nowait.numerics.splitmix import MASK, TICKET_STRIDE
from nowait.problems.shards import Shards
from nowait.pytorch.rng import seeded_apart

logger = logging.getLogger("nowait")

REPLACEMENT, EPOCHS = "replacement", "epochs"
SAMPLINGS = (REPLACEMENT, EPOCHS)
SAMPLER, BATCH_SAMPLER = "sampler", "batch_sampler"
FIRST_KEYS = (2, 5)
"""The seeds of the passes that are compared when a problem is made."""


class Choice(Protocol):
    """Chooses the items of batches."""

    @property
    def uses_job_numbers(self) -> bool:
        """True if a batch has the items that follow those of the job before."""

    @property
    def first_batch(self) -> Integers | None:
        """The items of some batch of a ``batch_sampler``, for checks; None without one."""

    def places(self, sample: Sample, part: int, parts: int, size: int) -> Integers:
        """Return the items of batch number ``part`` of a ticket that has ``parts``."""

    def draw_one(self, sample: Sample) -> int:
        """Draw one item at random."""


@final
@dataclass(frozen=True)
class Rows:
    """Draws items of the worker's shard, with replacement or in epochs."""

    shards: Shards
    sampling: str
    _orders: dict[int, tuple[int, Integers]] = field(default_factory=dict, repr=False)
    """The current epoch of each worker, and the order of the rows in it."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the orders, which are made again."""
        return self.__dict__ | {"_orders": {}}

    first_batch: ClassVar[None] = None

    @property
    def uses_job_numbers(self) -> bool:
        """True for epochs."""
        return self.sampling == EPOCHS

    def places(self, sample: Sample, part: int, parts: int, size: int) -> Integers:
        """Return the rows of a batch."""
        if self.sampling != EPOCHS:
            return self.shards.draw(sample if parts == 1 else sample.part(part), size)
        rows, worker_key = self.shards.rows_of(sample.worker), key_of_worker(sample)
        first = (sample.job * parts + part) * size
        positions = np.arange(first, first + size)
        return np.array(
            [self._ordered(worker_key, int(place) // len(rows), rows)[place % len(rows)] for place in positions]
        )

    def draw_one(self, sample: Sample) -> int:
        """Draw one row."""
        return self.shards.draw_one(sample)

    def _ordered(self, worker_key: int, epoch: int, rows: Integers) -> Integers:
        """Return the rows in the order of an epoch, a function of seed, worker and epoch."""
        known_epoch, order = self._orders.get(worker_key, (-1, rows))
        if known_epoch != epoch:
            rng = np.random.Generator(np.random.Philox(key=child(worker_key ^ len(rows), epoch)))
            order = rng.permutation(rows)
            self._orders[worker_key] = (epoch, order)
        return order


def key_of_worker(sample: Sample) -> int:
    """Return the key of the first job of the worker of a sample, which stands for seed and worker."""
    return (sample.key - int(sample.job) * TICKET_STRIDE) & MASK


@final
@dataclass(frozen=True, eq=False)
class Pass:
    """What a sampler gives from its beginning to its end: items, or batches of items."""

    places: Integers
    starts: Integers | None
    """Where each batch starts, and the end of the last one; None if entries are items."""

    @property
    def count(self) -> int:
        """The number of items or batches."""
        return len(self.places) if self.starts is None else len(self.starts) - 1

    @property
    def first_batch(self) -> Integers | None:
        """The items of the first batch; None if entries are items."""
        return None if self.starts is None else self.places[: self.starts[1]]

    def of(self, entries: Integers) -> Integers:
        """Return the items of these entries."""
        if self.starts is None:
            return self.places[entries]
        return np.concatenate([self.places[self.starts[entry] : self.starts[entry + 1]] for entry in entries])

    def is_same_as(self, other: Pass) -> bool:
        """Return True if another pass has the same entries in the same order."""
        if not np.array_equal(self.places, other.places):
            return False
        return self.starts is None or other.starts is None or np.array_equal(self.starts, other.starts)


@final
@dataclass(frozen=True)
class Weighted:
    """Draws items with replacement, with probabilities in proportion to weights."""

    cumulative: Floats
    last: int
    """The last item whose weight is not 0."""
    uses_job_numbers: ClassVar[bool] = False
    first_batch: ClassVar[None] = None

    @classmethod
    def of(cls, weights: Any, num_items: int) -> Weighted:
        """Check the weights of a ``WeightedRandomSampler``."""
        values = np.asarray(weights, dtype=np.float64)
        if values.ndim != 1 or len(values) > num_items or not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError(
                f"the weights of the sampler must be finite numbers of at least 0, one for each of the {num_items:,} "
                f"items, got an array of shape {values.shape}"
            )
        if not values.any():
            raise ValueError("the weights of the sampler are all 0: no item could be drawn")
        return cls(np.cumsum(values), int(np.flatnonzero(values)[-1]))

    def places(self, sample: Sample, part: int, parts: int, size: int) -> Integers:
        """Draw a batch from the ticket's own random numbers."""
        own = sample if parts == 1 else sample.part(part)
        drawn: Integers = np.searchsorted(self.cumulative, own.uniforms(size) * self.cumulative[-1], side="right")
        return np.minimum(drawn, self.last)

    def draw_one(self, sample: Sample) -> int:
        """Draw one item."""
        return int(self.places(sample, 0, 1, 1)[0])


@final
@dataclass(frozen=True)
class Listed:
    """Draws from the entries of a sampler that gives the same ones on every pass."""

    entries: Pass
    numbers: Rows
    """Draws the numbers of entries."""

    @property
    def uses_job_numbers(self) -> bool:
        """True for epochs."""
        return self.numbers.uses_job_numbers

    @property
    def first_batch(self) -> Integers | None:
        """The first batch of the list."""
        return self.entries.first_batch

    def places(self, sample: Sample, part: int, parts: int, size: int) -> Integers:
        """Draw entries until the batch is full; a batch of a ``batch_sampler`` is one entry."""
        count = size if self.entries.starts is None else 1
        return self.entries.of(self.numbers.places(sample, part, parts, count))

    def draw_one(self, sample: Sample) -> int:
        """Draw one of all items."""
        return int(self.entries.places[sample.index(len(self.entries.places))])


@final
@dataclass
class Passes:
    """Random passes over a sampler: every worker takes the entries of its own ones, in order.

    Pass number n of a worker is a function of seed, worker and n. All count as long as the first one: a longer pass is
    cut off, and a shorter one begins again.
    """

    sampler: Any
    has_batches: bool
    num_items: int
    first: Pass
    uses_job_numbers: ClassVar[bool] = True
    _current: dict[int, tuple[int, Pass]] = field(default_factory=dict, repr=False)
    """The number of the current pass of each worker, and the pass."""
    _is_new_here: bool = False
    """True in another process until the first pass was compared there."""

    @property
    def first_batch(self) -> Integers | None:
        """The first batch of the first pass."""
        return self.first.first_batch

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the passes of workers."""
        return self.__dict__ | {"_current": {}, "_is_new_here": True}

    def places(self, sample: Sample, part: int, parts: int, size: int) -> Integers:
        """Return the items of the entries that follow those of the batch before."""
        count = 1 if self.has_batches else size
        first = (int(sample.job) * parts + part) * count
        numbers, entries = np.divmod(np.arange(first, first + count), self.first.count)
        pieces = []
        for number in np.unique(numbers):
            made = self._pass(key_of_worker(sample), int(number))
            pieces.append(made.of(entries[numbers == number] % made.count))
        return np.concatenate(pieces)

    def draw_one(self, sample: Sample) -> int:
        """Draw one of the items of the first pass."""
        return int(self.first.places[sample.index(len(self.first.places))])

    def _pass(self, worker_key: int, number: int) -> Pass:
        known, made = self._current.get(worker_key, (-1, self.first))
        if known != number:
            if self._is_new_here:
                self._check_here()
            made = self._new(child(worker_key, number))
            self._current[worker_key] = (number, made)
        return made

    def _new(self, key: int) -> Pass:
        return a_pass(self.sampler, key, self.num_items, has_batches=self.has_batches)

    def _check_here(self) -> None:
        """Raise a ValueError if a pass has other entries here than in the process in which the problem was made."""
        if not self._new(FIRST_KEYS[0]).is_same_as(self.first):
            raise ValueError(
                f"{type(self.sampler).__name__} gives other items in this process than where the problem was made: it "
                f"has a copy of a random number generator, or this is another version of PyTorch or NumPy"
            )
        self._is_new_here = False


def checked_choice(sampler: Any, batch_sampler: Any, num_items: int, sampling: str) -> Choice:
    """Return how the items of batches are chosen, from arguments of a problem."""
    if sampler is None and batch_sampler is None:
        return Rows(Shards.all_rows(num_items), sampling)
    if sampler is not None and batch_sampler is not None:
        raise ValueError("give sampler or batch_sampler, not both: each of them says which items a batch has")
    name, given = (SAMPLER, sampler) if batch_sampler is None else (BATCH_SAMPLER, batch_sampler)
    if type(given) is WeightedRandomSampler and given.replacement and batch_sampler is None:
        return _with_its_own_order(Weighted.of(given.weights, num_items), name, sampling)
    _check_kind(given, name)
    given = _own_copy(given)
    _check_length(given, name)
    return _compared(given, name, num_items, sampling)


def _compared(sampler: Any, name: str, num_items: int, sampling: str) -> Choice:
    """Compare passes with the same seed and with another one."""
    has_batches, (key, other_key) = name == BATCH_SAMPLER, FIRST_KEYS
    first, again, other = (a_pass(sampler, seed, num_items, has_batches=has_batches) for seed in (key, key, other_key))
    if not first.is_same_as(again):
        raise ValueError(
            f"{name} ({type(sampler).__name__}) gives other items on a second pass with the same seed, so workers and "
            f"replays would not get the same batches: let it draw from the global generators of torch, numpy or "
            f"random, and keep no state from pass to pass"
        )
    if not first.is_same_as(other):
        return _with_its_own_order(Passes(sampler, has_batches, num_items, first), name, sampling)
    logger.warning(
        "%s gives the same %s on every pass: workers draw from them at random (sampling=%r), not in its order",
        *(name, "batches" if has_batches else "items", sampling),
    )
    return Listed(first, Rows(Shards.all_rows(first.count), sampling))


def a_pass(sampler: Any, key: int, num_items: int, *, has_batches: bool) -> Pass:
    """Make a pass with all generators seeded, and check its entries."""
    for part in _chain(sampler):
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(key >> 1)
    with seeded_apart(key):
        entries = list(islice(sampler, len(sampler)))
    name, batches = (BATCH_SAMPLER, entries) if has_batches else (SAMPLER, [entries])
    arrays = [_as_array(batch) for batch in batches]
    if not entries or not all(array.size for array in arrays):
        raise ValueError(f"{name} gives {'an empty batch' if entries else 'nothing'}: a gradient needs items")
    if not all(array.ndim == 1 and array.dtype.kind in "iu" for array in arrays):
        what = "lists of numbers of items" if has_batches else "numbers of items"
        raise TypeError(f"{name} must give {what}, got {entries[0]!r:.80} first")
    places = np.concatenate(arrays).astype(np.int64)
    if places.min() < 0 or places.max() >= num_items:
        outside = places[(places < 0) | (places >= num_items)][0]
        raise ValueError(f"{name} gives the item {outside}, but train_set has the items 0 to {num_items - 1:,}")
    return Pass(places, np.cumsum([0, *map(len, arrays)]) if has_batches else None)


def _as_array(entries: Any) -> Any:
    """Return an array; of lists that are not equally long, one of objects."""
    try:
        return np.asarray(entries)
    except ValueError:
        return np.asarray(entries, dtype=object)


def _with_its_own_order(choice: Choice, name: str, sampling: str) -> Choice:
    if sampling == EPOCHS:
        raise ValueError(f'{name} says itself in which order items come: sampling="epochs" cannot be given with it')
    return choice


def _check_kind(sampler: Any, name: str) -> None:
    if any(isinstance(part, DistributedSampler) for part in _chain(sampler)):
        raise ValueError(
            f"{name} is a DistributedSampler, which divides items among the ranks of torch.distributed: leave it out, "
            f"as workers of nowait draw from all items, or give each its own with problem.split(workers)"
        )
    is_no_sampler = isinstance(sampler, type | DataLoader)
    if is_no_sampler or not hasattr(sampler, "__iter__") or not hasattr(sampler, "__len__"):
        raise TypeError(
            f"{name} must be a sampler with a length, as those of torch.utils.data have, or a list, got {sampler!r:.80}"
        )


def _check_length(sampler: Any, name: str) -> None:
    with seeded_apart(FIRST_KEYS[0]):
        more = sum(1 for _ in islice(sampler, len(sampler), len(sampler) + 1))
    if more:
        raise ValueError(f"{name} gives more than its length of {len(sampler):,} entries: the others would not be used")


def _chain(sampler: Any) -> Iterator[Any]:
    """Yield a sampler and the samplers inside of it."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def _own_copy(sampler: Any) -> Any:
    """Return a copy with generators of its own, also in samplers inside of it: those of the user stay as they are."""
    own = copy.copy(sampler)
    if isinstance(getattr(own, "generator", None), torch.Generator):
        own.generator = torch.Generator()
    if getattr(own, "sampler", None) is not None:
        own.sampler = _own_copy(own.sampler)
    return own
