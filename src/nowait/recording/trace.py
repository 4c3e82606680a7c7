"""The trace: the event log of a run, as numpy arrays. A run replays from it, and every figure is made of it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import Arrival, Outcome, Resumed, TimerFired, WorkerJoined, WorkerLost
from nowait.core.log import APPLIED
from nowait.core.types import Floats, Integers

OUTCOMES = tuple(Outcome)
OUTCOME_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
CODE_OF_APPLIED = OUTCOME_CODES[APPLIED]
EVENT_KINDS: tuple[Any, ...] = (WorkerJoined, WorkerLost, TimerFired, Resumed)
WITHOUT_WORKER = (TimerFired, Resumed)
OtherEvent = WorkerJoined | WorkerLost | TimerFired | Resumed
FORMAT = 1

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
ROW = struct.Struct("<qqqqqdddqdqqdd")
ROW_BYTES = ROW.size
STEP_OF_ROW = struct.Struct("<qdd")
STEP_OFFSET = 11 * 8
EVENT_DTYPE = np.dtype([("after", "<i8"), ("kind", "<i8"), ("worker", "<i8"), ("time", "<f8")])
CHUNK_ROWS = 16_384


@final
@dataclass(frozen=True, eq=False)
class Trace:
    """The event log of a run, in the order the server dealt with events.

    Arrival columns, one entry per arrival: ``ticket worker job version delay time started compute_seconds live_workers
    outcome step weight stepsize gradient_norm``. ``outcome`` is applied, held, dropped, late or rejected; ``step`` is
    the first step made with the gradient, ``weight`` its coefficient in that step's direction and ``stepsize`` that
    step's γ, all 0 if there is none. Joins, losses, timers and resumes are in ``events``; ``after`` counts the arrivals
    before each.
    """

    arrivals: NDArray[np.void]
    events: NDArray[np.void]
    initial_workers: Integers
    seconds: float
    """When the run ended."""
    last_norm: float
    """The norm of the last params, by which a replay checks that it arrived there."""

    @property
    def num_workers(self) -> int:
        """The number of workers at the start."""
        return len(self.initial_workers)

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def ticket(self) -> Integers:
        """The id of the ticket."""
        return self._column("ticket")

    @property
    def worker(self) -> Integers:
        """The number of the worker."""
        return self._column("worker")

    @property
    def job(self) -> Integers:
        """How many tickets the worker number had before."""
        return self._column("job")

    @property
    def version(self) -> Integers:
        """How many steps the point contained."""
        return self._column("version")

    @property
    def delay(self) -> Integers:
        """The index of the step the gradient would make, minus its version; 1 is fresh."""
        return self._column("delay")

    @property
    def time(self) -> Floats:
        """When it arrived, in seconds."""
        return self._column("time")

    @property
    def started(self) -> Floats:
        """When the worker began with it, in seconds."""
        return self._column("started")

    @property
    def compute_seconds(self) -> Floats:
        """How long the worker computed."""
        return self._column("compute_seconds")

    @property
    def live_workers(self) -> Integers:
        """The number of workers after the arrival was dealt with."""
        return self._column("live_workers")

    @property
    def gradient_norm(self) -> Floats:
        """The norm of the gradient; NaN if it was rejected, 0 if it was late."""
        return self._column("gradient_norm")

    @cached_property
    def outcome(self) -> NDArray[np.str_]:
        """What became of it: applied, held, dropped, late or rejected."""
        names: NDArray[np.str_] = np.array(OUTCOMES, dtype=np.str_)[self.arrivals["outcome"]]
        return names

    @property
    def step(self) -> Integers:
        """The first step made with it, 0 if none."""
        return self._column("step")

    @property
    def weight(self) -> Floats:
        """Its coefficient in the direction of that step."""
        return self._column("weight")

    @property
    def stepsize(self) -> Floats:
        """The stepsize of that step, 0 if none."""
        return self._column("stepsize")

    def save(self, path: str | Path) -> None:
        """Write a compressed npz file."""
        columns: dict[str, Any] = {"format": np.int64(FORMAT), "initial_workers": self.initial_workers}
        columns |= {"seconds": np.float64(self.seconds), "last_norm": np.float64(self.last_norm)}
        columns |= {f"arrival_{name}": self.arrivals[name] for name in ARRIVAL_DTYPE.names or ()}
        columns |= {f"event_{name}": self.events[name] for name in EVENT_DTYPE.names or ()}
        unfinished = Path(path).with_name(f".{Path(path).name}.unfinished")
        with open(unfinished, "wb") as file:
            np.savez_compressed(file, **columns)
        os.replace(unfinished, path)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what ``save`` wrote. No pickle is loaded."""
        with np.load(path, allow_pickle=False) as file:
            if "format" not in file or int(file["format"]) != FORMAT:
                raise ValueError(f"{path} is not a nowait trace of format {FORMAT}")
            arrivals = _table(file, "arrival_", ARRIVAL_DTYPE)
            events = _table(file, "event_", EVENT_DTYPE)
            return cls(arrivals, events, file["initial_workers"], float(file["seconds"]), float(file["last_norm"]))

    def in_order(self) -> Iterator[tuple[int, OtherEvent | None]]:
        """Every event of the run: (row, None) for an arrival, (row, event) for one that came before that row."""
        at = 0
        for after, kind, worker, time in self.events.tolist():
            for row in range(at, after):
                yield row, None
            at = after
            yield after, _event(kind, worker, time)
        for row in range(at, len(self.arrivals)):
            yield row, None

    def _column(self, name: str) -> NDArray[Any]:
        return self.arrivals[name]

    def __repr__(self) -> str:
        return f"Trace({len(self)} arrivals, {len(self.events)} other events, {self.num_workers} workers)"


