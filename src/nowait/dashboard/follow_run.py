"""Follows the folder of one run: reads only what is new, and begins again if the run was resumed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, final

from nowait.dashboard.curve import Curve
from nowait.dashboard.follow_metrics import MetricsFollower
from nowait.dashboard.follow_trace import TraceFollower
from nowait.dashboard.summary import RunSummary
from nowait.dashboard.workers import Straggler, WorkerRow, rows_of_the_whole_run, straggler_of
from nowait.recording.checkpoints import NAME
from nowait.recording.folder import CHECKPOINTS
from nowait.recording.run import CONFIG, METRICS, STATS, TRACE
from nowait.recording.unfinished import FolderState, folder_state

LARGEST_JSON = 1 << 24
SECONDS_BEHIND = 3.0
"""A trace is written about once per second: if it was written this long ago, nothing has arrived since."""


@final
class FollowedRun:
    """What is known of a run. ``refresh`` reads its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = FolderState.NOT_A_RUN
        self.config: dict[str, Any] = {}
        self.stats: dict[str, Any] = {}
        self.checkpoints: list[int] = []
        """The steps of the checkpoints that are kept."""
        self.written = 0.0
        """When the trace or the metrics were written last, by the wall clock; 0 if they do not exist."""
        self.present = 0.0
        """The time of the run up to which it is known what happened."""
        self.refreshed = float("-inf")
        """When the files were read last, by the wall clock."""
        self.restarts = 0
        self._begin()

    def _begin(self) -> None:
        self.summary = RunSummary()
        self.trace = TraceFollower(self.folder / TRACE)
        self._metrics = MetricsFollower(self.folder / METRICS)
        self._config_signature: tuple[float, float] | None = None

    def refresh(self, wall: float) -> None:
        """Read what is new; ``wall`` is the time by the wall clock."""
        self.refreshed = wall
        self.state = folder_state(self.folder)
        if not self._read_trace():
            self.restarts += 1
            self._begin()
            self._read_trace()
        self._read_metrics()
        self._read_small_files()
        self.written = max(modified(self.folder / TRACE), modified(self.folder / METRICS))
        self.present = self._present(wall)

    @property
    def is_over(self) -> bool:
        """True if the run is not running now."""
        return self.state is not FolderState.RUNNING

    def workers(self) -> tuple[list[WorkerRow], Straggler | None]:
        """Return the workers, the slowest first, and the straggler: as of now, or of the whole run if it is over."""
        trace = self.summary.trace
        rows = [] if trace is None else trace.workers(self.present)
        rows = rows_of_the_whole_run(rows) if self.is_over else rows
        return rows, straggler_of(rows, is_over=self.is_over)

    @property
    def has_more(self) -> bool:
        """True if not everything has been read yet."""
        return self.trace.has_more or self._metrics.has_more

    @property
    def share_read(self) -> float:
        """Which share of the trace has been read."""
        return self.trace.share_read

    @property
    def problems(self) -> list[str]:
        """What is wrong with the files, in sentences."""
        lines = self._metrics.damaged_lines
        found = [f"{METRICS} has {lines} damaged line{'s' * (lines > 1)}, left out of the curves"] if lines else []
        return [*found, *([self.trace.problem] if self.trace.problem else [])]

    @property
    def epoch(self) -> str:
        """Changes whenever points, columns or lanes that were sent before are no longer valid."""
        return "-".join(map(str, (self.restarts, *self.summary.generation)))

    def _read_trace(self) -> bool:
        """Read new frames; False if the file was truncated or replaced."""
        is_the_same = self.trace.read()
        self.summary.trace = self.trace.summary
        return is_the_same

    def _read_metrics(self) -> None:
        """Read new lines; all of them if the file was truncated or replaced."""
        points = self._metrics.read()
        if points is None:
            self.restarts += 1
            self.summary.curve, self._metrics = Curve(), MetricsFollower(self.folder / METRICS)
            points = self._metrics.read()
        for point in points or []:
            self.summary.add_point(point)

    def _read_small_files(self) -> None:
        self.checkpoints = _checkpoints(self.folder / CHECKPOINTS)
        signature = modified(self.folder / CONFIG), modified(self.folder / STATS)
        if signature != self._config_signature:
            self._config_signature = signature
            self.config, self.stats = _read_json(self.folder / CONFIG), _read_json(self.folder / STATS)

    def _present(self, wall: float) -> float:
        """Return the time of the latest arrival; later if the run is running and has not written for a while."""
        is_silent = self.state is FolderState.RUNNING and self.written > 0
        trace = self.summary.trace
        return (0.0 if trace is None else trace.arrived) + (
            max(0.0, wall - self.written - SECONDS_BEHIND) if is_silent else 0.0
        )


def modified(path: Path) -> float:
    """Return when a file was written, by the wall clock; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _checkpoints(folder: Path) -> list[int]:
    try:
        names = [NAME.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(name[1]) for name in names if name is not None)


def _read_json(path: Path) -> dict[str, Any]:
    """Return the entries of a file; none if it does not exist or is damaged. They are only shown, so this suffices."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= LARGEST_JSON:
            values = json.loads(path.read_bytes())
            return values if isinstance(values, dict) else {}
    return {}
