"""The columns of a trace: the record of one arrival, and of one other event, in memory and on disk."""

from __future__ import annotations

import struct
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import Outcome, Resumed, TimerFired, WorkerJoined, WorkerLost
from nowait.core.log import APPLIED

OUTCOMES = tuple(Outcome)
OUTCOME_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
CODE_OF_APPLIED = OUTCOME_CODES[APPLIED]
IS_VALID = np.array([outcome in (Outcome.APPLIED, Outcome.HELD, Outcome.DROPPED) for outcome in OUTCOMES])
"""By the code of an outcome: whether the gradient was valid."""
EVENT_KINDS: tuple[Any, ...] = (WorkerJoined, WorkerLost, TimerFired, Resumed)
WITHOUT_WORKER = (TimerFired, Resumed)
OtherEvent = WorkerJoined | WorkerLost | TimerFired | Resumed

ARRIVAL_DTYPE = np.dtype(
    [
        ("ticket", "<i8"),
        ("worker", "<i8"),
        ("job", "<i8"),
        ("version", "<i8"),
        ("delay", "<i8"),
        ("time", "<f8"),
        ("started", "<f8"),
        ("compute_seconds", "<f8"),
        ("live_workers", "<i8"),
        ("gradient_norm", "<f8"),
        ("outcome", "<i8"),
        ("step", "<i8"),
        ("weight", "<f8"),
        ("stepsize", "<f8"),
    ]
)
COLUMNS: tuple[str, ...] = ARRIVAL_DTYPE.names or ()
ROW = struct.Struct("<qqqqqdddqdqqdd")
ROW_BYTES = ROW.size
STEP_DTYPE = np.dtype([("row", "<i8"), ("step", "<i8"), ("weight", "<f8"), ("stepsize", "<f8")])
"""The first step of a held gradient, which is known only after its row was written."""
STEP_OF_ROW = struct.Struct("<qdd")
STEP_OFFSET = ROW_BYTES - STEP_OF_ROW.size
"""The last three columns."""
EVENT_DTYPE = np.dtype([("after", "<i8"), ("kind", "<i8"), ("worker", "<i8"), ("time", "<f8")])
CHUNK_ROWS = 16_384
"""The most rows that are kept in memory, and written, at a time."""


def event_of(kind: int, worker: int, time: float) -> OtherEvent:
    """The event of a row of ``trace.events``."""
    if kind not in range(len(EVENT_KINDS)):
        raise ValueError(f"the trace has an event of unknown kind {kind}: was it written by a newer version?")
    made: OtherEvent = (
        EVENT_KINDS[kind](time) if EVENT_KINDS[kind] in WITHOUT_WORKER else EVENT_KINDS[kind](worker, time)
    )
    return made


def row_of_event(after: int, event: OtherEvent) -> tuple[int, int, int, float]:
    """The row of ``trace.events`` of an event that came after so many arrivals."""
    worker = -1 if isinstance(event, WITHOUT_WORKER) else event.worker
    return after, EVENT_KINDS.index(type(event)), worker, event.time


@final
class RowTable:
    """Rows and events that are collected in memory, for plans."""

    def __init__(self) -> None:
        self._chunks: list[bytearray] = []
        self._rows = 0
        self._events: list[tuple[int, int, int, float]] = []

    def add_row(self, *values: Any) -> None:
        """Append a row, given as the values of all columns."""
        offset = self._rows % CHUNK_ROWS * ROW_BYTES
        if offset == 0:
            self._chunks.append(bytearray(CHUNK_ROWS * ROW_BYTES))
        self._rows += 1
        ROW.pack_into(self._chunks[-1], offset, *values)

    def happened(self, event: OtherEvent) -> None:
        """Append another event."""
        self._events.append(row_of_event(self._rows, event))

    def arrivals(self) -> NDArray[np.void]:
        """All rows, as an array of their own."""
        chunks = [np.frombuffer(chunk, ARRIVAL_DTYPE) for chunk in self._chunks]
        return np.concatenate(chunks)[: self._rows] if chunks else np.empty(0, ARRIVAL_DTYPE)

    def events(self) -> NDArray[np.void]:
        """All other events."""
        return np.array(self._events, dtype=EVENT_DTYPE)