@final
class TraceRecorder:
    """The server's ``Log``: packs every arrival into 112 bytes of a chunk."""

    def __init__(self, initial_workers: Sequence[int]) -> None:
        self.initial_workers = np.array(initial_workers, dtype=np.int64)
        self._chunks: list[bytearray] = []
        self._rows = 0
        self._changed_from = 0
        self._events: list[tuple[int, int, int, float]] = []

    def arrived(self, arrival: Arrival, live_workers: int) -> None:
        """Append a row."""
        offset = self._rows % CHUNK_ROWS * ROW_BYTES
        if offset == 0:
            self._chunks.append(bytearray(CHUNK_ROWS * ROW_BYTES))
        self._rows += 1
        ticket_id, worker, version, job, issued = arrival.ticket
        _, _, time, started, compute_seconds = arrival.event
        if started is None:
            started = issued
        ROW.pack_into(
            self._chunks[-1],
            offset,
            ticket_id,
            worker,
            job,
            version,
            arrival.delay,
            time,
            started,
            time - started if compute_seconds is None else compute_seconds,
            live_workers,
            arrival.norm,
            CODE_OF_APPLIED if arrival.outcome is APPLIED else OUTCOME_CODES[arrival.outcome],
            arrival.step,
            arrival.weight,
            arrival.stepsize,
        )

    def add_row(self, *values: Any) -> None:
        """Append a row, given as the values of all columns."""
        offset = self._rows % CHUNK_ROWS * ROW_BYTES
        if offset == 0:
            self._chunks.append(bytearray(CHUNK_ROWS * ROW_BYTES))
        self._rows += 1
        ROW.pack_into(self._chunks[-1], offset, *values)

    def stepped(self, row: int, step: int, weight: float, stepsize: float) -> None:
        """Complete the row of a held gradient."""
        self._changed_from = min(self._changed_from, row)
        chunk, place = divmod(row, CHUNK_ROWS)
        STEP_OF_ROW.pack_into(self._chunks[chunk], place * ROW_BYTES + STEP_OFFSET, step, weight, stepsize)

    def happened(self, event: OtherEvent) -> None:
        """Append another event."""
        worker = -1 if isinstance(event, WITHOUT_WORKER) else event.worker
        self._events.append((self._rows, EVENT_KINDS.index(type(event)), worker, event.time))

    def take_changes(self) -> tuple[int, bytes, bytes]:
        """What is new since the last call, for a file: the first changed row, the rows from there on, all events."""
        first, self._changed_from = self._changed_from, self._rows
        chunk, place = divmod(first, CHUNK_ROWS)
        rows = b"".join(self._chunks[chunk:])[place * ROW_BYTES :][: (self._rows - first) * ROW_BYTES]
        return first, rows, np.array(self._events, dtype=EVENT_DTYPE).tobytes()

    def restore(self, initial_workers: list[int], arrivals: NDArray[np.void], events: NDArray[np.void]) -> None:
        """Go on after these rows and events of a run that began with these workers."""
        self.initial_workers = np.array(initial_workers, dtype=np.int64)
        data = arrivals.tobytes()
        chunk_bytes = CHUNK_ROWS * ROW_BYTES
        for offset in range(0, len(data), chunk_bytes):
            self._chunks.append(bytearray(data[offset : offset + chunk_bytes].ljust(chunk_bytes, b"\0")))
        self._rows = self._changed_from = len(arrivals)
        self._events = [tuple(event) for event in events.tolist()]

    def row(self, number: int) -> NDArray[np.void]:
        """One row as it stands now."""
        chunk, place = divmod(number, CHUNK_ROWS)
        return np.frombuffer(self._chunks[chunk], ARRIVAL_DTYPE, count=1, offset=place * ROW_BYTES)

    def recent(self, column: str, count: int) -> NDArray[Any]:
        """A column of the latest rows, at most so many (and at most those of the latest chunk)."""
        if not self._chunks:
            return np.empty(0)
        in_chunk = self._rows - (len(self._chunks) - 1) * CHUNK_ROWS
        rows = np.frombuffer(self._chunks[-1], ARRIVAL_DTYPE, count=in_chunk)
        return rows[column][-count:].copy()

    def trace(self, seconds: float = 0.0, last_norm: float = 0.0) -> Trace:
        """The trace so far, of a run that ended after ``seconds`` at params with this norm."""
        chunks = [np.frombuffer(chunk, ARRIVAL_DTYPE) for chunk in self._chunks]
        arrivals = np.concatenate(chunks)[: self._rows] if chunks else np.empty(0, ARRIVAL_DTYPE)
        events = np.array(self._events, dtype=EVENT_DTYPE)
        return Trace(arrivals, events, self.initial_workers, seconds, last_norm)


def _event(kind: int, worker: int, time: float) -> OtherEvent:
    if kind not in range(len(EVENT_KINDS)):
        raise ValueError(f"the trace has an event of unknown kind {kind}: was it written by a newer version?")
    made: OtherEvent = (
        EVENT_KINDS[kind](time) if EVENT_KINDS[kind] in WITHOUT_WORKER else EVENT_KINDS[kind](worker, time)
    )
    return made


def _table(file: Any, prefix: str, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    names = dtype.names or ()
    table = np.empty(len(file[prefix + names[0]]), dtype)
    for name in names:
        table[name] = file[prefix + name]
    return table
