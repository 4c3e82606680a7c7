"""Writes and reads a stored trace, a frame at a time, so that memory does not grow with the run."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.notes import Note
from nowait.core.types import Integers
from nowait.recording.errors import DamagedFileError
from nowait.recording.framefile import FrameFile
from nowait.recording.frames import (
    FILE_HEADER,
    HEADER_BYTES,
    Frame,
    Kind,
    continued,
    covered_by,
    decode_rows,
    frame_bytes,
    json_body,
    notes_body,
    read_header,
    read_notes,
    table_of,
)
from nowait.recording.rows import ARRIVAL_DTYPE, EVENT_DTYPE, STEP_COLUMNS, STEP_DTYPE
from nowait.recording.sent import Sent
from nowait.recording.worker_stats import Loading, Placement, read_workers, workers_body

KEPT = ("full", "sampled", "none")
"""How much of a trace is kept: all arrivals, some of each worker, or none."""


class Position(NamedTuple):
    """The end of a frame. A checkpoint refers to the trace up to it."""

    length: int
    frames: int
    checksum: int
    """A checksum of everything before: another trace, or an earlier history of the same run, has another one."""


class WholeFrames(NamedTuple):
    """The undamaged frames at the start of a trace."""

    positions: list[Position]
    trouble: str
    """The error after them; empty if there is none."""
    run: str
    """The id of the run; empty if not even the first frame is undamaged."""


@final
class JournalWriter:
    """Appends frames to a file."""

    def __init__(self, file: FrameFile, frames: int = 0, checksum: int = 0) -> None:
        self.file = file
        self._frames, self._checksum = frames, checksum

    @classmethod
    def new(
        cls, file: FrameFile, initial_workers: Sequence[int], kept: str, sent: Sent | None = None, run: str = ""
    ) -> JournalWriter:
        """Write the header and the first frame of an empty file. ``run`` is the id of the run, if it has a folder."""
        file.append(FILE_HEADER)
        writer = cls(file)
        start = {"run": run, "initial_workers": list(initial_workers), "kept": kept}
        writer.write(Kind.START, json_body(start if sent is None else start | {"sent": asdict(sent)}))
        return writer

    @property
    def position(self) -> Position:
        """The end of the last frame."""
        return Position(self.file.length, self._frames, self._checksum)

    def write(self, kind: Kind, body: bytes, first: int = 0, count: int = 0) -> None:
        """Append a frame."""
        frame = frame_bytes(kind, self._frames, body, first, count)
        self.file.append(frame)
        self._frames, self._checksum = self._frames + 1, continued(self._checksum, frame[:HEADER_BYTES])

    def workers(self, placements: Sequence[Placement], loading: Loading) -> None:
        """Append where processes were started since the last call, and all seconds of loading data so far."""
        self.write(Kind.WORKERS, workers_body(placements, loading), count=len(placements))

    def checksums(self, checksums: Mapping[int, int]) -> None:
        """Append the checksums of params after some steps."""
        self.write(Kind.CHECKSUMS, json_body({"params": list(checksums.items())}), count=len(checksums))

    def notes(self, notes: Sequence[Note]) -> None:
        """Append what the method noted."""
        self.write(Kind.NOTES, notes_body(notes), count=len(notes))

    def end(self, seconds: float, last_norm: float, arrivals: int) -> None:
        """Append the last frame, which says how the run ended."""
        self.write(Kind.END, json_body({"seconds": seconds, "last_norm": last_norm, "arrivals": arrivals}))


@final
class Journal:
    """Reads a stored trace. The constructor reads the headers of all frames; bodies are read when they are needed.

    Every body is compared with its checksum whenever it is read; ``DamagedFileError`` is raised if it differs.
    """

    def __init__(self, file: FrameFile, name: Any = "the trace", length: int | None = None) -> None:
        self._file, self._name = file, name
        self._length = file.length if length is None else length
        if file.read(0, len(FILE_HEADER)) != FILE_HEADER:
            raise DamagedFileError(name, f"it has no header of a trace of format {FILE_HEADER[13:14].decode()}")
        self._rows: list[tuple[Frame, int]] = []
        """The frames of rows, each with the number of arrivals that it represents."""
        self._steps: list[Frame] = []
        self._step_ranges: list[tuple[int, int]] = []
        self._later: dict[Kind, list[Frame]] = {Kind.EVENTS: [], Kind.NOTES: []}
        """Frames whose bodies are read when they are needed."""
        self.placements: list[Placement] = []
        """Where processes of workers were started."""
        self.loading: Loading = {}
        """Seconds that each worker loaded data, inside of computing and before it."""
        self.checksums: dict[int, int] = {}
        """The checksums of params after some steps."""
        self.positions: list[Position] = []
        """Where each frame ends."""
        self.end: dict[str, float] | None = None
        """How the run ended; None if the file has no last frame."""
        self.num_arrivals = self.num_rows = 0
        """The number of all arrivals, and of those that are kept."""
        for frame in self._frames():
            self._index(frame)
        if not self.positions:
            raise DamagedFileError(name, "it has no frames")

    def _frames(self) -> Iterator[Frame]:
        offset, checksum = len(FILE_HEADER), 0
        while offset < self._length:
            header = self._file.read(offset, min(HEADER_BYTES, self._length - offset))
            frame = read_header(header, offset)
            if frame is None or frame.number != len(self.positions) or frame.end > self._length:
                raise DamagedFileError(self._name, f"there is no whole frame at byte {offset:,}", whole=offset)
            yield frame
            offset, checksum = frame.end, continued(checksum, header)
            self.positions.append(Position(offset, len(self.positions) + 1, checksum))

    def _index(self, frame: Frame) -> None:
        if (frame.kind == Kind.START) != (frame.number == 0):
            raise self._damaged(frame, "the first frame, and no other, must say how the run began")
        if frame.kind == Kind.START:
            start = self._json(frame)
            self.run = str(start.get("run", ""))
            self.initial_workers = np.array(start["initial_workers"], dtype=np.int64)
            self.kept: str = start["kept"]
            self.sent = self._sent(frame, start.get("sent"))
        elif frame.kind == Kind.ROWS:
            self._index_rows(frame)
        elif frame.kind == Kind.STEPS:
            last = frame.first
            if frame.entries:
                size = STEP_DTYPE.itemsize
                last = int(np.frombuffer(self._file.read(max(0, frame.end - size), size), STEP_DTYPE)["row"][0])
            self._steps.append(frame)
            self._step_ranges.append((frame.first, last))
        elif frame.kind in self._later:
            self._later[Kind(frame.kind)].append(frame)
        elif frame.kind == Kind.WORKERS:
            self._index_workers(frame)
        elif frame.kind == Kind.CHECKSUMS:
            self.checksums |= {int(step): int(checksum) for step, checksum in self._json(frame)["params"]}
        else:
            self.end = self._json(frame)

    def _sent(self, frame: Frame, values: Any) -> Sent | None:
        try:
            return None if values is None else Sent.read(values)
        except ValueError as error:
            raise self._damaged(frame, str(error)) from None

    def _index_rows(self, frame: Frame) -> None:
        covered = covered_by(self._file.read(frame.offset, min(frame.size, 4)))
        if frame.first != self.num_arrivals:
            raise self._damaged(frame, f"rows from {frame.first} on where {self.num_arrivals} were expected")
        self._rows.append((frame, covered))
        self.num_arrivals += covered
        self.num_rows += frame.entries

    def _index_workers(self, frame: Frame) -> None:
        body = self._body(frame)
        try:
            placements, self.loading = read_workers(body)
        except ValueError as error:
            raise self._damaged(frame, str(error)) from None
        self.placements += placements

    def verify(self) -> None:
        """Read every frame, and raise ``DamagedFileError`` at the first damaged one."""
        for _ in self.blocks():
            pass
        for frame in self._steps:
            self._table(frame)
        for _ in self._event_tables():
            pass
        self.notes()

    def blocks(self) -> Iterator[NDArray[np.void]]:
        """Yield the rows of the trace, a frame at a time; held gradients have their first steps."""
        ranges = np.array(self._step_ranges, dtype=np.int64).reshape(-1, 2)
        for frame, covered in self._rows:
            body = self._body(frame)
            try:
                rows, numbers = decode_rows(body, frame.entries)
            except ValueError as error:
                raise self._damaged(frame, str(error)) from None
            later = np.flatnonzero((ranges[:, 0] < frame.first + covered) & (ranges[:, 1] >= frame.first))
            for place in later.tolist():
                _complete(rows, numbers, frame.first, self._table(self._steps[place]))
            yield rows

    def arrivals(self) -> NDArray[np.void]:
        """Return all rows as one array."""
        blocks = list(self.blocks())
        return np.concatenate(blocks) if blocks else np.empty(0, ARRIVAL_DTYPE)

    def column(self, name: str) -> NDArray[Any]:
        """Return one column as an array."""
        pieces = [block[name].copy() for block in self.blocks()]
        return np.concatenate(pieces) if pieces else np.empty(0, ARRIVAL_DTYPE[name])

    def events(self) -> NDArray[np.void]:
        """Return all other events as one array."""
        tables = list(self._event_tables())
        return np.concatenate(tables) if tables else np.empty(0, EVENT_DTYPE)

    def notes(self) -> tuple[Note, ...]:
        """Return what the method noted."""
        return tuple(note for frame in self._later[Kind.NOTES] for note in self._notes_in(frame))

    def _notes_in(self, frame: Frame) -> list[Note]:
        body = self._body(frame)
        try:
            return read_notes(body)
        except ValueError as error:
            raise self._damaged(frame, str(error)) from None

    def _event_tables(self) -> Iterator[NDArray[np.void]]:
        return (self._table(frame) for frame in self._later[Kind.EVENTS])

    def _table(self, frame: Frame) -> NDArray[np.void]:
        try:
            return table_of(self._body(frame), frame.kind, frame.entries)
        except DamagedFileError:
            raise
        except ValueError as error:
            raise self._damaged(frame, str(error)) from None

    def _json(self, frame: Frame) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self._body(frame))
        return values

    def _body(self, frame: Frame) -> bytes:
        body = self._file.read(frame.offset, frame.size)
        if len(body) != frame.size or zlib.crc32(body) != frame.checksum:
            raise self._damaged(frame, "its checksum differs")
        return body

    def _damaged(self, frame: Frame, why: str) -> DamagedFileError:
        return DamagedFileError(self._name, f"frame {frame.number}: {why}", whole=frame.offset - HEADER_BYTES)


def _complete(rows: NDArray[np.void], numbers: Integers | None, first: int, steps: NDArray[np.void]) -> None:
    """Set the first steps of held gradients, which were written after the rows."""
    if numbers is None:
        inside = steps[(steps["row"] >= first) & (steps["row"] < first + len(rows))]
        places = inside["row"] - first
    else:
        found = np.searchsorted(numbers, steps["row"])
        known = (
            numbers[np.minimum(found, len(numbers) - 1)] == steps["row"] if len(numbers) else np.zeros(len(steps), bool)
        )
        inside, places = steps[known], found[known]
    for column in STEP_COLUMNS:
        rows[column][places] = inside[column]


def whole_frames(file: FrameFile, name: Any) -> WholeFrames:
    """Return the undamaged frames at the start of a file."""
    length, trouble = file.length, ""
    while True:
        try:
            journal = Journal(file, name, length)
            journal.verify()
        except DamagedFileError as error:
            trouble = trouble or str(error)
            if error.whole <= len(FILE_HEADER) or error.whole >= length:
                return WholeFrames([], trouble, "")
            length = error.whole
        else:
            return WholeFrames(journal.positions, trouble, journal.run)
