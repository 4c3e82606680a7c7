"""Checks which files of a run folder are intact: ``nowait check``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nowait.core import checks
from nowait.recording.best import BEST, best_metadata
from nowait.recording.checkpoints import CheckpointFolder, newest_whole
from nowait.recording.errors import DamagedFileError
from nowait.recording.files import check_contents, read_sealed
from nowait.recording.folder import CHECKPOINTS
from nowait.recording.framefile import FrameFile
from nowait.recording.identity import RUN, EarlierVersionError, OtherRunError, check_run, run_in
from nowait.recording.journal import Journal, whole_frames
from nowait.recording.metrics import read_metrics
from nowait.recording.run import CONFIG, METRICS, PARAMS, STATS, TRACE, read_stats


@final
@dataclass(frozen=True)
class FileCheck:
    """The result for one file of a run, or one checkpoint."""

    name: str
    whole: bool
    words: str
    """A summary of its contents, or what is wrong with it."""
    of_other_run: bool = False


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
    path = Path(checks.path(folder))
    if not (path / CONFIG).is_file() and not (path / TRACE).is_file():
        raise FileNotFoundError(f"{path} is not the folder of a run: it has no {CONFIG} and no {TRACE}")
    wanted: list[tuple[str, Callable[[Path, str], str]]] = [(CONFIG, _config), (TRACE, _trace), (METRICS, _metrics)]
    if (path / STATS).exists():
        wanted += [(STATS, _stats), (PARAMS, _params)]
    if (path / BEST).exists():
        wanted.append((BEST, _best))
    run = _run_of(path)
    files = [_checked(path, name, check, run) for name, check in wanted]
    checkpoints, last = _checkpoints(path, run)
    files += checkpoints
    return FolderCheck(files, _summary(path, files, last))


def _run_of(folder: Path) -> str:
    """Return the id in ``config.json``; if that is missing or damaged, which its own check reports, the trace's."""
    try:
        return run_in(read_sealed(folder / CONFIG)[0], folder)
    except EarlierVersionError:
        raise
    except ValueError:
        return whole_frames(FrameFile.read_only(folder / TRACE), TRACE).run if (folder / TRACE).is_file() else ""


def _checked(folder: Path, name: str, check: Callable[[Path, str], str], run: str) -> FileCheck:
    try:
        if not (folder / name).is_file():
            raise DamagedFileError(name, "it is missing")
        return FileCheck(name, True, check(folder, run))
    except (ValueError, OSError) as error:
        return FileCheck(name, False, str(error), isinstance(error, OtherRunError))


def _config(folder: Path, _: str) -> str:
    config, has_checksum = read_sealed(folder / CONFIG)
    return f"run {run_in(config, folder)}, {'checksum matches' if has_checksum else 'no checksum: edited by hand'}"


def _trace(folder: Path, run: str) -> str:
    file = FrameFile.read_only(folder / TRACE)
    positions, trouble, _ = whole_frames(file, TRACE)
    whole_bytes = positions[-1].length if positions else 0
    if trouble and ((folder / STATS).exists() or not _is_cut(file, whole_bytes)):
        raise DamagedFileError(TRACE, f"only the first {len(positions)} frames are intact, up to byte {whole_bytes:,}")
    journal = Journal(file, TRACE, whole_bytes)
    check_run(folder / TRACE, journal.run, run)
    ending = "" if journal.end is not None else ", of a run that has not finished"
    return f"{journal.num_rows:,} arrivals in {len(positions)} frames{ending}"


def _is_cut(file: FrameFile, whole_bytes: int) -> bool:
    """Return True if the bytes after the intact frames may be a frame that a crash truncated."""
    return whole_bytes > 0 and file.length - whole_bytes < 1 << 22


def _metrics(folder: Path, run: str) -> str:
    history, broken = read_metrics(folder / METRICS, run)
    if broken:
        raise DamagedFileError(
            METRICS, f"lines {', '.join(map(str, broken[:5]))} of {len(history.entries) + len(broken)}"
        )
    return f"{len(history.entries)} losses"


def _stats(folder: Path, run: str) -> str:
    stats, _, _ = read_stats(folder / STATS, run)
    return f"{stats.steps:,} steps{', ended by a signal' if stats.interrupted else ''}"


def _params(folder: Path, run: str) -> str:
    _, contents, _ = read_stats(folder / STATS, run)
    check_contents(folder / PARAMS, contents)
    return f"{contents.bytes:,} bytes, checksum matches"


def _best(folder: Path, run: str) -> str:
    found = best_metadata(folder / BEST)
    if not {"monitor", "value", "step"} <= found.keys():
        raise DamagedFileError(BEST, "its header does not say of which evaluation it is")
    check_run(folder / BEST, found.get(RUN), run)
    return f"{found['monitor']} {found['value']} at step {found['step']}, no checksum"


def _checkpoints(folder: Path, run: str) -> tuple[list[FileCheck], int | None]:
    """Return the results for the checkpoints, and the step that the run can be resumed from (None: no step)."""
    checkpoints = CheckpointFolder(folder / CHECKPOINTS, 1, run)
    files = []
    for step in checkpoints.steps():
        name = f"{CHECKPOINTS}/step_{step}"
        try:
            checkpoint = checkpoints.read(step)
            files.append(FileCheck(name, True, f"{checkpoint.num_bytes:,} bytes, checksums match"))
        except (DamagedFileError, OtherRunError) as error:
            files.append(FileCheck(name, False, str(error), isinstance(error, OtherRunError)))
    try:
        positions, trouble, _ = whole_frames(FrameFile.read_only(folder / TRACE), TRACE)
        newest, _ = newest_whole(checkpoints, positions, trouble)
    except (OSError, OtherRunError):
        return files, None
    return files, None if newest is None else newest.state.steps


def _summary(folder: Path, files: list[FileCheck], last: int | None) -> str:
    damaged, foreign = (
        {file.name for file in files if not file.whole},
        {file.name for file in files if file.of_other_run},
    )
    if (folder / STATS).exists() and not damaged & {STATS, PARAMS, TRACE, CONFIG} | foreign & {METRICS}:
        return "The run can be read with nw.load."
    if last is not None and CONFIG not in damaged and not foreign & {TRACE, METRICS, STATS, BEST}:
        return f"The run can be resumed from step {last:,}."
    mixed = ": it has files of different runs" if foreign else ""
    return f"The run can neither be read nor resumed{mixed}."
