"""What processes of one machine share: vectors, and the pickled job.

Both are in anonymous files, so that nothing is left however a run ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
from collections.abc import Iterable, Sequence
from typing import Any, Self, final

import numpy as np

from nowait.core.capabilities import Capabilities
from nowait.core.memory import HOST, Memory, Slots
from nowait.core.pickling import dumps
from nowait.core.types import Vector
from nowait.core.unpicklable import attributes_of, unpicklable_part
from nowait.fleet.platform import anonymous_file, portable

ALIGNMENT = 64
LARGE_SLOT_BYTES = 1 << 20
"""Slots of this size start at a page boundary, so that each can be locked in memory by itself."""
PIECE = 1 << 26
"""Bytes per write of a payload."""


# Vectors


def slot_bytes(length: int, dtype: np.dtype[Any]) -> int:
    """Return the distance in bytes between the starts of two slots."""
    used = length * dtype.itemsize
    alignment = mmap.PAGESIZE if used >= LARGE_SLOT_BYTES else ALIGNMENT
    return -(-used // alignment) * alignment


@final
class SharedSlots:
    """Numbered vectors of one size and dtype. The file grows; a process that needs a slot past its map maps again."""

    def __init__(self, length: int, dtype: Any, fd: int | None = None, *, writeable: bool = True) -> None:
        self.length, self.dtype = length, np.dtype(dtype)
        self._slot_bytes = slot_bytes(length, self.dtype)
        self._writeable = writeable
        self.fd = anonymous_file("nowait") if fd is None else fd
        self._memory: mmap.mmap | None = None
        self.views: list[Vector] = []
        """The slots mapped so far; ``slots[number]`` maps more if necessary."""
        self._allocated = 0

    def __getitem__(self, slot: int) -> Vector:
        if slot >= len(self.views):
            self._map(slot + 1)
        return self.views[slot]

    def allocate(self) -> Vector:
        """Return a new vector."""
        self._allocated += 1
        return self[self._allocated - 1]

    def close(self) -> None:
        """Close the file and drop the map; vectors that are in use stay valid."""
        self.views, self._memory = [], None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _map(self, count: int) -> None:
        """Map at least ``count`` vectors. Older views still refer to the same memory."""
        size = os.fstat(self.fd).st_size
        if size < count * self._slot_bytes:
            size = max(2 * count, 8) * self._slot_bytes
            os.ftruncate(self.fd, size)
        access = mmap.PROT_READ | (mmap.PROT_WRITE if self._writeable else 0)
        self._memory = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED, prot=access)
        if self._slot_bytes >= LARGE_SLOT_BYTES:
            advise_huge_pages(self._memory)
        for slot in range(len(self.views), size // self._slot_bytes):
            offset = slot * self._slot_bytes
            self.views.append(np.frombuffer(self._memory, self.dtype, count=self.length, offset=offset))


def shared_slots(
    memory: Memory | None, length: int, dtype: Any, fd: int | None = None, *, writeable: bool = True
) -> Slots:
    """Return vectors of a memory (None: of the host) that processes share; ``fd`` is the file of another process."""
    return (memory or HOST).shared_slots(SharedSlots, length, dtype, fd, writeable=writeable)


# The job


@final
class Payload:
    """A pickle and, after it, the arrays and tensors it refers to, in an anonymous file."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self.sizes = [part.nbytes for part in parts]
        self.fd = anonymous_file("nowait-job")
        offset = 0
        try:
            for part in parts:
                self.write(part, offset)
                offset += _aligned(part.nbytes)
            os.ftruncate(self.fd, max(offset, 1))
        except BaseException:
            self.close()
            raise

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes to the file."""
        written = 0
        while written < data.nbytes:
            written += os.pwrite(self.fd, data[written : written + PIECE], offset + written)

    @classmethod
    def reserved(cls, sizes: Iterable[int]) -> Self:
        """Return a payload with parts of these sizes, which are still to be written."""
        payload = cls(())
        payload.sizes = list(sizes)
        os.ftruncate(payload.fd, max(sum(map(_aligned, payload.sizes)), 1))
        return payload

    @property
    def total(self) -> int:
        """The size of the file."""
        return os.fstat(self.fd).st_size

    @classmethod
    def of(cls, job: Any) -> Self:
        """Pickle a job. An error names the part of its problem that cannot be pickled."""
        buffers: list[pickle.PickleBuffer] = []
        try:
            data = dumps(job, buffers.append)
        except Exception as error:
            raise TypeError(f"{_culprit(job.problem)} cannot be sent to worker processes: {error}") from error
        return cls([memoryview(data), *(buffer.raw() for buffer in buffers)])

    def parts(self) -> list[memoryview]:
        """Return the pickle and the arrays as views of the file."""
        return _cut(memoryview(mmap.mmap(self.fd, 0, prot=mmap.PROT_READ)), self.sizes)

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def unpickle(fd: int, sizes: list[int]) -> Any:
    """Unpickle a job. Its arrays are views of one block of memory, which workers share until they write to it."""
    parts = _cut(memoryview(_mapped(fd) if portable() else _copied(fd)), sizes)
    return pickle.loads(parts[0], buffers=parts[1:])


def _mapped(fd: int) -> mmap.mmap:
    """Map the file privately: unrelated processes share its pages until they write to them."""
    return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _copied(fd: int) -> mmap.mmap:
    """Copy the file into huge pages, which forked workers share: a worker that wakes up then has few TLB misses."""
    block = mmap.mmap(-1, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise_huge_pages(block)
    memory, filled = memoryview(block), 0
    while filled < len(memory):
        filled += os.preadv(fd, [memory[filled:]], filled)
    return block


def advise_huge_pages(memory: mmap.mmap) -> None:
    """Ask for huge pages, if the system has them: the first write to memory is several times faster with them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


def _cut(memory: memoryview, sizes: list[int]) -> list[memoryview]:
    parts, offset = [], 0
    for size in sizes:
        parts.append(memory[offset : offset + size])
        offset += _aligned(size)
    return parts


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _culprit(problem: Any) -> str:
    """Return the name of the attribute that cannot be pickled, of a part that the problem names, or of the problem."""
    kind, parts = type(problem), Capabilities.of(problem).parts_to_send
    name = None if parts is None else unpicklable_part(parts())
    name = name or unpicklable_part(attributes_of(problem) | {kind.__name__: kind})
    if name is None:
        return "the problem"
    return f"{name} of {kind.__name__}{',' * (', used by' in name)}"
