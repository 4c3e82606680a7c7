"""The pickled job of a run, in a file descriptor that is passed to zygotes."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Iterable, Sequence
from typing import Any, Self, final

from nowait.core.capabilities import Capabilities
from nowait.core.pickling import dumps
from nowait.core.unpicklable import attributes_of, unpicklable_part
from nowait.engines.processes.platform import anonymous_file, portable
from nowait.engines.processes.shared import ALIGNMENT, advise_huge_pages

PIECE = 1 << 26
"""Bytes per write."""


@final
class Payload:
    """A pickle and, after it, the arrays and tensors it refers to, in an anonymous file."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self.sizes = [part.nbytes for part in parts]
        self.fd = anonymous_file("nowait-job")
        try:
            self._write(parts)
        except BaseException:
            self.close()
            raise

    def _write(self, parts: Sequence[memoryview]) -> None:
        offset = 0
        for part in parts:
            self.write(part, offset)
            offset += _aligned(part.nbytes)
        os.ftruncate(self.fd, max(offset, 1))

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
    """Copy the file into huge pages, which forked workers share."""
    block = _huge_block(os.fstat(fd).st_size)
    memory = memoryview(block)
    filled = 0
    while filled < len(memory):
        filled += os.preadv(fd, [memory[filled:]], filled)
    return block


def _cut(memory: memoryview, sizes: list[int]) -> list[memoryview]:
    parts, offset = [], 0
    for size in sizes:
        parts.append(memory[offset : offset + size])
        offset += _aligned(size)
    return parts


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _huge_block(size: int) -> mmap.mmap:
    """Return memory in huge pages if the system has them: a worker that wakes up then has few TLB misses."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise_huge_pages(memory)
    return memory


def _culprit(problem: Any) -> str:
    """Return the name of the attribute that cannot be pickled, of a part that the problem names, or of the problem."""
    kind, parts = type(problem), Capabilities.of(problem).parts_to_send
    name = None if parts is None else unpicklable_part(parts())
    name = name or unpicklable_part(attributes_of(problem) | {kind.__name__: kind})
    if name is None:
        return "the problem"
    return f"{name} of {kind.__name__}{',' * (', used by' in name)}"
