"""Vectors in memory that processes share: a file without a name, so that nothing is left behind however a run ends."""

from __future__ import annotations

import mmap
import os
from typing import Any, final

import numpy as np

from nowait.core.types import Vector
from nowait.engines.processes.platform import anonymous_file

ALIGNMENT = 64


@final
class SharedSlots:
    """Numbered vectors of one size and dtype. The file grows; whoever meets a number past its map maps anew."""

    def __init__(self, length: int, dtype: Any, fd: int | None = None, *, writeable: bool = True) -> None:
        self.length, self.dtype = length, np.dtype(dtype)
        self._slot_bytes = -(-length * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._writeable = writeable
        self.fd = anonymous_file("nowait") if fd is None else fd
        self._memory: mmap.mmap | None = None
        self.views: list[Vector] = []
        """Those mapped so far; ``slots[number]`` maps more if it has to."""
        self._allocated = 0

    def __getitem__(self, slot: int) -> Vector:
        if slot >= len(self.views):
            self._map(slot + 1)
        return self.views[slot]

    def allocate(self) -> Vector:
        """One more vector."""
        self._allocated += 1
        return self[self._allocated - 1]

    def close(self) -> None:
        """Give the file and the memory up; vectors stay valid as long as somebody uses them."""
        self.views, self._memory = [], None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _map(self, count: int) -> None:
        """Map at least ``count`` vectors. Older views go on showing the same memory."""
        size = os.fstat(self.fd).st_size
        if size < count * self._slot_bytes:
            size = max(2 * count, 8) * self._slot_bytes
            os.ftruncate(self.fd, size)
        access = mmap.PROT_READ | (mmap.PROT_WRITE if self._writeable else 0)
        self._memory = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED, prot=access)
        for slot in range(len(self.views), size // self._slot_bytes):
            offset = slot * self._slot_bytes
            self.views.append(np.frombuffer(self._memory, self.dtype, count=self.length, offset=offset))
