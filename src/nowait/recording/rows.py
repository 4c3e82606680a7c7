"""The columns of a trace: the record of one arrival, and of one other event, in memory and on disk."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, final, get_type_hints

import numpy as np
from numpy.typing import NDArray

from nowait.core import Arrival, Outcome, Resumed, TimerFired, WorkerJoined, WorkerLost
from nowait.core.log import APPLIED
from nowait.core.notes import Note

OUTCOMES = tuple(Outcome)
OUTCOME_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
CODE_OF_APPLIED = OUTCOME_CODES[APPLIED]
IS_VALID = np.array([outcome in (Outcome.APPLIED, Outcome.HELD, Outcome.DROPPED) for outcome in OUTCOMES])
"""Whether the gradient was valid, by the code of the outcome."""
EVENT_KINDS: tuple[Any, ...] = (WorkerJoined, WorkerLost, TimerFired, Resumed)
WITHOUT_WORKER = (TimerFired, Resumed)
OtherEvent = WorkerJoined | WorkerLost | TimerFired | Resumed


class Row(NamedTuple):
    """One arrival in a trace. This is the only list of the columns: dtypes, structs and offsets are derived from it."""

    ticket: int
    worker: int
    job: int
    version: int
    delay: int
    time: float
    started: float
    compute_seconds: float
    live_workers: int
    gradient_norm: float
    outcome: int
    """The index of the outcome in ``OUTCOMES``."""
    step: int
    """The first step made with the gradient, 0 if there is none."""
    weight: float
    stepsize: float


COLUMNS: tuple[str, ...] = Row._fields
_TYPES = get_type_hints(Row)
ARRIVAL_DTYPE = np.dtype([(name, "<i8" if _TYPES[name] is int else "<f8") for name in COLUMNS])


def _struct_of(columns: Iterable[str]) -> struct.Struct:
    """Return the struct that packs these columns as the dtype stores them."""
    return struct.Struct("<" + "".join("q" if _TYPES[name] is int else "d" for name in columns))


ROW = _struct_of(COLUMNS)
ROW_BYTES = ROW.size
STEP_COLUMNS = ("step", "weight", "stepsize")
"""Adjacent columns that a held gradient gets at its first step, which may be after its row was written."""
STEP_DTYPE = np.dtype([("row", "<i8"), *((name, ARRIVAL_DTYPE[name]) for name in STEP_COLUMNS)])
"""The first step of a held gradient, stored separately from its row."""
STEP_OF_ROW = _struct_of(STEP_COLUMNS)
STEP_OFFSET = _struct_of(COLUMNS[: COLUMNS.index(STEP_COLUMNS[0])]).size
"""Where in a row the first of these columns begins, in bytes."""
EVENT_DTYPE = np.dtype([("after", "<i8"), ("kind", "<i8"), ("worker", "<i8"), ("time", "<f8")])
CHUNK_ROWS = 16_384
"""The most rows that are kept in memory, and written, at a time."""


def event_of(kind: int, worker: int, time: float) -> OtherEvent:
    """Return the event that a row of ``trace.events`` records."""
    if kind not in range(len(EVENT_KINDS)):
        raise ValueError(f"the trace has an event of unknown kind {kind}: was it written by a newer version?")
    made: OtherEvent = (
        EVENT_KINDS[kind](time) if EVENT_KINDS[kind] in WITHOUT_WORKER else EVENT_KINDS[kind](worker, time)
    )
    return made


def row_of_event(after: int, event: OtherEvent) -> tuple[int, int, int, float]:
    """Return the row of ``trace.events`` for an event that came after ``after`` arrivals."""
    worker = -1 if isinstance(event, WITHOUT_WORKER) else event.worker
    return after, EVENT_KINDS.index(type(event)), worker, event.time


class RowBuffer(ABC):
    """Packs the rows of arrivals into a buffer, in the order of the columns. Subclasses provide the memory."""

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._end = 0
        """Where the next row begins in the buffer."""
        self._rows = 0
        """How many arrivals there were."""

    def arrived(self, arrival: Arrival, live_workers: int) -> None:
        """Append a row."""
        if self._end == len(self._buffer):
            self._make_room()
        ticket_id, worker, version, job, issued = arrival.ticket
        _, _, time, started, compute_seconds = arrival.event
        if started is None:
            started = issued
        ROW.pack_into(
            self._buffer,
            self._end,
            ticket_id,
            worker,
            job,
            version,
            arrival.delay,
            time,
            started,
            time - started if compute_seconds is None else compute_seconds,
            live_workers,
            arrival.logged_norm,
            CODE_OF_APPLIED if arrival.outcome is APPLIED else OUTCOME_CODES[arrival.outcome],
            arrival.step,
            arrival.weight,
            arrival.stepsize,
        )
        self._end += ROW_BYTES
        self._rows += 1

    @abstractmethod
    def _make_room(self) -> None:
        """Enlarge, write or replace the full buffer, and set ``_end``."""


@final
class RowTable(RowBuffer):
    """A ``Log`` that collects rows and events in memory, for plans."""

    def __init__(self) -> None:
        super().__init__(bytearray())
        self._chunks: list[bytearray] = []
        self._events: list[tuple[int, int, int, float]] = []
        self.notes: list[Note] = []
        """What the method noted."""
        self._stepped_rows: list[int] = []
        self._stepped_weights: list[float] = []
        self._steps: list[tuple[int, int, float]] = []
        """For each step along a sum: the number of gradients whose first step it is, its index and its stepsize."""

    def _make_room(self) -> None:
        self._buffer, self._end = bytearray(CHUNK_ROWS * ROW_BYTES), 0
        self._chunks.append(self._buffer)

    def stepped(self, weights: Mapping[int, float], step: int, stepsize: float) -> None:
        """Remember the first step of held gradients; ``arrivals`` completes their rows."""
        self._stepped_rows += weights.keys()
        self._stepped_weights += weights.values()
        self._steps.append((len(weights), step, stepsize))

    def happened(self, event: OtherEvent) -> None:
        """Append another event."""
        self._events.append(row_of_event(self._rows, event))

    def noted(self, note: Note) -> None:
        """Append a note."""
        self.notes.append(note)

    def arrivals(self) -> NDArray[np.void]:
        """All rows, as a new array."""
        if not self._chunks:
            return np.empty(0, ARRIVAL_DTYPE)
        rows = np.concatenate([np.frombuffer(chunk, ARRIVAL_DTYPE) for chunk in self._chunks])[: self._rows]
        if self._steps:
            places, table = np.array(self._stepped_rows), np.array(self._steps)
            counts = table[:, 0].astype(np.int64)
            rows["step"][places] = np.repeat(table[:, 1].astype(np.int64), counts)
            rows["weight"][places] = self._stepped_weights
            rows["stepsize"][places] = np.repeat(table[:, 2], counts)
        return rows

    def events(self) -> NDArray[np.void]:
        """All other events, as a new array."""
        return np.array(self._events, dtype=EVENT_DTYPE)
