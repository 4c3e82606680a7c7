"""Processes of a worker that draw its next batches while it computes.

They are forked before the worker uses a GPU, and only on Linux: a process that draws batches must have global random
number generators of its own, as data sets use them, and must not outlive its worker.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, final

import numpy as np
import torch

from nowait.core import Sample
from nowait.core.pickling import dumps
from nowait.numerics.splitmix import MASK, TICKET_STRIDE
from nowait.system import die_with_parent

logger = logging.getLogger("nowait")

REQUEST = struct.Struct("<qqQq")
"""Worker, job and key of a sample, and the number of the batch."""
REPLY = struct.Struct("<q")
"""The number of buffers in the file, or one of the two numbers below."""
FAILED, NOT_AHEAD, RAISED = -1, -2, -10
"""Numbers below ``RAISED`` are minus the number of buffers of a traceback, minus 10."""


class Drawn(NamedTuple):
    """A batch that was drawn ahead."""

    batch: Any
    states: tuple[Any, ...] | None
    """The states of the random number generators after it was drawn; None: drawing it used none of them."""


DrawAhead = Callable[[Sample, int], Drawn | None]
"""Returns a batch of a ticket, by its number; None if it cannot be drawn before the one before it was used."""


class _Unit(NamedTuple):
    """One batch: of a ticket that has several, the one with this number."""

    sample: Sample
    part: int

    @property
    def name(self) -> tuple[int, int]:
        return self.sample.key, self.part


@final
class Loaders:
    """Processes that draw the next ``count`` batches of one worker.

    A worker's tickets are numbered in order, and a batch is a pure function of the ticket. So the processes draw the
    batches that follow the latest one. If another ticket comes, or a process fails, the worker draws that batch itself:
    the batches are always the same. ``in_order``: the batches come from a stream, in its order. Then only the process
    reads it, and its errors are raised in the worker.
    """

    def __init__(self, draw: DrawAhead, parts: int, count: int, *, in_order: bool = False) -> None:
        self._parts = parts
        """How many batches of each ticket are drawn ahead."""
        self._in_order = in_order
        self._expected: tuple[int, int] | None = None
        self._loaders: list[_Loader] = []
        for _ in range(1 if in_order else count):
            self._loaders.append(_Loader(draw, self._loaders, in_order=in_order))

    @property
    def processes(self) -> list[int]:
        """The ids of the processes."""
        return [loader.process for loader in self._loaders]

    def is_ready(self, sample: Sample, part: int) -> bool:
        """Return True if ``take`` would return this batch without waiting."""
        loader = self._loader_of(_Unit(sample, part))
        return loader is not None and loader.is_ready()

    def take(self, sample: Sample, part: int) -> Drawn | None:
        """Return a batch that was drawn ahead, and request the following ones; None if the worker has to draw it."""
        if part >= self._parts:
            return None
        unit = _Unit(sample, part)
        if self._in_order and self._loader_of(unit) is None:
            self._request(iter([unit]))  # every batch of a stream comes from the process
        loader = self._loader_of(unit)
        if self._in_order and loader is None:
            raise RuntimeError("the process that read the stream has ended, so its next items are not known")
        reply = FAILED if loader is None else loader.receive()
        if reply == NOT_AHEAD:
            self._parts = 1
        self._loaders = [loader for loader in self._loaders if loader.is_alive]
        if loader is not None or self._expected in (None, unit.name):
            self._request(self._following(unit))
        self._expected = next(self._following(unit)).name
        return reply if isinstance(reply, Drawn) else None

    def _loader_of(self, unit: _Unit) -> _Loader | None:
        for loader in self._loaders:
            if loader.requested is not None and (self._in_order or loader.requested == unit.name):
                return loader
        return None

    def _following(self, unit: _Unit) -> Iterator[_Unit]:
        """Yield the batches after this one."""
        sample, part = unit
        while True:
            part += 1
            if part >= self._parts:
                part = 0
                sample = Sample(sample.worker, sample.job + 1, (sample.key + TICKET_STRIDE) & MASK)
            yield _Unit(sample, part)

    def _request(self, following: Iterator[_Unit]) -> None:
        """Request as many batches as there are processes, except those that are requested already."""
        wanted = {unit.name: unit for unit, _ in zip(following, self._loaders, strict=False)}
        free = [loader for loader in self._loaders if loader.requested not in wanted]
        missing = wanted.keys() - {loader.requested for loader in self._loaders}
        for loader, name in zip(free, [name for name in wanted if name in missing], strict=False):
            loader.request(wanted[name])


@final
class _Loader:
    """One process, with pipes for requests and replies, and a file in memory for one batch."""

    def __init__(self, draw: DrawAhead, earlier: Sequence[_Loader], *, in_order: bool) -> None:
        self.requested: tuple[int, int] | None = None
        self.is_alive = True
        self._file = os.memfd_create("nowait-batch", os.MFD_CLOEXEC)
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        worker = os.getpid()
        self.process = os.fork()
        if self.process == 0:
            try:
                die_with_parent(worker)
                for loader in (*earlier, self):
                    os.close(loader._requests)
                    os.close(loader._replies)
                for loader in earlier:
                    os.close(loader._file)
                _serve(draw, requests, replies, self._file, in_order=in_order)
            except BaseException:  # such as batches that cannot be pickled
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(requests)
        os.close(replies)

    def request(self, unit: _Unit) -> None:
        """Let the process draw a batch; one that it draws already is lost."""
        if self.requested is not None:
            self._reply()
        if not self.is_alive:
            return
        sample, part = unit
        with suppress(BrokenPipeError):  # the next reply says that it is gone
            os.write(self._requests, REQUEST.pack(sample.worker, sample.job, sample.key, part))
        self.requested = unit.name

    def is_ready(self) -> bool:
        """Return True if the requested batch is there."""
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        return bool(poller.poll(0))

    def receive(self) -> Drawn | int:
        """Wait for the requested batch; ``FAILED`` or ``NOT_AHEAD`` if there is none."""
        count = self._reply()
        if count < RAISED:
            raise RuntimeError(f"drawing a batch of the stream failed:\n{_read_buffers(self._file, RAISED - count)}")
        if count < 0:
            return count
        drawn: Drawn = _read_buffers(self._file, count)
        return drawn

    def _reply(self) -> int:
        self.requested = None
        reply = os.read(self._replies, REPLY.size)
        if len(reply) == REPLY.size:
            return int(REPLY.unpack(reply)[0])
        self._bury()
        return FAILED

    def _bury(self) -> None:
        self.is_alive = False
        _, status = os.waitpid(self.process, 0)
        for fd in (self._requests, self._replies, self._file):
            os.close(fd)
        code = os.waitstatus_to_exitcode(status)
        logger.warning("a process that draws batches ended (%d): the worker draws them itself", code)


def _serve(draw: DrawAhead, requests: int, replies: int, file: int, *, in_order: bool) -> None:
    """Draw the batches that are requested, until the worker is gone."""
    while len(request := os.read(requests, REQUEST.size)) == REQUEST.size:
        worker, job, key, part = REQUEST.unpack(request)
        try:
            drawn = draw(Sample(worker, job, key), part)
        except Exception:  # the worker draws the batch itself, and reports the error as its own; not of a stream
            count = RAISED - _write_buffers(file, traceback.format_exc()) if in_order else FAILED
        else:
            count = NOT_AHEAD if drawn is None else _write_buffers(file, drawn)
        os.write(replies, REPLY.pack(count))


def _write_buffers(file: int, item: Any) -> int:
    """Write the sizes of the buffers of a pickle, the pickle, and its other buffers; returns how many they are."""
    buffers: list[pickle.PickleBuffer] = []
    data = dumps(item, buffers.append)
    parts = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    sizes = np.array([part.nbytes for part in parts], dtype=np.int64).tobytes()
    offset = 0
    for part in (memoryview(sizes), *parts):
        written = 0
        while written < part.nbytes:
            written += os.pwrite(file, part[written:], offset + written)
        offset += part.nbytes
    return len(parts)


def _read_buffers(file: int, count: int) -> Any:
    sizes = np.frombuffer(_read(file, 8 * count, 0), dtype=np.int64)
    offset, parts = 8 * count, []
    for size in sizes.tolist():
        parts.append(_read(file, size, offset))
        offset += size
    return pickle.loads(parts[0], buffers=parts[1:])


def _read(file: int, size: int, offset: int) -> memoryview:
    """Return bytes of a file in memory that is aligned like a tensor's: some kernels round differently otherwise."""
    array: Any = torch.empty(size, dtype=torch.uint8).numpy()
    memory = memoryview(array)
    filled = 0
    while filled < size:
        filled += os.preadv(file, [memory[filled:]], offset + filled)
    return memory
