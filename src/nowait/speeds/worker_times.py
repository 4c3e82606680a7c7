"""How long every worker of a recorded job computed each of its gradients."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np

from nowait.core import checks
from nowait.core.randomness import Stream, below, checked_seed, children
from nowait.core.types import Floats, Integers
from nowait.recording import Trace

MOST_TIMES = 1 << 28
"""A job is not bootstrapped to more times than this, which take 2 GB."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class WorkerTimes:
    """The compute times of every worker, in their order."""

    seconds: Floats
    """All times of worker 0, then all of worker 1, and so on."""
    offsets: Integers
    """Worker w has the times from ``offsets[w]`` up to ``offsets[w + 1]``."""
    source: str
    """Where the times come from, in a few words."""
    steps: Integers | None = None
    """The number of the job's step that each time belongs to; None if it is unknown."""
    names: tuple[str, ...] = ()
    """What the record calls each worker; empty if they are numbered from 0."""
    computing_only: bool = False
    """True if the format guarantees that no time in which a worker waited for others is included."""
    asynchronous: bool = False
    """True if the workers of the recorded run did not wait for each other."""
    world_size: int | None = None
    """How many workers the job had, of which some may not be recorded; None if it is unknown."""

    def __post_init__(self) -> None:
        if self.world_size is not None and self.world_size < len(self):
            raise ValueError(
                f"{self.source} has times of {len(self)} workers, but world_size is {self.world_size}: pass the times "
                "of one job only, or the number of all its workers"
            )

    @classmethod
    def of(cls, seconds: Iterable[Any], source: str, *, names: Sequence[str] = ()) -> Self:
        """Make times of one list or array for every worker, and check them."""
        is_scalar = isinstance(seconds, np.ndarray) and seconds.ndim == 0
        if isinstance(seconds, str | bytes) or not isinstance(seconds, Iterable) or is_scalar:
            raise TypeError(f"seconds must be one list of times for every worker, got {checks.shown(seconds)}")
        lists = [_checked(mine, worker) for worker, mine in enumerate(seconds)]
        if not lists:
            raise ValueError("seconds is empty: pass one list of times for every worker")
        return cls(np.concatenate(lists), offsets_of([len(mine) for mine in lists]), source, names=tuple(names))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        return f"{self.source}: {len(self)} workers, {len(self.seconds):,} times"

    def of_worker(self, worker: int) -> Floats:
        """Return the times of one worker."""
        return self.seconds[self.offsets[worker] : self.offsets[worker + 1]]

    def name(self, worker: int) -> str:
        """Return what the record calls a worker."""
        return self.names[worker] if self.names else str(worker)

    def means(self) -> Floats:
        """Return the mean time of every worker."""
        return np.array([self.of_worker(worker).mean() for worker in range(len(self))])

    def missing(self) -> tuple[int, list[int]]:
        """Return how many workers of the job are not recorded, and their numbers if the names of workers are numbers.

        Without ``world_size``, the highest number says how many workers there are, counted from 0 or 1.

        >>> WorkerTimes.of([[1.0], [2.0]], "a job", names=["0", "3"]).missing()
        (2, [1, 2])
        """
        names = [self.name(worker) for worker in range(len(self))]
        if not all(name.isascii() and name.isdecimal() for name in names):
            return (0 if self.world_size is None else self.world_size - len(self)), []
        numbers = set(map(int, names))
        is_complete = self.world_size in (None, len(self))
        first = 1 if is_complete and min(numbers) == 1 and max(numbers) == len(self) else 0
        size = max(numbers) + 1 - first if self.world_size is None else self.world_size
        expected = set(range(first, first + size))
        return size - len(self), sorted(expected - numbers) if numbers <= expected else []

    def checksum(self) -> int:
        """Return a number that differs for other times or other workers."""
        return zlib.crc32(self.seconds.tobytes(), zlib.crc32(self.offsets.tobytes()))

    def scaled(self, factors: Floats) -> Self:
        """Return the times of each worker multiplied by its factor."""
        seconds = self.seconds * np.repeat(factors, np.diff(self.offsets))
        return replace(self, seconds=seconds)

    def bootstrapped(self, workers: int, block: int | None, seed: int) -> Self:
        """Return times for any number of workers, made of blocks of consecutive times of one recorded worker each."""
        times_each = len(self.seconds) / len(self)
        if workers * times_each > MOST_TIMES:
            raise ValueError(
                f"{workers:,} workers with {times_each:,.0f} times each would take {8e-9 * workers * times_each:.3g} "
                "GB: bootstrap to fewer workers, or pass a part of the recorded times"
            )
        counts = np.diff(self.offsets)[np.arange(workers) % len(self)]
        stream = Stream(checked_seed(seed), "bootstrap")
        places = [
            self.offsets[worker % len(self)] + _places_of_blocks(stream.key(worker, 0), int(count), block)
            for worker, count in enumerate(counts)
        ]
        source = f"{self.source}, bootstrapped"
        return replace(
            self,
            seconds=self.seconds[np.concatenate(places)],
            offsets=offsets_of(counts),
            source=source,
            steps=None,
            names=(),
            world_size=None,
        )


