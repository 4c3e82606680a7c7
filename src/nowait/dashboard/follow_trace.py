"""Reads what is new in the ``trace.rows`` of a run, and the rows of an interval of time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from nowait.dashboard.cells import began
from nowait.dashboard.follow_metrics import open_to_read
from nowait.dashboard.frame_index import Entry, FrameIndex
from nowait.dashboard.summary import NO_ROWS, TraceSummary
from nowait.recording.framefile import FrameFile
from nowait.recording.frames import (
    FILE_HEADER,
    HEADER_BYTES,
    Frame,
    Kind,
    covered_by,
    decode_rows,
    read_header,
    read_notes,
    table_of,
)
from nowait.recording.worker_stats import read_workers

MOST_BYTES = 1 << 24
"""Bytes that are read at a time, so that a request is answered soon; the rest is read at the next one."""
LARGEST_FRAME = 1 << 26
MOST_ROWS = 500_000
"""Rows that are read for one interval of time."""


class _BadFrameError(ValueError):
    """There is no whole frame at a place of the file."""


@final
class TraceFollower:
    """Adds the frames that were appended since the last call to a summary."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        """Where the next frame begins."""
        self._frames = 0
        self._checked = (0, b"")
        """The latest header and its place. It differs if the file was truncated and written again."""
        self._stuck_at = -1
        self._index = FrameIndex()
        self.summary: TraceSummary | None = None
        """None until the first frame was read."""
        self.length = 0
        self.problem = ""
        """Why the file cannot be read further; empty if it can."""

    @property
    def has_more(self) -> bool:
        """True if the last call did not read up to the end of the file."""
        return self._offset < self.length and self._stuck_at != self._offset

    @property
    def share_read(self) -> float:
        """Which share of the file has been read."""
        return self._offset / self.length if self.length else 1.0

    def read(self) -> bool:
        """Add what is new; False if the file was truncated or replaced: then begin again with a new follower."""
        file = open_to_read(self._path)
        if file is None:
            return self._offset == 0
        self.length = file.length
        place, header = self._checked
        if file.read(place, len(header)) != header:
            return False
        if self._offset == 0 and not self._read_file_header(file):
            return True
        until = min(self._offset + MOST_BYTES, self.length)
        while self._offset < until and self._read_frame(file):
            pass
        return True

    def rows_between(self, start: float, end: float) -> NDArray[np.void] | None:
        """Return rows that include all jobs between two times; None if they are too many, or the file has changed."""
        entries = self._index.between(start, end)
        file = open_to_read(self._path)
        if file is None or sum(entry.rows for entry in entries) > MOST_ROWS:
            return None
        try:
            blocks = [rows for entry in entries for rows in _rows_of(file, entry)]
        except ValueError:
            return None
        return np.concatenate(blocks) if blocks else NO_ROWS

    def _read_file_header(self, file: FrameFile) -> bool:
        header = file.read(0, len(FILE_HEADER))
        if header == FILE_HEADER:
            self._checked, self._offset, self.problem = (0, header), len(header), ""
            return True
        if len(header) == len(FILE_HEADER):
            self.problem = f"{self._path.name} is not a trace that this version can read"
        return False

    def _read_frame(self, file: FrameFile) -> bool:
        """Add the next frame; False if there is no whole one."""
        try:
            frame = frame_at(file, self._offset, self._frames)
            if frame is None:
                return self._stop("")
            self._add(frame, body_of(file, frame))
        except ValueError as error:
            return self._stop(str(error))
        self._checked = self._offset, file.read(self._offset, HEADER_BYTES)
        self._offset, self._frames = frame.end, self._frames + 1
        self._stuck_at, self.problem = -1, ""
        return True

    def _stop(self, why: str) -> bool:
        """Remember where reading stopped. A frame that is being written may look damaged, so once is not enough."""
        is_again, self._stuck_at = self._stuck_at == self._offset, self._offset
        if why and is_again:
            self.problem = f"{self._path.name} is damaged at byte {self._offset:,} ({why}): the rest is not shown"
        return False

    def _add(self, frame: Frame, body: bytes) -> None:
        summary = self.summary
        if frame.kind == Kind.START:
            start = json.loads(body)
            self.summary = TraceSummary([int(worker) for worker in start["initial_workers"]], str(start["kept"]))
        elif summary is None:
            raise _BadFrameError("the first frame must say how the run began")
        elif frame.kind == Kind.ROWS:
            self._add_rows(summary, frame, body)
        elif frame.kind == Kind.STEPS:
            summary.add_steps(table_of(body, frame.kind, frame.entries))
        elif frame.kind == Kind.EVENTS:
            summary.add_events(table_of(body, frame.kind, frame.entries))
        elif frame.kind == Kind.NOTES:
            summary.decisions.add(read_notes(body))
        elif frame.kind == Kind.WORKERS:
            summary.add_workers(*read_workers(body))
        elif frame.kind == Kind.END:
            summary.end(float(json.loads(body)["seconds"]))

    def _add_rows(self, summary: TraceSummary, frame: Frame, body: bytes) -> None:
        rows, _ = decode_rows(body, frame.entries)
        summary.add_rows(rows, covered_by(body))
        if len(rows):
            started, arrived = float(began(rows).min()), float(rows["time"].max())
            self._index.add(Entry(self._offset, frame.end, self._frames, len(rows), started, arrived))


def frame_at(file: FrameFile, offset: int, number: int) -> Frame | None:
    """Return the frame at a place of a file; None if the file ends before it does: it may be being written."""
    header = file.read(offset, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    frame = read_header(header, offset)
    if frame is None or frame.number != number or frame.size > LARGEST_FRAME:
        raise _BadFrameError("there is no frame")
    return None if frame.end > file.length else frame


def body_of(file: FrameFile, frame: Frame) -> bytes:
    """Return the body of a frame; raise ValueError if it differs from its checksum."""
    body = file.read(frame.offset, frame.size)
    if len(body) != frame.size or zlib.crc32(body) != frame.checksum:
        raise _BadFrameError("a checksum differs")
    return body


def _rows_of(file: FrameFile, entry: Entry) -> Iterator[NDArray[np.void]]:
    """Yield the rows of consecutive frames."""
    offset, number = entry.offset, entry.frame
    while offset < entry.end:
        frame = frame_at(file, offset, number)
        if frame is None:
            raise _BadFrameError("the file has become shorter")
        if frame.kind == Kind.ROWS:
            yield decode_rows(body_of(file, frame), frame.entries)[0]
        offset, number = frame.end, number + 1
