"""Vectors in memory that processes share: an anonymous file, so that nothing is left however a run ends."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any, final

import numpy as np

from nowait.core.memory import HOST, Memory, Slots
from nowait.core.types import Vector
from nowait.engines.processes.platform import anonymous_file

ALIGNMENT = 64
LARGE_SLOT_BYTES = 1 << 20
"""Slots of this size start at a page boundary, so that each can be locked in memory by itself."""


def advise_huge_pages(memory: mmap.mmap) -> None:
    """Ask for huge pages, if the system has them: the first write to memory is several times faster with them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


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
