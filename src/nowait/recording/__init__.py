"""The records of a run: trace, history, statistics and run folder."""

from nowait.recording.callbacks import Callback, Control, checked_callbacks
from nowait.recording.config import describe, name_of
from nowait.recording.early_stopping import EarlyStopping
from nowait.recording.fresh import fresh_folder
from nowait.recording.history import History, HistoryRecorder
from nowait.recording.interrupted import Interrupted
from nowait.recording.loggers import TensorBoard
from nowait.recording.phases import Phases
from nowait.recording.recorder import TraceRecorder
from nowait.recording.run import Run, Stats
from nowait.recording.sweep import Sweep, SweepRun
from nowait.recording.trace import Trace
from nowait.recording.unfinished import FolderState, folder_state, load
from nowait.recording.worker_stats import Placement, WorkerStats

__all__ = [
    "Callback",
    "Control",
    "EarlyStopping",
    "FolderState",
    "History",
    "HistoryRecorder",
    "Interrupted",
    "Phases",
    "Placement",
    "Run",
    "Stats",
    "Sweep",
    "SweepRun",
    "TensorBoard",
    "Trace",
    "TraceRecorder",
    "WorkerStats",
    "checked_callbacks",
    "describe",
    "folder_state",
    "fresh_folder",
    "load",
    "name_of",
]