def times_of_trace(trace: Any) -> WorkerTimes:
    """Return the compute times of a run's trace.

    A worker without any uses the times of the others in turn.
    """
    if not isinstance(trace, Trace):
        raise TypeError(
            f"trace must be the trace of a run, as in Recorded(run.trace), got {checks.shown(trace)}: for lists of "
            "times write Recorded.of(lists), and for a file Recorded.read(path)"
        )
    if not len(trace):
        raise ValueError("the trace has no arrivals, so it has no compute times: take the trace of a longer run")
    workers, seconds = trace.worker, trace.compute_seconds
    order = np.argsort(workers, kind="stable")
    numbers, firsts = np.unique(workers[order], return_index=True)
    lists = dict(zip(numbers.tolist(), np.split(seconds[order], firsts[1:]), strict=True))
    known = [lists[number] for number in sorted(lists)]
    size = max(max(lists) + 1, trace.num_workers)
    dealt = [lists.get(worker, known[worker % len(known)]) for worker in range(size)]
    return WorkerTimes(
        np.concatenate(dealt),
        offsets_of([len(mine) for mine in dealt]),
        "the trace of a run",
        computing_only=True,
        asynchronous=int(trace.delay.max()) > 1,
    )


def offsets_of(counts: Any) -> Integers:
    """Return where the times of each worker begin, and the end, from the number of times of each."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _checked(values: Any, worker: int) -> Floats:
    """Return the times of one worker as an array, or raise an error that names the first bad one."""
    name = f"seconds[{worker}]"
    checks.unmasked(values, name)
    try:
        times = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name} must be a list of the times of worker {worker}, got {checks.shown(values)}") from error
    if times.ndim != 1:
        raise TypeError(f"{name} must be a list of the times of worker {worker}, got {checks.shown(values)}")
    if not len(times):
        raise ValueError(f"{name} is empty: worker {worker} needs at least one time")
    bad = np.flatnonzero(~((times > 0) & (times < np.inf)))
    if len(bad):
        raise ValueError(
            f"{name}[{bad[0]}] must be a finite number above 0, got {times[bad[0]]:g}: a gradient must take some time"
        )
    return times


def _places_of_blocks(key: int, count: int, block: int | None) -> Integers:
    """Return ``count`` places below ``count``, in blocks of consecutive ones that begin anywhere and wrap around.

    The circular block bootstrap of Politis and Romano (1992). By default a block has sqrt(count) places.
    """
    size = max(1, round(count**0.5)) if block is None else min(block, count)
    starts = below(children(key, -(-count // size)), count)
    places: Integers = (starts[:, None] + np.arange(size)).ravel()[:count] % count
    return places
