"""The trace: the event log of a run, as numpy arrays. Replays and figures are made from it."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import checks
from nowait.core.notes import Note
from nowait.core.types import Floats, Integers
from nowait.recording.errors import DamagedFileError
from nowait.recording.framefile import FrameFile
from nowait.recording.frames import FILE_HEADER, Kind, notes_body, read_notes, rows_body
from nowait.recording.journal import Journal, JournalWriter
from nowait.recording.phases import PhaseTotals
from nowait.recording.rows import (
    ARRIVAL_DTYPE,
    CHUNK_ROWS,
    COLUMNS,
    EVENT_DTYPE,
    IS_VALID,
    OUTCOMES,
    OtherEvent,
    event_of,
)
from nowait.recording.sent import Sent
from nowait.recording.worker_stats import (
    Loading,
    Placement,
    WorkerStats,
    read_workers,
    stats_of_workers,
    workers_body,
)

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

FORMAT = 1
"""The format number of an npz file."""
MOST_EXPANSION = 200
"""An npz file that would expand to more than 200 times its size is rejected: no trace compresses that well."""
ROWS_READ_AT_ONCE = 1 << 20
"""A stored trace with at most this many rows is read as a whole when one column is accessed."""
VERIFIED_AT_ONCE = 1 << 30
"""A stored trace of at most this many bytes is verified when it is loaded, a longer one as it is read."""


@final
@dataclass(frozen=True, eq=False)
class Trace:
    """The event log of a run, in the order in which the server handled the events.

    Arrival columns, one entry per arrival: ``ticket worker job version delay time started compute_seconds live_workers
    outcome step weight stepsize gradient_norm``. ``outcome`` is applied, held, dropped, late or rejected; ``step`` is
    the first step made with the gradient, ``weight`` its coefficient in that step's direction and ``stepsize`` that
    step's γ, all 0 if there is none. Joins, losses, timers and resumes are in ``events``; ``after`` counts the arrivals
    before each.

    The rows of a long run stay on disk: ``blocks`` reads them block by block, and a column is read when it is accessed.
    ``kept`` is "full" if the trace has all arrivals, "sampled" if it has some of each worker, or "none".
    """

    source: NDArray[np.void] | Journal
    """The rows in memory, or the journal that reads them from disk."""
    events: NDArray[np.void]
    """Joins, losses, timers and resumes."""
    initial_workers: Integers
    """The numbers of the workers at the start."""
    seconds: float
    """The time at which the run ended."""
    last_norm: float
    """The norm of the last params, with which a replay compares its own."""
    kept: str = "full"
    """"full", "sampled" or "none": which arrivals the trace has."""
    num_arrivals: int = -1
    """The number of arrivals of the run, including those that are not kept."""
    placements: tuple[Placement, ...] = ()
    """Where each process of a worker was started: worker, time, node and device. Only of runs with real workers."""
    loading: Loading = field(default_factory=dict)
    """The seconds that each worker loaded data, inside of computing and before it, if the problem reports them."""
    sent: Sent | None = None
    """How vectors were sent between machines; None if the run had no engine that does."""
    checksums: dict[int, int] = field(default_factory=dict)
    """The CRC-32 of the params after the last step, and after those with checkpoints; a replay compares its own."""
    notes: tuple[Note, ...] = ()
    """What the method noted with ``server.note``, in order: its decisions, and the numbers behind them."""

    def __post_init__(self) -> None:
        if self.num_arrivals < 0:
            object.__setattr__(self, "num_arrivals", len(self))

    @cached_property
    def arrivals(self) -> NDArray[np.void]:
        """All rows in memory, as one structured array."""
        return self.source.arrivals() if isinstance(self.source, Journal) else self.source

    def blocks(self) -> Iterator[NDArray[np.void]]:
        """Yield the rows in blocks of at most 16,384, so that memory does not grow with the length of the run."""
        if isinstance(self.source, Journal):
            yield from self.source.blocks()
            return
        for first in range(0, len(self.source), CHUNK_ROWS):
            yield self.source[first : first + CHUNK_ROWS]

    @property
    def run(self) -> str:
        """The id of the run, if the trace was read from its folder; else empty."""
        return self.source.run if isinstance(self.source, Journal) else ""

    @property
    def num_workers(self) -> int:
        """The number of workers at the start."""
        return len(self.initial_workers)

    def __len__(self) -> int:
        return self.source.num_rows if isinstance(self.source, Journal) else len(self.source)

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
        """The number of tickets that the worker number had before."""
        return self._column("job")

    @property
    def version(self) -> Integers:
        """The number of steps that the point contains."""
        return self._column("version")

    @property
    def delay(self) -> Integers:
        """The index of the step the gradient would make, minus its version; 1 is fresh."""
        return self._column("delay")

    @property
    def time(self) -> Floats:
        """The time of arrival, in seconds."""
        return self._column("time")

    @property
    def started(self) -> Floats:
        """The time at which the worker started, in seconds."""
        return self._column("started")

    @property
    def compute_seconds(self) -> Floats:
        """The seconds that the worker computed."""
        return self._column("compute_seconds")

    @property
    def live_workers(self) -> Integers:
        """The number of workers after the arrival was handled."""
        return self._column("live_workers")

    @property
    def gradient_norm(self) -> Floats:
        """The norm of the gradient; NaN if it was rejected, 0 if it was late."""
        return self._column("gradient_norm")

    @cached_property
    def outcome(self) -> NDArray[np.str_]:
        """The outcome: applied, held, dropped, late or rejected."""
        names: NDArray[np.str_] = np.array(OUTCOMES, dtype=np.str_)[self._column("outcome")]
        return names

    @property
    def step(self) -> Integers:
        """The first step that used the gradient, 0 if none."""
        return self._column("step")

    @property
    def weight(self) -> Floats:
        """The gradient's coefficient in the direction of that step."""
        return self._column("weight")

    @property
    def stepsize(self) -> Floats:
        """The stepsize of that step, 0 if none."""
        return self._column("stepsize")

    def by_worker(self) -> tuple[WorkerStats, ...]:
        """Return where each worker was, how much it delivered, and where its time went.

        Of a trace that is not full, the phases of the arrivals that it has.
        """
        totals = PhaseTotals(self.initial_workers.tolist(), complete=self.kept == "full")
        valid, events, first = np.zeros(0, np.int64), self.events, 0
        for block in self.blocks():
            first += len(block)
            if self.kept == "full":
                until = int(np.searchsorted(events["after"], first))
            else:
                until = int(np.searchsorted(events["time"], block["time"][-1], side="right")) if len(block) else 0
            totals.add(block, events[:until])
            events = events[until:]
            counts = np.bincount(block["worker"][IS_VALID[block["outcome"]]], minlength=len(valid))
            counts[: len(valid)] += valid
            valid = counts
        totals.add(np.empty(0, ARRIVAL_DTYPE), events)
        totals.set_loading(self.loading)
        return stats_of_workers(totals, valid, self.placements, self.seconds)

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas data frame with one row per arrival; ``outcome`` is categorical."""
        from nowait.recording.dataframes import pandas_frame, trace_columns

        return pandas_frame(trace_columns(self))

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame with one row per arrival; ``outcome`` is categorical."""
        from nowait.recording.dataframes import polars_frame, trace_columns

        return polars_frame(trace_columns(self))

    def _repr_html_(self) -> str:
        from nowait.recording.notebook import html_of_trace

        return html_of_trace(self)

    def save(self, path: str | Path) -> None:
        """Write a compressed npz file, atomically."""
        unfinished = Path(f"{path}.unfinished")
        try:
            with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as file:
                self._write_columns(file)
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def _write_columns(self, file: zipfile.ZipFile) -> None:
        """Write one array per entry of the archive, the columns block by block."""
        numbers = {"format": np.int64(FORMAT), "seconds": np.float64(self.seconds)}
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in numbers.items()}
        arrays |= {"last_norm": np.asarray(np.float64(self.last_norm)), "initial_workers": self.initial_workers}
        arrays |= {"kept": np.asarray(self.kept), "num_arrivals": np.asarray(np.int64(self.num_arrivals))}
        if self.sent is not None:
            arrays["sent"] = np.asarray(json.dumps(asdict(self.sent)))
        arrays["checksums"] = np.array(list(self.checksums.items()), dtype=np.int64).reshape(-1, 2)
        arrays |= {f"event_{name}": np.ascontiguousarray(self.events[name]) for name in EVENT_DTYPE.names or ()}
        if self.placements or self.loading:
            arrays |= {"workers": np.asarray(workers_body(self.placements, self.loading).decode())}
        if self.notes:
            arrays["notes"] = np.asarray(notes_body(self.notes).decode())
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
        for name in COLUMNS:
            header = {"descr": ARRIVAL_DTYPE[name].str, "fortran_order": False, "shape": (len(self),)}
            with file.open(f"arrival_{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, header)
                for block in self.blocks():
                    entry.write(np.ascontiguousarray(block[name]).tobytes())

    def write(self, path: Path, run: str = "") -> None:
        """Write a new file in the format of ``trace.rows``, block by block. ``run`` is the id of the run."""
        file = FrameFile.open(path, create=True)
        writer = JournalWriter.new(file, self.initial_workers.tolist(), self.kept, self.sent, run)
        first = 0
        for block in self.blocks():
            writer.write(Kind.ROWS, rows_body(block, len(block)), first=first, count=len(block))
            first += len(block)
        if len(self.events):
            writer.write(Kind.EVENTS, np.ascontiguousarray(self.events).tobytes(), count=len(self.events))
        if self.placements or self.loading:
            writer.workers(self.placements, self.loading)
        if self.notes:
            writer.notes(self.notes)
        if self.checksums:
            writer.checksums(self.checksums)
        writer.end(self.seconds, self.last_norm, self.num_arrivals)
        file.sync()

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a file written by ``save``, or the ``trace.rows`` of a run folder. No pickle is loaded."""
        source = Path(checks.path(path, "path"))
        file = FrameFile.read_only(source)
        if file.read(0, len(FILE_HEADER)) == FILE_HEADER:
            return cls.of_journal(file, source)
        return _load_npz(source)

    @classmethod
    def of_journal(cls, file: FrameFile, name: Any) -> Trace:
        """Return the trace in the file of a finished run."""
        journal = Journal(file, name)
        if journal.end is None:
            raise DamagedFileError(name, "the end of the run is missing")
        if file.length <= VERIFIED_AT_ONCE:
            journal.verify()
        return cls(
            journal,
            journal.events(),
            journal.initial_workers,
            float(journal.end["seconds"]),
            float(journal.end["last_norm"]),
            journal.kept,
            int(journal.end["arrivals"]),
            tuple(journal.placements),
            journal.loading,
            journal.sent,
            journal.checksums,
            journal.notes(),
        )

    def in_order(self) -> Iterator[tuple[int, tuple[Any, ...] | OtherEvent]]:
        """Yield every event of the run with a number: an arrival's row as a tuple, or another event.

        The number of an arrival is its row; that of another event is the number of arrivals before it.
        """
        rows = enumerate(row for block in self.blocks() for row in block.tolist())
        at = 0
        for after, kind, worker, time in self.events.tolist():
            yield from islice(rows, max(0, after - at))
            at = max(at, after)
            yield after, event_of(kind, worker, time)
        yield from rows

    def _column(self, name: str) -> NDArray[Any]:
        if isinstance(self.source, Journal) and "arrivals" not in self.__dict__ and len(self) > ROWS_READ_AT_ONCE:
            return self.source.column(name)
        column: NDArray[Any] = self.arrivals[name]
        return column

    def __reduce__(self) -> Any:
        rest = (self.events, self.initial_workers, self.seconds, self.last_norm, self.kept, self.num_arrivals)
        return Trace, (self.arrivals, *rest, self.placements, self.loading, self.sent, self.checksums, self.notes)

    def __repr__(self) -> str:
        return f"Trace({len(self)} arrivals, {len(self.events)} other events, {self.num_workers} workers)"


def _load_npz(path: Path) -> Trace:
    try:
        _check_size(path)
        with np.load(path, allow_pickle=False) as file:
            if "format" not in file or int(file["format"]) != FORMAT:
                raise ValueError(f"{path} is not a nowait trace of format {FORMAT}")
            return Trace(
                _table(file, "arrival_", ARRIVAL_DTYPE),
                _table(file, "event_", EVENT_DTYPE),
                file["initial_workers"],
                float(file["seconds"]),
                float(file["last_norm"]),
                str(file["kept"]) if "kept" in file else "full",
                int(file["num_arrivals"]) if "num_arrivals" in file else -1,
                *(read_workers(str(file["workers"])) if "workers" in file else ((), {})),
                Sent.read(json.loads(str(file["sent"]))) if "sent" in file else None,
                dict(file["checksums"].tolist()) if "checksums" in file else {},
                tuple(read_notes(str(file["notes"]).encode())) if "notes" in file else (),
            )
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, TypeError, SyntaxError) as error:
        raise DamagedFileError(path, f"it cannot be read as a trace ({error})") from None


def _check_size(path: Path) -> None:
    """Check the declared sizes of the archive and its arrays before any memory is allocated."""
    with zipfile.ZipFile(path) as file:
        expanded = sum(entry.file_size for entry in file.infolist())
        if expanded > MOST_EXPANSION * path.stat().st_size + (1 << 20):
            raise ValueError(
                f"{path} would take {expanded:,} bytes in memory, {expanded / path.stat().st_size:.0f} times its size: "
                f"no trace compresses that well, so it is not read"
            )
        for entry in file.infolist():
            _check_array(path, file, entry)


def _check_array(path: Path, file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    with file.open(entry) as data:
        version = np.lib.format.read_magic(data)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(data)
        if data.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize != entry.file_size:
            raise DamagedFileError(path, f"the size of {entry.filename} does not match its header")


def _table(file: Any, prefix: str, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    columns = {name: file[prefix + name] for name in dtype.names or ()}
    lengths = {column.shape for column in columns.values()}
    if len(lengths) != 1:
        raise KeyError(f"columns of different lengths {sorted(lengths)}")
    table = np.empty(lengths.pop(), dtype)
    for name, column in columns.items():
        table[name] = column
    return table
