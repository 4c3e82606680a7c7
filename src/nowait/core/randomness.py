"""Counter-based randomness: every draw is a pure function of the seed and of what it is drawn for.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)
used as a stateless hash: draw i of a key is ``mix(key + (i + 1) * GOLDEN)``. A worker has a key of its own; its
ticket number ``job`` takes the draws from ``job * 2**32`` on. Integer arithmetic modulo 2**64 is the same in
Python, numpy, compiled kernels and on a GPU, so every engine uses the same samples. Normal numbers
are made with ``nowait.numerics.elementary``, so they have the same bits everywhere too.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nowait.core import checks
from nowait.core.types import Floats, Integers
from nowait.numerics.elementary import cos_of_turns, log
from nowait.numerics.splitmix import FIRST_FACTOR, GOLDEN, MASK, NORMALS, PARTS, SECOND_FACTOR, TICKET_STRIDE, UNIFORMS

MOST_CACHED_WORKERS = 65_536
KERNELS = "nowait.numerics.random_kernels"
"""The module with compiled draws. Worker processes that have not loaded it do without: loading it takes a second."""

Bits = NDArray[np.uint64]


def mix(value: int) -> int:
    """The SplitMix64 finaliser of a 64-bit integer."""
    value = ((value ^ (value >> 30)) * FIRST_FACTOR) & MASK
    value = ((value ^ (value >> 27)) * SECOND_FACTOR) & MASK
    return value ^ (value >> 31)


def child(key: int, counter: int) -> int:
    """Draw number ``counter`` of a key: 64 random bits, which may serve as a key again.

    ``mix`` written out once more: this is called several times per gradient.
    """
    value = (key + (counter + 1) * GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * FIRST_FACTOR) & MASK
    value = ((value ^ (value >> 27)) * SECOND_FACTOR) & MASK
    return value ^ (value >> 31)


def children(key: int, count: int) -> Bits:
    """Draws 0 to count - 1 of a key; the same bits as ``child``, hashed in one block."""
    bits = np.arange(1, count + 1, dtype=np.uint64)
    bits *= np.uint64(GOLDEN)
    bits += np.uint64(key)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(FIRST_FACTOR)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(SECOND_FACTOR)
    bits ^= bits >> np.uint64(31)
    return bits


def below(bits: Bits, limit: int) -> Integers:
    """Random bits as integers in [0, limit): the upper half of the 128-bit product, without overflow."""
    if limit >= 1 << 32:
        return np.array([(int(draw) * limit) >> 64 for draw in bits], dtype=np.int64)
    factor = np.uint64(limit)
    low = ((bits & np.uint64(0xFFFFFFFF)) * factor) >> np.uint64(32)
    return (((bits >> np.uint64(32)) * factor + low) >> np.uint64(32)).astype(np.int64)


def unit(bits: int) -> float:
    """Random bits as a float strictly between 0 and 1."""
    return ((bits >> 12) + 0.5) * 2.0**-52


def units(bits: Bits) -> Floats:
    """``unit`` of an array."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def many_normals(key: int, size: int) -> Floats:
    """``Sample.normals`` of a sample with this key, without compiled code. The bits are the same."""
    draws = units(children(child(key, NORMALS), 2 * size))
    normals: Floats = np.sqrt(-2.0 * log(draws[0::2])) * cos_of_turns(draws[1::2])
    return normals


