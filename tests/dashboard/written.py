"""Run folders written by hand, frame by frame, for tests of what follows them."""

import json

import numpy as np

from nowait.recording.framefile import FrameFile
from nowait.recording.frames import Kind, rows_body
from nowait.recording.journal import JournalWriter
from nowait.recording.lock import FileLock
from nowait.recording.metrics import append_metrics
from nowait.recording.rows import ARRIVAL_DTYPE, EVENT_DTYPE

CONFIG = {
    "problem": "NoisyQuadratic(dimension=10)",
    "method": {"type": "AsynchronousSGD", "stepsize": {"type": "DelayAdaptive", "gamma": 0.05}},
    "budget": {"steps": 400},
    "workers": 3,
    "seed": 7,
}


def rows_of(*jobs):
    """Rows of jobs ``(worker, started, time, delay)``, with 0 for the outcome "applied" and the steps 1, 2, ..."""
    rows = np.zeros(len(jobs), ARRIVAL_DTYPE)
    for place, (worker, started, time, delay) in enumerate(jobs):
        rows[place]["worker"], rows[place]["started"], rows[place]["time"] = worker, started, time
        rows[place]["delay"], rows[place]["compute_seconds"] = delay, time - started
        rows[place]["step"] = place + 1
    return rows


def jobs_of_workers(periods, until):
    """Rows of workers that deliver a gradient every so many seconds, in the order of time."""
    arrivals = sorted(
        (number * period, worker, job)
        for worker, period in enumerate(periods)
        for job, number in enumerate(range(1, int(until / period) + 1))
    )
    rows = rows_of(*((worker, time - periods[worker], time, 1) for time, worker, _ in arrivals))
    rows["job"] = [job for _, _, job in arrivals]
    rows["delay"] = [
        1 + sum(time - periods[worker] < other < time for other, _, _ in arrivals) for time, worker, _ in arrivals
    ]
    rows["version"] = rows["step"] - rows["delay"]
    return rows


def events_of(*events):
    """Rows of events ``(after, kind, worker, time)``."""
    return np.array(list(events), dtype=EVENT_DTYPE)


class WrittenRun:
    """A run whose files the test writes; it is running until ``close``."""

    def __init__(self, folder, workers=3, kept="full"):
        (folder / "checkpoints").mkdir(parents=True)
        self.folder = folder
        (folder / "config.json").write_text(json.dumps(CONFIG))
        self._lock = FileLock()
        self._lock.acquire(folder / ".lock", "locked")
        self.file = FrameFile.open(folder / "trace.rows", create=True)
        self.writer = JournalWriter.new(self.file, range(workers), kept)
        self.arrivals = 0

    def write(self, rows, events=(), notes=()):
        """Append a frame of rows, one of events and one of notes, as a recorder does."""
        body = rows_body(rows, len(rows))
        self.writer.write(Kind.ROWS, body, first=self.arrivals, count=len(rows))
        self.arrivals += len(rows)
        if len(events):
            self.writer.write(Kind.EVENTS, events.tobytes(), count=len(events))
        if notes:
            self.writer.notes(notes)

    def evaluate(self, step, time, loss, **metrics):
        """Append a line of metrics."""
        append_metrics(self.folder / "metrics.jsonl", step, step, time, loss, metrics, run="")

    def checkpoint(self, step):
        (self.folder / "checkpoints" / f"step_{step}").mkdir()

    def close(self):
        """Release the lock, as the end of the process does: the run was killed."""
        self._lock.release()
