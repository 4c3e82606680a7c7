"""Append-only storage for a trace: a file, or memory that moves to a temporary file when it grows."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from pathlib import Path
from typing import final

from nowait.recording.patience import patiently

MOST_MEMORY = 1 << 25
"""Bytes kept in memory before they are moved to an unlinked temporary file."""


@final
class FrameFile:
    """Append-only bytes in a file; without a descriptor in memory, and in a temporary file once they are many."""

    def __init__(self, descriptor: int | None = None, length: int = 0) -> None:
        self._memory = bytearray()
        self._descriptor = -1
        self.length = length
        if descriptor is not None:
            self._own(descriptor)

    @classmethod
    def of_bytes(cls, data: bytes) -> FrameFile:
        """Return storage with this content."""
        file = cls()
        file.append(data)
        return file

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> FrameFile:
        """Open a file without following a symbolic link. ``create`` creates it, and fails if it exists."""
        flags = (os.O_RDWR | os.O_CREAT | os.O_EXCL) if create else os.O_RDWR
        descriptor = os.open(path, flags | no_follow(), 0o644)
        return cls(descriptor, os.fstat(descriptor).st_size)

    @classmethod
    def read_only(cls, path: Path) -> FrameFile:
        """Open a file for reading. A small one is read into memory, so that no descriptor stays open."""
        descriptor = os.open(path, os.O_RDONLY | no_follow())
        file = cls(descriptor, os.fstat(descriptor).st_size)
        return file.in_memory_if_small()

    @property
    def is_in_memory(self) -> bool:
        """Whether the content is in memory."""
        return self._descriptor < 0

    def append(self, data: bytes) -> None:
        """Append bytes."""
        if self._descriptor < 0:
            self._memory += data
            if len(self._memory) > MOST_MEMORY:
                self._move_to_disk()
        else:
            _write(self._descriptor, data, self.length)
        self.length += len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``offset``, or fewer at the end."""
        if self._descriptor < 0:
            return bytes(self._memory[offset : offset + size])
        pieces = []
        while size > 0 and (piece := _read_at(self._descriptor, size, offset)):
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return b"".join(pieces)

    def truncate(self, length: int) -> None:
        """Drop everything from ``length`` on."""
        if self._descriptor < 0:
            del self._memory[length:]
        else:
            os.ftruncate(self._descriptor, length)
        self.length = length

    def sync(self) -> None:
        """Wait until what was appended is on the disk."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)

    def is_at(self, path: Path) -> bool:
        """Return True if this is the file with this name, False if that was deleted or is another file."""
        try:
            there, here = os.lstat(path), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def move_to(self, path: Path) -> None:
        """Write everything to a new file with this name, which replaces another one, and go on there."""
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.unlink(missing_ok=True)  # it may be a link
        new = FrameFile.open(unfinished, create=True)
        for offset in range(0, self.length, MOST_MEMORY):
            new.append(self.read(offset, min(MOST_MEMORY, self.length - offset)))
        new.sync()
        os.replace(unfinished, path)
        self._own(os.dup(new._descriptor))

    def in_memory_if_small(self) -> FrameFile:
        """Returns a copy in memory if the file is small, else the file itself."""
        return FrameFile.of_bytes(self.read(0, self.length)) if self.length <= MOST_MEMORY // 4 else self

    def _move_to_disk(self) -> None:
        with patiently(tempfile.TemporaryFile, prefix="nowait-trace-") as file:
            self._own(os.dup(file.fileno()))
        _write(self._descriptor, self._memory, 0)
        self._memory = bytearray()

    def _own(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, _close, descriptor)


def no_follow() -> int:
    """Return the flags for opening a file of a run: symbolic links are not followed."""
    return getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def _write(descriptor: int, data: bytes | bytearray, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = patiently(_write_at, descriptor, view, offset)
        view, offset = view[written:], offset + written


def _read_at(descriptor: int, size: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def _write_at(descriptor: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