def checked_seed(seed: object) -> int:
    """The seed as an integer, or an error that says what a seed is."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or int(seed) < 0:
        raise ValueError(
            f"seed must be an integer of at least 0, got {checks.shown(seed)}: it fixes samples and speeds"
        )
    if int(seed) >= checks.LIMIT:
        raise ValueError(
            f"seed must be below 2**63, got {checks.shown(seed)}: larger seeds would repeat the runs of smaller ones; "
            f"take seed % 2**63 if it is a hash"
        )
    return int(seed)


class Stream:
    """Random draws for tickets: one independent key per (seed, name, worker, job)."""

    __slots__ = ("_worker_keys", "own_key")

    def __init__(self, seed: int, name: str) -> None:
        key = mix((checked_seed(seed) + GOLDEN) & MASK)
        for letter in name.encode():
            key = child(key, letter)
        self.own_key = key
        """What the keys of all workers are drawn from."""
        self._worker_keys: dict[int, int] = {}

    def key(self, worker: int, job: int) -> int:
        """The key of one ticket. (Numbers from a trace are numpy's, which would overflow.)"""
        worker_key = self._worker_keys.get(worker)
        if worker_key is None:
            worker_key = self._new_worker_key(int(worker))
        return (worker_key + int(job) * TICKET_STRIDE) & MASK

    def uniform(self, worker: int, job: int) -> float:
        """One number strictly between 0 and 1 for this ticket."""
        return unit(child(self.key(worker, job), 0))

    def normal(self, worker: int, job: int) -> float:
        """One standard normal number for this ticket (Box and Muller)."""
        key = self.key(worker, job)
        radius = math.sqrt(-2.0 * log(unit(child(key, 0))))
        return radius * float(cos_of_turns(unit(child(key, 1))))

    def sample(self, worker: int, job: int, ticket: int | None = None) -> Sample:
        """The draws of one ticket as a ``Sample``; ``ticket`` is its id."""
        return Sample(worker, job, self.key(worker, job), ticket)

    def _new_worker_key(self, worker: int) -> int:
        worker_key = child(self.own_key, worker)
        if len(self._worker_keys) < MOST_CACHED_WORKERS:
            self._worker_keys[worker] = worker_key
        return worker_key


class Sample:
    """The randomness of one ticket: what a problem draws its data and noise from.

    The same (seed, worker, job) gives the same draws, in every engine and for every method. Indices, uniforms and
    normals are independent of each other; the same call again gives the same draws again. For more independent ones
    take ``part(0)``, ``part(1)``, …

    ``ticket`` is the id of the ticket: how many tickets the server had issued before it, to all workers. It says how
    far the run is, for schedules inside of a problem; nothing is drawn from it. None if the sample is of no ticket.

    >>> sample = sampler(seed=0).sample(worker=2, job=5)
    >>> sample.indices(1000, size=3)
    array([400, 558, 235])
    """

    __slots__ = ("job", "key", "ticket", "worker")

    def __init__(self, worker: int, job: int, key: int, ticket: int | None = None) -> None:
        self.worker = worker
        self.job = job
        self.key = key
        self.ticket = ticket

    def index(self, limit: int) -> int:
        """One integer in [0, limit): the first of ``indices``, without an array."""
        bits = (self.key + GOLDEN) & MASK  # child(key, 0), written out: it is drawn once per gradient
        bits = ((bits ^ (bits >> 30)) * FIRST_FACTOR) & MASK
        bits = ((bits ^ (bits >> 27)) * SECOND_FACTOR) & MASK
        return ((bits ^ (bits >> 31)) * int(limit)) >> 64

    def indices(self, limit: int, size: int) -> Integers:
        """``size`` integers in [0, limit), drawn with replacement."""
        return below(children(self.key, size), int(limit))

    def uniforms(self, size: int) -> Floats:
        """``size`` numbers strictly between 0 and 1."""
        return units(children(child(self.key, UNIFORMS), size))

    def normals(self, size: int) -> Floats:
        """``size`` standard normal numbers (Box and Muller on two uniform numbers each)."""
        if KERNELS not in sys.modules:
            return many_normals(self.key, size)
        numbers = np.empty(size)
        _kernels().fill_normals(np.uint64(child(self.key, NORMALS)), numbers)
        return numbers

    def part(self, number: int) -> Sample:
        """An independent sample of the same ticket: for several batches, or noise beside them."""
        return Sample(self.worker, self.job, child(self.key, PARTS + int(number)), self.ticket)

    def of_local_step(self, number: int, steps: int) -> Sample:
        """The sample of step ``number`` of this ticket, if every ticket of its worker is ``steps`` local steps.

        It is that of ticket job·steps + number. So the samples of all local steps of a worker are numbered in order,
        as if each of them were a ticket.

        >>> first = sampler(seed=0).sample(worker=2, job=5)
        >>> second = sampler(seed=0).sample(worker=2, job=6)
        >>> (
        ...     [first.of_local_step(number, steps=2).job for number in (0, 1)],
        ...     second.of_local_step(0, steps=2).job,
        ... )
        ([10, 11], 12)
        """
        before = int(self.job)  # numbers from a trace are numpy's, which would overflow
        job = before * steps + number
        ticket = None if self.ticket is None else int(self.ticket) * steps + number
        return Sample(self.worker, job, (self.key + (job - before) * TICKET_STRIDE) & MASK, ticket)

    def rng(self) -> np.random.Generator:
        """A numpy generator of its own, for problems that need more than the draws above."""
        return np.random.Generator(np.random.Philox(key=self.key))

    def __repr__(self) -> str:
        return f"Sample(worker={self.worker}, job={self.job}, key={self.key:#018x})"


@cache
def _kernels() -> Any:
    from nowait.numerics import random_kernels

    return random_kernels


def sampler(seed: int) -> Stream:
    """Makes the sample of every ticket of a run from its seed."""
    return Stream(seed, "sample")


class CounterRandom:
    """Random numbers for a method or an output: draw n is a pure function of (seed, name, n)."""

    __slots__ = ("_key", "draws")

    def __init__(self, seed: int, name: str) -> None:
        self._key = Stream(seed, name).key(0, 0)
        self.draws = 0

    def integer(self, limit: int) -> int:
        """An integer in [0, limit)."""
        return (self._next() * limit) >> 64

    def uniform(self) -> float:
        """A number strictly between 0 and 1."""
        return unit(self._next())

    def uniforms(self, size: int) -> Floats:
        """The next ``size`` numbers that ``uniform`` would give."""
        self.draws += size
        return units(children(self._key, self.draws)[self.draws - size :])

    def choice(self, items: Any) -> Any:
        """One item of a sequence, each equally likely."""
        return items[self.integer(len(items))]

    def permutation(self, size: int) -> list[int]:
        """0 to size - 1 in random order (Fisher and Yates)."""
        order = list(range(size))
        for last in range(size - 1, 0, -1):
            other = self.integer(last + 1)
            order[last], order[other] = order[other], order[last]
        return order

    def _next(self) -> int:
        bits = child(self._key, self.draws)
        self.draws += 1
        return bits
