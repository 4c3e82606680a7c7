"""Runs that have not finished: whether a run is still running, and what it has recorded so far."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from nowait.core import Outcome, checks
from nowait.core.types import Vector
from nowait.recording.checkpoints import CheckpointFolder, newest_whole
from nowait.recording.errors import DamagedFileError, NotARunError
from nowait.recording.files import read_json
from nowait.recording.folder import CHECKPOINTS, LOCK
from nowait.recording.framefile import FrameFile, no_follow
from nowait.recording.history import History, HistoryRecorder
from nowait.recording.identity import check_run, run_in
from nowait.recording.journal import Journal, whole_frames
from nowait.recording.metrics import read_history
from nowait.recording.rows import IS_VALID, OUTCOME_CODES, OUTCOMES
from nowait.recording.run import (
    CONFIG,
    METRICS,
    STATS,
    STILL_RUNNING,
    TRACE,
    Run,
    Stats,
    load_finished,
    read_config,
)
from nowait.recording.trace import Trace

WAS_KILLED = "the run was killed"
"""How ``stats.advice`` begins for a run whose process ended without writing the results."""


class FolderState(StrEnum):
    """Whether a folder has a run, and whether that run has finished."""

    NOT_A_RUN = "not a run"
    RUNNING = "running"
    """Another process, or this one, is running it now."""
    KILLED = "killed"
    """Its process ended without writing the results. It can be resumed from its newest checkpoint."""
    INTERRUPTED = "interrupted"
    """A signal ended it. Its results are written, and it can be resumed."""
    FINISHED = "finished"


def folder_state(folder: str | Path) -> FolderState:
    """Return the state of a run's folder. Nothing is changed, and no file but ``stats.json`` is read.

    A run is running while its process holds the lock of the folder.
    """
    path = Path(checks.path(folder))
    if _is_locked(path / LOCK):
        return FolderState.RUNNING
    if (path / STATS).is_file():
        return FolderState.INTERRUPTED if _was_interrupted(path / STATS) else FolderState.FINISHED
    if (path / CONFIG).is_file() and (path / TRACE).is_file():
        return FolderState.KILLED
    return FolderState.NOT_A_RUN


def load(folder: str | Path, *, unfinished: bool = False) -> Run:
    """Read a run that ``Run.save`` or ``nw.train`` wrote. No pickle is loaded; damaged files are refused.

    With ``unfinished=True`` it also reads a run that is still running or was killed, as far as its files go: params are
    those of the newest checkpoint, trace and history are those written so far, and ``stats.advice`` says that the run
    has not finished.
    """
    source = Path(checks.path(folder))
    if (source / STATS).is_file() or not (source / TRACE).is_file():
        return load_finished(source)
    if not unfinished:
        state = folder_state(source)
        raise NotARunError(
            f"{source} is a run that has not finished ({state}): it has no {STATS}. "
            f"nw.load(folder, unfinished=True) reads what there is so far"
        )
    try:
        return _load_unfinished(source)
    except DamagedFileError:
        if (source / STATS).is_file():  # it has finished meanwhile
            return load_finished(source)
        raise


def _load_unfinished(folder: Path) -> Run:
    config, file = read_config(folder), FrameFile.read_only(folder / TRACE)
    run = run_in(config, folder)
    positions, trouble, _ = whole_frames(file, folder / TRACE)
    if not positions:
        raise DamagedFileError(folder / TRACE, trouble.rpartition("is damaged: ")[2])
    journal = Journal(file, folder / TRACE, positions[-1].length)
    check_run(folder / TRACE, journal.run, run)
    history = _history(folder / METRICS, run)
    checkpoint, _ = newest_whole(CheckpointFolder(folder / CHECKPOINTS, 1, run), positions, trouble)
    params: Vector = np.empty(0) if checkpoint is None else checkpoint.state.params
    trace = _trace(journal, float(history.time[-1]) if len(history) else 0.0)
    stats = _stats(trace, history, config, folder_state(folder))
    return Run(params=params, last=params, trace=trace, history=history, stats=stats, config=config)


def _history(path: Path, run: str) -> History:
    """Return the losses so far: none before the first evaluation, when the file does not exist yet."""
    if not path.is_file():
        return HistoryRecorder().history()
    return read_history(path, run).history()


def _trace(journal: Journal, evaluated: float) -> Trace:
    """Return the trace so far; the latest time in the records counts as its end."""
    events = journal.events()
    times = [evaluated, *(float(block["time"][-1]) for block in journal.blocks() if len(block)), *events["time"][-1:]]
    return Trace(
        journal,
        events,
        journal.initial_workers,
        seconds=float(max(times)),
        last_norm=0.0,
        kept=journal.kept,
        num_arrivals=journal.num_arrivals,
        placements=tuple(journal.placements),
        loading=journal.loading,
        sent=journal.sent,
        checksums=journal.checksums,
        notes=journal.notes(),
    )


def _stats(trace: Trace, history: History, config: dict[str, Any], state: FolderState) -> Stats:
    """Return the totals so far. Lost and cancelled tickets are not in the trace: these counts are 0."""
    outcomes, valid, steps = np.zeros(len(OUTCOMES), np.int64), np.zeros(0, np.int64), 0
    for block in trace.blocks():
        outcomes += np.bincount(block["outcome"], minlength=len(OUTCOMES))
        counts = np.bincount(block["worker"][IS_VALID[block["outcome"]]], minlength=len(valid))
        counts[: len(valid)] += valid
        valid, steps = counts, max(steps, int(block["step"].max(initial=0)))
    valid = np.pad(valid, (0, max(0, int(max(trace.initial_workers, default=-1)) + 1 - len(valid))))
    steps = max([steps, *history.step[-1:].tolist()])  # the history may be ahead of the trace
    counted = int(valid.sum())
    return Stats(
        steps=steps,
        gradients=max([counted, *history.gradients[-1:].tolist()]),
        dropped=int(outcomes[OUTCOME_CODES[Outcome.DROPPED]]),
        rejected=int(outcomes[OUTCOME_CODES[Outcome.REJECTED]]),
        late=int(outcomes[OUTCOME_CODES[Outcome.LATE]]),
        lost=0,
        cancelled=0,
        seconds=trace.seconds,
        wall_seconds=trace.seconds,
        work_share=valid / max(1, counted),
        engine=_engine(config),
        diverged=False,
        advice=_advice(state, steps),
        interrupted=state is not FolderState.RUNNING,
        notes=len(trace.notes),
        last_note=str(trace.notes[-1]) if trace.notes else "",
        by_worker=trace.by_worker(),
    )


def _engine(config: dict[str, Any]) -> str:
    """Return the name of the engine as ``Stats`` has it."""
    engine = config.get("engine")
    kind = engine.get("type") if isinstance(engine, dict) else engine
    return {"RayCluster": "ray", "Listen": "listen", None: "processes"}.get(kind, str(kind))


def _advice(state: FolderState, steps: int) -> str:
    if state is FolderState.RUNNING:
        return f"{STILL_RUNNING}: these are its records up to step {steps}"
    return f"{WAS_KILLED} after step {steps} or later: nw.resume continues it from its newest checkpoint"


def _was_interrupted(path: Path) -> bool:
    try:
        return bool(read_json(path).get("interrupted", False))
    except DamagedFileError:
        return False


def _is_locked(path: Path) -> bool:
    """Return True if a process holds the lock of a folder. A shared lock, held for an instant, tells."""
    try:
        descriptor = os.open(path, os.O_RDONLY | no_follow())
    except OSError:
        return False
    try:
        import fcntl  # POSIX only; elsewhere there are no runs with real workers

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    finally:
        os.close(descriptor)  # also releases the lock
    return False
