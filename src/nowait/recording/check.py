"""Checks which files of a run folder are intact: ``nowait check``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nowait.recording.best import BEST, best_metadata
from nowait.recording.checkpoints import CheckpointFolder, newest_whole
from nowait.recording.errors import DamagedFileError
from nowait.recording.files import check_contents, read_sealed
from nowait.recording.folder import CHECKPOINTS
from nowait.recording.framefile import FrameFile
from nowait.recording.journal import Journal, whole_length
from nowait.recording.metrics import read_metrics
from nowait.recording.run import CONFIG, METRICS, OLD_TRACE, PARAMS, STATS, TRACE, read_stats
from nowait.recording.trace import Trace


@final
@dataclass(frozen=True)
class FileCheck:
    """The result for one file of a run, or one checkpoint."""

    name: str
    whole: bool
    words: str
    """A summary of its contents, or what is wrong with it."""


@final
@dataclass(frozen=True)
class FolderCheck:
    """The results for all files of a run."""

    files: list[FileCheck]
    summary: str
    """A sentence that says whether the run can be loaded or resumed."""

    @property
    def whole(self) -> bool:
        """True if no file is damaged."""
        return all(file.whole for file in self.files)


def check_folder(folder: str | Path) -> FolderCheck:
    """Read every file of a run and compare it with its checksums. Nothing is changed and no code from it is executed.

    If the run is still active, its newest files may appear truncated.
    """
    path = Path(folder)
    if not (path / CONFIG).is_file() and not (path / TRACE).is_file():
        raise FileNotFoundError(f"{path} is not the folder of a run: it has no {CONFIG} and no {TRACE}")
    checks: list[tuple[str, Callable[[Path], str]]] = [(CONFIG, _config), *_trace_check(path), (METRICS, _metrics)]
    if (path / STATS).exists():
        checks += [(STATS, _stats), (PARAMS, _params)]
    if (path / BEST).exists():
        checks.append((BEST, _best))
    files = [_checked(path, name, check) for name, check in checks]
    checkpoints, last = _checkpoints(path)
    files += checkpoints
    return FolderCheck(files, _summary(path, files, last))


def _checked(folder: Path, name: str, check: Callable[[Path], str]) -> FileCheck:
    try:
        if not (folder / name).is_file():
            raise DamagedFileError(name, "it is missing")
        return FileCheck(name, True, check(folder))
    except (ValueError, OSError) as error:
        return FileCheck(name, False, str(error))


def _config(folder: Path) -> str:
    _, has_checksum = read_sealed(folder / CONFIG)
    return "checksum matches" if has_checksum else "no checksum: edited by hand, or written by an older version"


def _trace_check(folder: Path) -> list[tuple[str, Callable[[Path], str]]]:
    if not (folder / TRACE).exists() and (folder / OLD_TRACE).exists():
        return [(OLD_TRACE, lambda folder: f"{len(Trace.load(folder / OLD_TRACE)):,} arrivals, no checksum")]
    return [(TRACE, _trace)]


def _trace(folder: Path) -> str:
    file = FrameFile.read_only(folder / TRACE)
    ends, trouble = whole_length(file, TRACE)
    whole_bytes = ends[-1] if ends else 0
    if trouble and ((folder / STATS).exists() or not _is_cut(file, whole_bytes)):
        raise DamagedFileError(TRACE, f"only the first {len(ends)} frames are intact, up to byte {whole_bytes:,}")
    journal = Journal(file, TRACE, whole_bytes)
    ending = "" if journal.end is not None else ", of a run that has not finished"
    return f"{journal.num_rows:,} arrivals in {len(ends)} frames{ending}"


def _is_cut(file: FrameFile, whole_bytes: int) -> bool:
    """Return True if the bytes after the intact frames may be a frame that a crash truncated."""
    return whole_bytes > 0 and file.length - whole_bytes < 1 << 22


def _metrics(folder: Path) -> str:
    history, broken = read_metrics(folder / METRICS, with_checksums=(folder / TRACE).exists())
    if broken:
        raise DamagedFileError(
            METRICS, f"lines {', '.join(map(str, broken[:5]))} of {len(history.entries) + len(broken)}"
        )
    return f"{len(history.entries)} losses"


def _stats(folder: Path) -> str:
    stats, _, _ = read_stats(folder / STATS, strict=(folder / TRACE).exists())
    return f"{stats.steps:,} steps{', ended by a signal' if stats.interrupted else ''}"


def _params(folder: Path) -> str:
    _, contents, _ = read_stats(folder / STATS, strict=(folder / TRACE).exists())
    if contents is None:
        return "no checksum: written by an older version"
    check_contents(folder / PARAMS, contents)
    return f"{contents.bytes:,} bytes, checksum matches"


def _best(folder: Path) -> str:
    found = best_metadata(folder / BEST)
    if not {"monitor", "value", "step"} <= found.keys():
        raise DamagedFileError(BEST, "its header does not say of which evaluation it is")
    return f"{found['monitor']} {found['value']} at step {found['step']}, no checksum"


def _checkpoints(folder: Path) -> tuple[list[FileCheck], int | None]:
    """Return the results for the checkpoints, and the step that the run can be resumed from (None: no step)."""
    checkpoints = CheckpointFolder(folder / CHECKPOINTS, keep=1)
    try:
        ends, trouble = whole_length(FrameFile.read_only(folder / TRACE), TRACE)
    except OSError as error:
        ends, trouble = [], f"{TRACE} cannot be read ({error.strerror})"
    files = []
    for step in checkpoints.steps():
        name = f"{CHECKPOINTS}/step_{step}"
        try:
            checkpoint = checkpoints.read(step)
            files.append(FileCheck(name, True, f"{checkpoint.num_bytes:,} bytes, checksums match"))
        except DamagedFileError as error:
            files.append(FileCheck(name, False, str(error)))
    newest, _ = newest_whole(checkpoints, ends, trouble)
    return files, None if newest is None else newest.state.steps


def _summary(folder: Path, files: list[FileCheck], last: int | None) -> str:
    results = [file.whole for file in files if file.name in (STATS, PARAMS, TRACE, OLD_TRACE, CONFIG)]
    if (folder / STATS).exists() and all(results):
        return "The run can be read with nw.load."
    if last is not None and all(file.whole for file in files if file.name == CONFIG):
        return f"The run can be resumed from step {last:,}."
    return "The run can neither be read nor resumed."
