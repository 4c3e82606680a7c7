"""Records the trace of a run as it happens, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.notes import Note
from nowait.recording.framefile import FrameFile
from nowait.recording.frames import Kind, rows_body
from nowait.recording.journal import Journal, JournalWriter, Position
from nowait.recording.phases import PhaseTotals
from nowait.recording.rows import (
    ARRIVAL_DTYPE,
    CHUNK_ROWS,
    EVENT_DTYPE,
    ROW,
    ROW_BYTES,
    STEP_DTYPE,
    STEP_OF_ROW,
    STEP_OFFSET,
    OtherEvent,
    Row,
    RowBuffer,
    row_of_event,
)
from nowait.recording.sent import Sent
from nowait.recording.tally import Tally, places_kept
from nowait.recording.trace import Trace
from nowait.recording.worker_stats import Placement, WorkerStats, stats_of_workers

FIRST_ROWS = 256
"""The initial size of the buffer in rows; it grows up to a chunk."""


@final
class TraceRecorder(RowBuffer):
    """The server's ``Log``. The latest rows are in a buffer; when it is full they are written to a ``FrameFile``.

    ``kept`` says which rows are written: "full", "sampled" (see ``Tally.sample``) or "none".
    """

    def __init__(self, initial_workers: Sequence[int], kept: str = "full", chunk_rows: int = CHUNK_ROWS) -> None:
        super().__init__(bytearray(min(chunk_rows, FIRST_ROWS) * ROW_BYTES))
        self.initial_workers = np.array(initial_workers, dtype=np.int64)
        self.kept = kept
        self.sent: Sent | None = None
        """How vectors are sent between machines, if they are; set it before the first event."""
        self._chunk_rows = chunk_rows
        self._buffer_first = 0
        """The number of the first row in the buffer."""
        self._written = 0
        """How many rows were written, or left out of a sampled trace."""
        self._later_steps: list[tuple[int, int, float, float]] = []
        self._events: list[tuple[int, int, int, float]] = []
        self._notes: list[Note] = []
        self.last_note: Note | None = None
        """What the method noted last, since the start or the resume of the run."""
        self._writer: JournalWriter | None = None
        self._tally = Tally()
        self._changes: list[tuple[int, int, int, float]] = []
        """Events that the tally has not counted."""
        self._placements: list[Placement] = []
        self._placements_written = 0
        self._loading_written: dict[int, tuple[float, float]] = {}
        self._checksums: dict[int, int] = {}
        """Checksums of params that are not written."""

    # The log of the server

    def stepped(self, weights: Mapping[int, float], step: int, stepsize: float) -> None:
        """Complete the rows of held gradients."""
        for row, weight in weights.items():
            if row >= self._buffer_first:
                place = (row - self._buffer_first) * ROW_BYTES + STEP_OFFSET
                STEP_OF_ROW.pack_into(self._buffer, place, step, weight, stepsize)
            if row < self._written:
                self._later_steps.append((row, step, weight, stepsize))
        if len(self._later_steps) >= self._chunk_rows:
            self._write()

    def happened(self, event: OtherEvent) -> None:
        """Append another event."""
        self._events.append(row_of_event(self._rows, event))
        if self._tally.phases is not None:
            self._changes.append(self._events[-1])
        if len(self._events) >= self._chunk_rows:
            self._write()

    def noted(self, note: Note) -> None:
        """Append a note."""
        self._notes.append(note)
        self.last_note = note
        if len(self._notes) >= self._chunk_rows:
            self._write()

    # Where workers are, and where their time goes

    def follow_workers(self) -> None:
        """Add up where the time of each worker goes, from now on. Call it before the first event."""
        self._tally.phases = PhaseTotals(self.initial_workers.tolist())

    def placed(self, worker: int, time: float, node: str, device: str) -> None:
        """Record that a process of a worker was started on a node."""
        self._placements.append(Placement(worker, time, node, device))

    def loaded(self, worker: int, inside: float, before: float) -> None:
        """Record seconds in which a worker loaded data: inside of computing a gradient, and before it began."""
        if self._tally.phases is not None:
            self._tally.phases.loaded(worker, inside, before)

    def by_worker(self, now: float, tally: Tally | None = None) -> tuple[WorkerStats, ...]:
        """Return what is known of each worker so far; empty if they are not followed. ``tally`` is that of now."""
        if self._tally.phases is None:
            return ()
        tally = self.tally() if tally is None else tally
        assert tally.phases is not None
        return stats_of_workers(tally.phases, tally.valid, self._placements, now)

    def params_are(self, step: int, checksum: int) -> None:
        """Record the checksum of the params after a step, with which a replay compares its own."""
        self._checksums[step] = checksum

    def flush(self) -> None:
        """Write everything so far, if there is a file that others may read."""
        if self._writer is not None:
            self._write()

    # The trace so far

    @property
    def num_arrivals(self) -> int:
        """The number of arrivals so far."""
        return self._rows

    def row(self, number: int) -> Row:
        """Return one of the rows in the buffer."""
        return Row._make(ROW.unpack_from(self._buffer, (number - self._buffer_first) * ROW_BYTES))

    def recent(self, column: str, count: int) -> NDArray[Any]:
        """Return a column of the latest rows: at most ``count``, and at most those in the buffer."""
        return self._buffered(max(self._buffer_first, self._rows - count))[column].copy()

    @property
    def last_decision(self) -> str:
        """What the method noted last, in a few words; empty if it has noted nothing."""
        return "" if self.last_note is None else self.last_note.short

    def tally(self) -> Tally:
        """Return the totals over all rows, including those that are not kept."""
        tally = self._tally.copy()
        tally.add(self._buffered(self._written), np.array(self._changes, dtype=EVENT_DTYPE))
        return tally

    def trace(self, seconds: float = 0.0, last_norm: float = 0.0) -> Trace:
        """Return the trace so far, as that of a run that ended after ``seconds`` at params with this norm."""
        if self._writer is None:
            rows = self._buffered(0)
            kept = rows.copy() if self.kept == "full" else rows[places_kept(rows, self.kept, self._tally)]
            events = np.array(self._events, dtype=EVENT_DTYPE)
            return Trace(
                kept,
                events,
                self.initial_workers,
                seconds,
                last_norm,
                self.kept,
                self._rows,
                tuple(self._placements),
                self._loading(),
                self.sent,
                dict(self._checksums),
                tuple(self._notes),
            )
        self._write()
        journal = Journal(self._writer.file.in_memory_if_small())
        return Trace(
            journal,
            journal.events(),
            self.initial_workers,
            seconds,
            last_norm,
            self.kept,
            self._rows,
            tuple(journal.placements),
            journal.loading,
            journal.sent,
            journal.checksums,
            journal.notes(),
        )

    def _loading(self) -> dict[int, tuple[float, float]]:
        return {} if self._tally.phases is None else self._tally.phases.loading

    # Storage

    def write_to(self, file: FrameFile, run: str = "") -> None:
        """Write to this file from now on. Call it before the first event only. ``run`` is the id of the run."""
        self._writer = JournalWriter.new(file, self.initial_workers.tolist(), self.kept, self.sent, run)

    def resume(self, file: FrameFile, position: Position, initial_workers: Sequence[int], tally: Tally) -> None:
        """Continue the file of a run that is resumed, which ends at ``position``."""
        self.initial_workers = np.array(initial_workers, dtype=np.int64)
        self._writer = JournalWriter(file, position.frames, position.checksum)
        self._rows = self._buffer_first = self._written = tally.arrivals
        follows = self._tally.phases is not None
        self._tally = tally.copy()
        if follows and self._tally.phases is None:
            if self._tally.arrivals:  # the checkpoint is of an older version: count from here
                self._tally.phases = PhaseTotals(complete=False)
            else:
                self._tally.phases = PhaseTotals(self.initial_workers.tolist())
        self._loading_written = self._loading()

    def checkpoint(self) -> tuple[Position, Tally]:
        """Write everything so far. Returns the arguments for ``resume``."""
        self._write()
        if self._writer is None:
            raise RuntimeError("the trace has no file: call write_to first")
        return self._writer.position, self._tally.copy()

    def finish(self, seconds: float, last_norm: float) -> None:
        """Write the remaining rows and the end of the run, if there is a file."""
        if self._writer is not None:
            self._write()
            self._writer.end(seconds, last_norm, self._rows)
            self._writer.file.sync()

    def _make_room(self) -> None:
        """Enlarge the buffer; if it has the size of a chunk, write its rows and reuse it."""
        size = len(self._buffer)
        largest = self._chunk_rows * ROW_BYTES
        if size < largest:
            self._buffer.extend(bytes(min(3 * size, largest - size)))
        else:
            self._write()
            self._buffer_first, self._end = self._rows, 0

    def _buffered(self, first: int) -> NDArray[np.void]:
        """Return the rows of the buffer from number ``first`` on, read-only."""
        count = self._rows - first
        offset = (first - self._buffer_first) * ROW_BYTES
        return np.frombuffer(bytes(self._buffer[offset : offset + count * ROW_BYTES]), ARRIVAL_DTYPE)

    def _write(self) -> None:
        """Append everything to the file that is not in it yet."""
        if self._writer is None:
            self.write_to(FrameFile())
        writer = self._writer
        assert writer is not None
        if self._rows > self._written:
            self._write_rows(writer)
        elif self._changes:
            self._count(self._buffered(self._written))
        if self._later_steps:
            steps = np.sort(np.array(self._later_steps, dtype=STEP_DTYPE), order="row", kind="stable")
            writer.write(Kind.STEPS, steps.tobytes(), first=int(steps["row"][0]), count=len(steps))
            self._later_steps.clear()
        placements, loading = self._placements[self._placements_written :], self._loading()
        if placements or loading != self._loading_written:
            writer.workers(placements, loading)
            self._placements_written, self._loading_written = len(self._placements), loading
        if self._events:
            events = np.array(self._events, dtype=EVENT_DTYPE)
            writer.write(Kind.EVENTS, events.tobytes(), count=len(events))
            self._events.clear()
        if self._notes:
            writer.notes(self._notes)
            self._notes.clear()
        if self._checksums:
            writer.checksums(self._checksums)
            self._checksums.clear()

    def _write_rows(self, writer: JournalWriter) -> None:
        rows = self._buffered(self._written)
        if self.kept == "full":
            writer.write(Kind.ROWS, rows_body(rows, len(rows)), first=self._written, count=len(rows))
        else:
            chosen = places_kept(rows, self.kept, self._tally)
            body = rows_body(rows[chosen], len(rows), self._written + chosen)
            writer.write(Kind.ROWS, body, first=self._written, count=len(chosen))
        self._count(rows)
        self._written = self._rows

    def _count(self, rows: NDArray[np.void]) -> None:
        self._tally.add(rows, np.array(self._changes, dtype=EVENT_DTYPE))
        self._changes.clear()
