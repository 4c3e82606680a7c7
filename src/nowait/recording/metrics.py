"""The file ``metrics.jsonl``: one line per evaluation, each with a checksum."""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nowait.recording.files import append_line, replace_file
from nowait.recording.history import History, HistoryRecorder

logger = logging.getLogger("nowait")

CHECKSUM = "crc32"
MOST_WARNINGS = 3
"""Number of damaged lines that a warning lists."""


def metrics_line(step: int, gradients: int, time: float, loss: float, **metrics: float) -> str:
    """Return the line of one evaluation."""
    values = {"step": step, "gradients": gradients, "time": time, "loss": loss} | metrics
    return json.dumps(values | {CHECKSUM: _checksum_of(values)})


def append_metrics(
    path: Path, step: int, gradients: int, time: float, loss: float, metrics: Mapping[str, float]
) -> None:
    """Append one evaluation."""
    append_line(path, metrics_line(step, gradients, time, loss, **metrics))


def write_metrics(path: Path, history: History) -> None:
    """Replace the file with all evaluations of a run."""
    lines = [metrics_line(**row) + "\n" for row in history.rows()]  # type: ignore[arg-type]
    replace_file(path, "".join(lines).encode())


def read_metrics(path: Path, *, with_checksums: bool) -> tuple[HistoryRecorder, list[int]]:
    """Return the evaluations, and the numbers of the damaged lines.

    A last line without a line break was truncated by a crash and does not count as damaged. Files of older versions
    have no checksums.
    """
    recorder, broken = HistoryRecorder(), []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        entry = read_line(line, with_checksums)
        if entry is None:
            broken.append(number)
        else:
            recorder.add(*entry)
    return recorder, broken


def read_history(path: Path, *, with_checksums: bool) -> HistoryRecorder:
    """Return the evaluations; damaged lines are left out and logged as a warning."""
    recorder, broken = read_metrics(path, with_checksums=with_checksums)
    if broken:
        more = f" and {len(broken) - MOST_WARNINGS} more" if len(broken) > MOST_WARNINGS else ""
        numbers = ", ".join(map(str, broken[:MOST_WARNINGS]))
        logger.warning("%s is damaged: line %s%s is left out of the history", path, numbers, more)
    return recorder


def read_line(line: bytes, with_checksums: bool) -> tuple[int, int, float, float, dict[str, float]] | None:
    """Return step, gradients, time, loss and the other metrics of a line; None if it is damaged."""
    try:
        values = json.loads(line)
        checksum = values.pop(CHECKSUM, None)
        if checksum != _checksum_of(values) and (with_checksums or checksum is not None):
            return None
        step, gradients = int(values.pop("step")), int(values.pop("gradients"))
        time, loss = float(values.pop("time")), float(values.pop("loss"))
        metrics = {name: float(value) for name, value in values.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return step, gradients, time, loss, metrics


def _checksum_of(values: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(values).encode())
