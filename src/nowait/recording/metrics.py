"""The file ``metrics.jsonl``: one line per evaluation, each with a checksum."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nowait.recording.files import append_line, replace_file
from nowait.recording.history import History, HistoryRecorder
from nowait.recording.identity import RUN, check_run

logger = logging.getLogger("nowait")

CHECKSUM = "crc32"
MOST_WARNINGS = 3
"""Number of damaged lines that a warning lists."""


class Line(NamedTuple):
    """A line of ``metrics.jsonl``: the id of the run, and an entry of its history."""

    run: str
    entry: tuple[int, int, float, float, dict[str, float]]
    """Step, gradients, time, loss and the other metrics."""


def metrics_line(run: str, step: int, gradients: int, time: float, loss: float, **metrics: float) -> str:
    """Return the line of one evaluation."""
    values = {RUN: run, "step": step, "gradients": gradients, "time": time, "loss": loss} | metrics
    return json.dumps(values | {CHECKSUM: _checksum_of(values)})


def append_metrics(
    path: Path, step: int, gradients: int, time: float, loss: float, metrics: Mapping[str, float], *, run: str
) -> None:
    """Append one evaluation."""
    append_line(path, metrics_line(run, step, gradients, time, loss, **metrics))


def write_metrics(path: Path, run: str, history: History) -> None:
    """Replace the file with all evaluations of a run."""
    lines = [metrics_line(run, **row) + "\n" for row in history.rows()]  # type: ignore[arg-type]
    replace_file(path, "".join(lines).encode())


def read_metrics(path: Path, run: str) -> tuple[HistoryRecorder, list[int]]:
    """Return the evaluations, and the numbers of the damaged lines; raise ``OtherRunError`` for those of another run.

    A last line without a line break was truncated by a crash and does not count as damaged.
    """
    recorder, broken = HistoryRecorder(), []
    lines = path.read_bytes().split(b"\n")
    for number, text in enumerate(lines[:-1], start=1):
        line = read_line(text)
        if line is None:
            broken.append(number)
        else:
            check_run(path, line.run, run)
            recorder.add(*line.entry)
    return recorder, broken


def read_history(path: Path, run: str) -> HistoryRecorder:
    """Return the evaluations; damaged lines are left out and logged as a warning."""
    recorder, broken = read_metrics(path, run)
    if broken:
        more = f" and {len(broken) - MOST_WARNINGS} more" if len(broken) > MOST_WARNINGS else ""
        numbers = ", ".join(map(str, broken[:MOST_WARNINGS]))
        logger.warning("%s is damaged: line %s%s is left out of the history", path, numbers, more)
    return recorder


def read_line(text: bytes) -> Line | None:
    """Return what a line says; None if it is damaged."""
    try:
        values = json.loads(text)
        if values.pop(CHECKSUM, None) != _checksum_of(values):
            return None
        run, step, gradients = str(values.pop(RUN)), int(values.pop("step")), int(values.pop("gradients"))
        time, loss = float(values.pop("time")), float(values.pop("loss"))
        metrics = {name: float(value) for name, value in values.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return Line(run, (step, gradients, time, loss, metrics))


def _checksum_of(values: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(values).encode())
