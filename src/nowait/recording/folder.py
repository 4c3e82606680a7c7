"""The folder of a run, written during the run so that it can be resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from nowait.core import checks
from nowait.recording.best import BEST, check_best
from nowait.recording.checkpoints import Checkpoint, CheckpointFolder, Written, newest_whole
from nowait.recording.errors import DamagedFileError
from nowait.recording.files import check_contents, sealed, sync, vector_checksum, write_json
from nowait.recording.framefile import FrameFile
from nowait.recording.fresh import is_taken
from nowait.recording.history import HistoryRecorder
from nowait.recording.identity import RUN, check_run
from nowait.recording.journal import whole_frames
from nowait.recording.lock import FileLock
from nowait.recording.metrics import append_metrics, read_history, write_metrics
from nowait.recording.recorder import TraceRecorder
from nowait.recording.run import CONFIG, METRICS, PARAMS, STATS, TRACE, Run, read_stats

logger = logging.getLogger("nowait")

LOCK, CHECKPOINTS, LOG = ".lock", "checkpoints", "workers.log"
TRACKERS = "trackers.json"
"""The runs of experiment trackers that this run is written to, so that a resumed run continues them."""
FIRST_FILES = (CONFIG, TRACE, METRICS, LOCK, LOG, f"{LOG}.1", TRACKERS)
"""The files of a run that was created but never started."""


@final
class RunFolder:
    """Writes a run into its folder: metrics immediately, checkpoints on request, the rest at the end.

    ``run`` is the id of the run, which all files have.
    """

    def __init__(self, path: str | Path, keep: int, run: str) -> None:
        self.path = Path(checks.path(path)).absolute()
        self.run = run
        self._keep = keep
        self._lock = FileLock()
        self._trace: FrameFile | None = None
        self._created = self._began = False
        self.checkpoints = CheckpointFolder(self.path / CHECKPOINTS, keep, run)

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: dict[str, Any],
        keep: int,
        recorder: TraceRecorder,
        first: Callable[[TraceRecorder], Checkpoint],
    ) -> RunFolder:
        """Create a new folder with a checkpoint of the start; raise ``FileExistsError`` if it exists and is not empty.

        ``config`` has the id of the run. The folder is prepared under a temporary name and then renamed, so that a
        crash leaves no folder that cannot be resumed.
        """
        target = Path(checks.path(path)).absolute()
        if is_taken(target):
            raise FileExistsError(
                f"{target} exists, and nothing is overwritten: choose another folder, such as "
                f"nw.fresh_folder({str(path)!r}), or use nw.resume if it is a run"
            )
        folder = cls(target.with_name(f".{target.name}.creating"), keep, config[RUN])
        folder._clear_leftovers()
        folder._created = True
        try:
            (folder.path / CHECKPOINTS).mkdir(parents=True)
            folder.lock()
            folder.write_config(config)
            folder._trace = FrameFile.open(folder.path / TRACE, create=True)
            recorder.write_to(folder._trace, folder.run)
            folder.write_checkpoint(first(recorder))
            folder._rename(target)
        except BaseException:  # for example, the disk is full: remove the files
            folder.leave()
            raise
        return folder

    def _clear_leftovers(self) -> None:
        """Remove the temporary folder that a crash during ``create`` left."""
        if self.path.is_dir() and not self.path.is_symlink():
            self.lock()
            self._created = True
            self.leave()

    def _rename(self, target: Path) -> None:
        os.rename(self.path, target)
        sync(target.parent)
        self.path = target
        self.checkpoints = CheckpointFolder(target / CHECKPOINTS, self._keep, self.run)
        self.checkpoints.read(0)

    def lock(self) -> None:
        """Lock the folder against other processes. The lock is released when this process ends, also by a crash."""
        refusal = f"{self.path} is locked: another process is running this run; wait for it to end, or stop it"
        self._lock.acquire(self.path / LOCK, refusal)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def begin(self) -> None:
        """Mark the run as started: from now on ``leave`` keeps its files."""
        self._began = True

    def leave(self) -> None:
        """Release the lock. If the run was created but never started, remove its files, and no others."""
        if self._created and not self._began:
            self.checkpoints.remove_all()
            for name in FIRST_FILES:
                with contextlib.suppress(OSError):
                    (self.path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.path.rmdir()
        self.close()

    # During the run

    def write_config(self, config: dict[str, Any]) -> None:
        """Write ``config.json``, with a checksum."""
        write_json(self.path / CONFIG, sealed(config))

    def evaluated(
        self, step: int, gradients: int, time: float, loss: float, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Append one line of metrics."""
        append_metrics(self.path / METRICS, step, gradients, time, loss, metrics or {}, run=self.run)

    def write_checkpoint(self, checkpoint: Checkpoint) -> Written | None:
        """Write a checkpoint; return None if this step already has one."""
        trace = self._trace
        return self.checkpoints.write(checkpoint, sync_trace=lambda: None if trace is None else trace.sync())

    def keep_trace(self) -> None:
        """Write ``trace.rows`` again if somebody has deleted or replaced it. Call it where nothing else writes it."""
        if self._trace is None or self._trace.is_at(self.path / TRACE):
            return
        logger.warning(
            "%s was deleted or replaced while the run writes it: it is written again, with everything that it had",
            self.path / TRACE,
        )
        self._trace.move_to(self.path / TRACE)

    def finish(self, run: Run) -> None:
        """Write the results that ``nw.load`` reads (the trace is already written), and release the lock."""
        run.write_results(self.path)
        self.close()

    # To resume

    def is_finished(self) -> bool:
        """Return True if the run reached the end of its budget and its results are intact.

        A run that was interrupted by a signal is not finished. Damaged results are reported by a warning, and False is
        returned, so that they are computed again.
        """
        if not (self.path / STATS).is_file():
            return False
        try:
            stats, contents, _ = read_stats(self.path / STATS, self.run)
            if not stats.interrupted:
                check_contents(self.path / PARAMS, contents)
        except DamagedFileError as error:
            logger.warning("%s: resuming from the newest checkpoint to write the results again", error)
            return False
        return not stats.interrupted

    def latest(self) -> Checkpoint:
        """Return the newest intact checkpoint with the history up to it. Damaged newer ones are logged as warnings.

        Raises ``OtherRunError`` if a file that is needed is that of another run.
        """
        trace = self._open_trace()
        positions, trouble, run = whole_frames(trace, self.path / TRACE)
        if positions:
            check_run(self.path / TRACE, run, self.run)
        check_best(self.path / BEST, self.run)
        checkpoint, damages = newest_whole(self.checkpoints, positions, trouble)
        if checkpoint is None:
            reason = "; ".join(damages[:3]) or "there is none"
            raise DamagedFileError(self.path, f"it has no intact checkpoint to resume from ({reason})")
        for damage in dict.fromkeys(damages):
            logger.warning("%s: resuming from the older checkpoint of step %d", damage, checkpoint.state.steps)
        self._trace = trace
        return dataclasses.replace(checkpoint, history=self._cut_history(checkpoint))

    def _open_trace(self) -> FrameFile:
        try:
            return FrameFile.open(self.path / TRACE)
        except OSError as error:
            raise DamagedFileError(self.path / TRACE, f"it cannot be opened ({error.strerror})") from None

    def rewind(self, checkpoint: Checkpoint, recorder: TraceRecorder) -> None:
        """Truncate the files at the checkpoint and remove newer ones. After a crash here the run is still resumable."""
        if self._trace is None:
            raise RuntimeError("call latest before rewind: the trace is not open")
        self.checkpoints.remove_later(checkpoint.state.steps)
        (self.path / STATS).unlink(missing_ok=True)
        self._trace.truncate(checkpoint.position.length)
        write_metrics(self.path / METRICS, self.run, checkpoint.history.history())
        recorder.resume(self._trace, checkpoint.position, checkpoint.initial_workers, checkpoint.tally)
        recorder.params_are(checkpoint.state.steps, vector_checksum(checkpoint.state.params))
        self._began = True

    def _cut_history(self, checkpoint: Checkpoint) -> HistoryRecorder:
        path = self.path / METRICS
        found = read_history(path, self.run) if path.is_file() else HistoryRecorder()
        if checkpoint.is_start:
            return HistoryRecorder()
        kept = found.cut(checkpoint.state.steps)
        if len(kept.entries) < checkpoint.evaluations:
            missing = checkpoint.evaluations - len(kept.entries)
            logger.warning("%s is damaged: %d losses before step %d are missing", path, missing, checkpoint.state.steps)
        elif kept.checksum(checkpoint.evaluations) != checkpoint.losses_checksum:
            logger.warning(
                "%s is damaged: the losses before step %d are not those that the checkpoint was made with, but of "
                "another history of the run; params are not affected",
                path,
                checkpoint.state.steps,
            )
        return kept
