"""Finds the runs in the watched folders, and follows those that are shown."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from nowait.dashboard.follow_run import FollowedRun, modified
from nowait.recording.run import METRICS, STATS, TRACE
from nowait.recording.unfinished import FolderState, folder_state

MOST_RUNS = 200
"""Runs that are listed: of more, the newest."""
MOST_SHOWN = 16
"""Runs that a page shows at a time."""
MOST_FOLLOWED = 32
"""Runs that are kept in memory, if several pages show different ones."""
DEEPEST = 2
"""Runs are found in a folder, in its folders, and in theirs."""
SECONDS_BETWEEN_SEARCHES = 1.0
SECONDS_BETWEEN_REFRESHES = 0.5


@final
@dataclass
class Listed:
    """A run that was found."""

    folder: Path
    name: str = ""
    state: FolderState = FolderState.NOT_A_RUN
    written: float = 0.0
    """When its newest file was written, by the wall clock."""
    _seen: tuple[float, FolderState] | None = field(default=None, repr=False)

    def look(self) -> None:
        """Bring the state up to date. Results are read again only if they have changed."""
        self.written = max(modified(self.folder / name) for name in (TRACE, METRICS, STATS))
        results = modified(self.folder / STATS)
        if results and self._seen is not None and self._seen[0] == results:
            self.state = self._seen[1]
            return
        self.state = folder_state(self.folder)
        self._seen = (results, self.state) if self.state is not FolderState.RUNNING else None


def is_run(folder: Path) -> bool:
    """Return True if a folder has the files of a run."""
    return (folder / TRACE).is_file() or ((folder / STATS).is_file() and (folder / METRICS).is_file())


def runs_in(folder: Path, deepest: int = DEEPEST) -> Iterator[Path]:
    """Yield the runs in a folder: itself, or those inside of it. Hidden folders are left out: runs are made there."""
    if is_run(folder):
        yield folder
        return
    if deepest == 0:
        return
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError:
        return
    for path in inside:
        yield from runs_in(path, deepest - 1)


def id_of(folder: Path) -> str:
    """Return a name for a folder that says nothing of its path, and is the same after a restart."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:12]


@final
class RunTable:
    """The runs in some folders, by id."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = [folder.absolute() for folder in folders]
        self.listed: dict[str, Listed] = {}
        self._followed: dict[str, FollowedRun] = {}
        self._searched = float("-inf")

    def watch(self, folder: Path) -> None:
        """Also find runs in this folder."""
        if folder.absolute() not in self.folders:
            self.folders.append(folder.absolute())
            self._searched = float("-inf")

    def search(self, wall: float) -> None:
        """Find runs and look at their states, if that was not done just now."""
        if wall - self._searched < SECONDS_BETWEEN_SEARCHES:
            return
        self._searched = wall
        found = dict.fromkeys(run for folder in self.folders for run in runs_in(folder))
        known = [self.listed.get(id_of(run)) or Listed(run) for run in found]
        for listed in known:
            listed.look()
        newest = {one.folder for one in sorted(known, key=lambda one: one.written, reverse=True)[:MOST_RUNS]}
        self.listed = {id_of(one.folder): one for one in known if one.folder in newest}
        self._name_runs()

    def followed(self, shown: Iterable[str], wall: float) -> dict[str, FollowedRun]:
        """Return these runs with what is new in their files. Runs that nobody has asked for lately are forgotten."""
        wanted = [name for name in dict.fromkeys(shown) if name in self.listed][:MOST_SHOWN]
        for name in wanted:  # the dictionary is in the order of the latest requests
            self._followed[name] = run = self._followed.pop(name, FollowedRun(self.listed[name].folder))
            if run.has_more or wall - run.refreshed >= SECONDS_BETWEEN_REFRESHES:
                run.refresh(wall)
        followed = {name: self._followed[name] for name in wanted}
        for name in list(self._followed)[:-MOST_FOLLOWED]:
            del self._followed[name]
        return followed

    def _name_runs(self) -> None:
        """Name runs by their path from the watched folder on; by their whole path where that is not unique."""
        names = {run.folder: self._name(run.folder) for run in self.listed.values()}
        counts = Counter(names.values())
        for run in self.listed.values():
            run.name = names[run.folder] if counts[names[run.folder]] == 1 else str(run.folder)

    def _name(self, run: Path) -> str:
        inside = [folder for folder in self.folders if folder in run.parents]
        return str(run.relative_to(inside[0])) if inside else run.name
