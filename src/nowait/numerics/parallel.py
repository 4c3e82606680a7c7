"""Threads that work on the chunks of large vectors.

Inside ``with using_threads(4):`` passes over large vectors use four threads, the calling one included. The others start
at the first such pass and end with the block. Only code that releases the global interpreter lock gains from them:
compiled kernels, and numpy on large arrays. Results do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from nowait.numerics.chunks import chunks_of

Result = TypeVar("Result")


@contextlib.contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let passes over large vectors use ``count`` threads until the end of the block, if the caller is this thread."""
    pool = ThreadPool(count)
    token = _current.set(pool)
    try:
        yield
    finally:
        _current.reset(token)
        pool.close()


def num_threads() -> int | None:
    """Return how many threads passes over large vectors use now; None outside ``using_threads``."""
    pool = _current.get()
    return None if pool is None else pool.count


def are_several() -> bool:
    """Return True if passes over large vectors use more than one thread now."""
    pool = _current.get()
    return pool is not None and pool.count > 1


def in_chunks(function: Callable[..., Result], *vectors: NDArray[Any]) -> list[Result]:
    """Call ``function`` with each chunk of the vectors, which have one length; returns its results in order.

    It is called in several threads at once if there are several, and without numpy's floating-point warnings there.
    """
    chunks = chunks_of(vectors[0].size)

    def call(number: int) -> Result:
        chunk = chunks[number]
        return function(*[vector[chunk] for vector in vectors])

    pool = _current.get()
    if pool is None or len(chunks) < 2:
        return [call(number) for number in range(len(chunks))]
    return pool.map(call, len(chunks))


@final
class ThreadPool:
    """``count`` threads: the one that calls ``map``, and helpers, which start when they are needed first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._helpers: list[threading.Thread] = []
        self._passes: SimpleQueue[_Pass[Any] | None] = SimpleQueue()

    def map(self, function: Callable[[int], Result], count: int) -> list[Result]:
        """Return the results of ``function`` for 0, 1, … ``count`` - 1, in order."""
        work = _Pass(function, count)
        for _ in range(self._start(min(self.count, count) - 1)):
            self._passes.put(work)
        work.run()
        return work.wait()

    def close(self) -> None:
        """End the helpers, and wait until they have ended."""
        if not self._are_lost():
            for _ in self._helpers:
                self._passes.put(None)
            for helper in self._helpers:
                helper.join()
        self._helpers = []

    def _start(self, needed: int) -> int:
        """Start the helpers that are missing; returns how many of those needed there are."""
        if self._are_lost():
            self._helpers, self._passes = [], SimpleQueue()
        while len(self._helpers) < needed:
            helper = threading.Thread(target=_help, args=(self._passes,), name="nowait-server", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # the system allows no more threads
                break
            self._helpers.append(helper)
        return min(needed, len(self._helpers))

    def _are_lost(self) -> bool:
        """Return True in a process that was forked from the one with the helpers: threads do not survive a fork."""
        return bool(self._helpers) and not self._helpers[0].is_alive()


_current: ContextVar[ThreadPool | None] = ContextVar("nowait-threads", default=None)


@final
class _Pass(Generic[Result]):
    """Calls of a function with the numbers 0, 1, …, which several threads share.

    Each thread takes the next number until none is left, so a helper that wakes up late delays nobody.
    """

    def __init__(self, function: Callable[[int], Result], count: int) -> None:
        self._function, self._count = function, count
        self._results: list[Any] = [None] * count
        self._errors: list[BaseException] = []
        self._taken, self._done = itertools.count(), itertools.count(1)
        self._finished = threading.Lock()
        self._finished.acquire()

    def run(self) -> None:
        """Call the function until no number is left."""
        while (number := next(self._taken)) < self._count:
            try:
                self._results[number] = self._function(number)
            except BaseException as error:
                self._errors.append(error)
            if next(self._done) == self._count:
                self._finished.release()

    def wait(self) -> list[Result]:
        """Wait for the other threads; returns the results, or raises the first error."""
        self._finished.acquire()
        if self._errors:
            raise self._errors[0]
        return self._results


def _help(passes: SimpleQueue[_Pass[Any] | None]) -> None:
    with np.errstate(all="ignore"):
        while (work := passes.get()) is not None:
            work.run()
            del work  # it refers to vectors, which may be shared memory
