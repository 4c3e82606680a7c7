"""Reads what is new in the ``metrics.jsonl`` of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

from nowait.dashboard.curve import Point
from nowait.recording.framefile import FrameFile, no_follow
from nowait.recording.metrics import read_line

MOST_BYTES = 1 << 22
"""Bytes that are read at a time."""
COMPARED_BYTES = 256
"""Bytes before the place reached that are compared to notice that the file was replaced."""


def open_to_read(path: Path) -> FrameFile | None:
    """Return an open file; None if it cannot be opened, for example because it does not exist yet."""
    try:
        descriptor = os.open(path, os.O_RDONLY | no_follow())
    except OSError:
        return None
    return FrameFile(descriptor, os.fstat(descriptor).st_size)


@final
class MetricsFollower:
    """Returns the evaluations that were appended since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._before = b""
        self.damaged_lines = 0
        self.has_more = False
        """True if the last call did not read up to the end of the file."""

    def read(self) -> list[Point] | None:
        """Return new evaluations; None if the file was replaced or truncated: then begin again with a new follower."""
        file = open_to_read(self._path)
        if file is None:
            return [] if self._offset == 0 else None
        if file.read(self._offset - len(self._before), len(self._before)) != self._before:
            return None
        data = file.read(self._offset, MOST_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._before = (self._before + whole)[-COMPARED_BYTES:]
        self.has_more = bool(whole) and self._offset < file.length
        return self._points(whole)

    def _points(self, lines: bytes) -> list[Point]:
        read = [read_line(line) for line in lines.split(b"\n")[:-1]]
        self.damaged_lines += read.count(None)
        return [Point(*line.entry) for line in read if line is not None]
