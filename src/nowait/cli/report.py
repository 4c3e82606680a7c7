"""The report command: finds runs, sweeps and races in folders, says what it skipped, and writes one page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, final

import nowait as nw
from nowait.cli.results import open_console
from nowait.recording import FolderState, folder_state
from nowait.recording.errors import DamagedFileError
from nowait.recording.run import PARAMS, load_finished
from nowait.recording.sweep_folder import HEADER
from nowait.reports.groups import grouped
from nowait.studies.race_setup import SUMMARY

DEEPEST = 3
"""How many levels of folders are searched."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""What reading a damaged folder raises."""


@final
@dataclass
class Found:
    """What the folders contain, and which were skipped, with the reason."""

    runs: list[tuple[str, nw.Run]] = field(default_factory=list)
    sweeps: dict[str, nw.Sweep] = field(default_factory=dict)
    races: dict[str, nw.Race] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)

    def add(self, folder: Path) -> None:
        """Read one folder; if that fails it is skipped."""
        try:
            if (folder / SUMMARY).is_file():
                self.races[_free(folder.name, self.races)] = nw.Race.load(folder)
            elif (folder / HEADER).is_file():
                self.sweeps[_free(folder.name, self.sweeps)] = nw.Sweep.load(folder)
            else:
                self._add_run(folder)
        except UNREADABLE as error:
            self.skipped.append((folder, " ".join(str(error).split())))

    def _add_run(self, folder: Path) -> None:
        run = self._load(folder)
        state = folder_state(folder)
        if state is FolderState.RUNNING:
            self.notes.append(f"{folder} is still running: the report has its records up to step {run.stats.steps:,}.")
        elif state is FolderState.KILLED:
            self.notes.append(f"{folder} was killed after step {run.stats.steps:,}; nowait resume continues it.")
        self.runs.append((folder.name, run))

    def _load(self, folder: Path) -> nw.Run:
        """Read a run. If only its params are damaged it is read without them: a report does not show params."""
        try:
            return nw.load(folder, unfinished=True)
        except DamagedFileError as error:
            if Path(error.name) != folder / PARAMS:
                raise
            run = load_finished(folder, with_params=False)
            self.notes.append(f"{error}. The rest of this run was read and is shown.")
            return run


def run_report(folders: list[Path], target: Path, minimum: float | None) -> Path:
    """Write one report of all the runs in these folders; runs that differ only in their seed form a group."""
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder: give --out a file")
    found = Found()
    for folder in dict.fromkeys(one for each in folders for one in _inside(each)):
        found.add(folder)
    console = open_console()
    for folder, reason in found.skipped:
        console.print(f"Skipped {folder}: {reason}", highlight=False, markup=False)
    if not (found.runs or found.sweeps or found.races):
        raise ValueError(f"none of these folders can be read: {', '.join(str(folder) for folder, _ in found.skipped)}")
    path = _write(found, target, minimum)
    console.print(f"Report: {path}", highlight=False, markup=False)
    return path


def _write(found: Found, target: Path, minimum: float | None) -> Path:
    if len(found.races) == 1 and not found.runs and not found.sweeps:
        [race] = found.races.values()
        if race.runs:
            return race.report(target, minimum=minimum)
    entries: dict[str, Any] = dict(grouped(found.runs)) if found.runs else {}
    for folder, race in found.races.items():
        for name, runs in race.runs.items():
            entries[_free(name if name not in entries else f"{name}, {folder}", entries)] = runs
    for name, sweep in found.sweeps.items():
        entries[_free(name, entries)] = sweep
    return nw.report(entries, target, minimum=minimum or 0.0, notes=found.notes)


def _inside(folder: Path) -> list[Path]:
    """Return the folders of runs, sweeps and races in a folder, which may be one itself."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    inside = list(_search(folder, DEEPEST))
    if not inside:
        raise FileNotFoundError(f"{folder} contains no run, sweep or race")
    return inside


def _search(folder: Path, depth: int) -> Iterator[Path]:
    if _is_result(folder):
        yield folder
    elif depth:
        for child in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
            yield from _search(child, depth - 1)


def _is_result(folder: Path) -> bool:
    is_study = (folder / SUMMARY).is_file() or (folder / HEADER).is_file()
    return is_study or folder_state(folder) is not FolderState.NOT_A_RUN


def _free(name: str, taken: Any) -> str:
    """Return the name, or if it is taken, the name with a number."""
    numbered = (f"{name} ({number})" for number in count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)
