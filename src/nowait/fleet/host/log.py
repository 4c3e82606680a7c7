"""Limits the size of ``workers.log``: its beginning and its end are kept."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import final

LARGEST_LOG_BYTES = 16 << 20
KEPT_BYTES = 4 << 20
"""How many bytes are kept of the beginning, and of the end, of a log that exceeded its limit."""
COPY_BYTES = 1 << 20
MOST_READS = 64
"""Per cut: enough to reach the end while workers append, unless they write faster than this process reads."""


def open_log(path: Path) -> int:
    """Open a log for appending and reading (needed to shorten it). Symbolic links are not followed."""
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if path.is_symlink():
            raise OSError(f"{path} is a symbolic link: nothing is written through it; remove it") from error
        raise


@final
class OutputLimit:
    """Shortens the files behind standard output and standard error when they have grown too large.

    Several processes append to them meanwhile. With O_APPEND each write goes to the current end, so truncating the file
    meanwhile is safe. What is written in the microseconds between the last read and the cut is lost.
    """

    def __init__(self, descriptors: tuple[int, ...] = (1, 2)) -> None:
        files = {(os.fstat(fd).st_dev, os.fstat(fd).st_ino): fd for fd in descriptors if _is_regular(fd)}
        self._files: list[int] = []
        for fd in files.values():
            with contextlib.suppress(OSError):  # no /proc, or no permission: then this file has no limit
                self._files.append(_readable(fd))

    def enforce(self) -> None:
        """Shorten what is too large. An error (no space) leaves the file as it is."""
        for fd in self._files:
            size = os.fstat(fd).st_size
            if size > LARGEST_LOG_BYTES:
                with contextlib.suppress(OSError):
                    _shorten(fd, size)


def _is_regular(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False  # closed


def _readable(fd: int) -> int:
    """The same file, open for reading and appending."""
    import fcntl

    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not flags & os.O_APPEND:
        raise OSError("writes that do not append would leave a hole after the cut")
    if flags & os.O_ACCMODE == os.O_RDWR:
        return fd
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)


def _shorten(fd: int, size: int) -> None:
    """Keep the first and the last ``KEPT_BYTES``, in whole lines, with a line between them that says what was cut."""
    head = os.pread(fd, KEPT_BYTES, 0)
    head = head[: head.rfind(b"\n") + 1] or head
    tail, position = b"", size - KEPT_BYTES
    for _ in range(MOST_READS):  # until there is nothing new; then cut at once
        more = os.pread(fd, COPY_BYTES, position)
        if not more:
            break
        tail = (tail + more)[-KEPT_BYTES:]
        position += len(more)
    os.ftruncate(fd, len(head))
    tail = tail[tail.find(b"\n") + 1 :]
    note = f"\n[nowait: {position - len(tail) - len(head)} bytes were left out here: workers printed a lot]\n"
    _append(fd, note.encode() + tail)


def _append(fd: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(fd, data[written:])
