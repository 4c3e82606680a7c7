"""The folder of a benchmark: what was compared, every entry when it is complete, and traces of entries."""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime
from pathlib import Path
from typing import Any, Self, final

import nowait
from nowait.recording import Trace
from nowait.recording.checked_lines import CheckedLines
from nowait.recording.errors import DamagedFileError
from nowait.recording.files import read_strictly_sealed, replace_file, sealed, write_json
from nowait.recording.lock import FileLock
from nowait.studies.bench.records import Entry, PhaseEntry, Task
from nowait.studies.bench.suite import VERSION, Suite

logger = logging.getLogger("nowait")

HEADER, ENTRIES, PHASES, TRACES, LOCK = "bench.json", "entries.jsonl", "phases.jsonl", "traces", "lock"


@final
class BenchFolder:
    """``bench.json`` names the suite; ``entries.jsonl`` and ``phases.jsonl`` have one line per result."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.header = header
        self._lock = FileLock()

    @classmethod
    def open_or_create(cls, path: Path, suite: Suite) -> Self:
        """Open the results of a suite, or create the folder; raise ValueError if it has results of another suite."""
        asked = {"suite": suite.name, "version": VERSION, "digest": suite.digest(), "nowait": nowait.__version__}
        if (path / HEADER).exists():
            found = cls.open(path)
            differing = [name for name, value in asked.items() if found.header.get(name) != value]
            if differing:
                raise ValueError(
                    f"{path} has results of another benchmark ({', '.join(differing)} differs): choose another folder"
                )
            return found
        if path.exists() and any(path.iterdir()):
            raise FileExistsError(f"{path} is not empty and has no {HEADER}: choose another folder")
        path.mkdir(parents=True, exist_ok=True)
        asked["date"] = datetime.now().astimezone().date().isoformat()
        write_json(path / HEADER, sealed(asked))
        return cls(path, asked)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open existing results."""
        if not (path / HEADER).is_file():
            raise FileNotFoundError(f"{path} is not the folder of a benchmark: it has no {HEADER}")
        return cls(path, read_strictly_sealed(path / HEADER))

    def add(self, entry: Entry) -> None:
        """Write an entry."""
        CheckedLines(self.path / ENTRIES).append([entry.as_dictionary()])

    def add_phase(self, entry: PhaseEntry) -> None:
        """Write a point of the phase diagram."""
        CheckedLines(self.path / PHASES).append([entry.as_dictionary()])

    def entries(self) -> dict[str, Entry]:
        """Return all entries by key; damaged lines are skipped with a warning."""
        found = [Entry.of(row) for row in self._rows(ENTRIES)]
        return {entry.key: entry for entry in found}

    def phases(self) -> dict[str, PhaseEntry]:
        """Return all points of the phase diagram by key."""
        found = [PhaseEntry.of(row) for row in self._rows(PHASES)]
        return {entry.key: entry for entry in found}

    def save_trace(self, task: Task, seed: int, trace: Trace) -> None:
        """Write the trace of a run."""
        path = self.trace_path(task, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(path)

    def trace_path(self, task: Task, seed: int) -> Path:
        """Return where the trace of a run is, or would be."""
        name = "".join(letter if letter.isalnum() or letter in "-=" else "_" for letter in task.method)
        digest = hashlib.sha256(task.method.encode()).hexdigest()[:6]  # of two names, both may become the same
        return self.path / TRACES / task.problem / task.cluster / f"{name}-{digest}-{seed}.npz"

    def copy_to(self, folder: Path) -> None:
        """Copy the results, without traces, so that they can be published beside their page and verified."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (HEADER, ENTRIES, PHASES):
            if (self.path / name).exists():
                replace_file(folder / name, (self.path / name).read_bytes())

    def check(self) -> None:
        """Raise ``DamagedFileError`` if a line is damaged."""
        for name in (ENTRIES, PHASES):
            for number, row in CheckedLines(self.path / name).rows():
                if row is None:
                    raise DamagedFileError(self.path / name, f"line {number} is damaged")

    def lock(self) -> None:
        """Lock the folder against other processes, until this one ends."""
        self._lock.acquire(self.path / LOCK, f"{self.path} is locked: another process is computing this benchmark")

    def unlock(self) -> None:
        """Release the lock."""
        self._lock.release()

    def _rows(self, name: str) -> list[dict[str, Any]]:
        rows = []
        for number, row in CheckedLines(self.path / name).rows():
            if row is None:
                logger.warning("line %d of %s is damaged: this result is missing", number, self.path / name)
            else:
                rows.append(row)
        return rows
