"""The file ``best.safetensors``: the params of the best evaluation of a run."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nowait.core.memory import to_host
from nowait.core.problem import TRAINING_LOSS, Evaluation
from nowait.core.types import Vector
from nowait.recording.files import replace_by_pieces, tensor_pieces
from nowait.recording.identity import RUN, check_run
from nowait.recording.monitor import Monitor

logger = logging.getLogger("nowait")

BEST = "best.safetensors"
WriteModel = Callable[[Vector, Path, Mapping[str, str]], None]


@final
@dataclass(frozen=True)
class BestFile:
    """Keeps the params of the best evaluation in a file, whose metadata say of which step and how good they are.

    All state is in the file: the process that evaluates may be replaced, and a resumed run goes on from it. The file
    has the tensors of the model if the problem can write them, else one tensor "params". ``run`` is the id of the run.
    """

    path: Path
    monitor: Monitor
    run: str = ""

    def offer(self, step: int, evaluation: Evaluation, params: Any, write_model: WriteModel | None) -> None:
        """Write the evaluated params if they are better than those in the file. A crash leaves the old file."""
        value = self.monitor.value(evaluation.values)
        if not self.monitor.is_better(value, self._best()):
            return
        metadata = {RUN: self.run, "step": str(step), "monitor": self.monitor.name, "value": repr(value)}
        try:
            if write_model is None:
                replace_by_pieces(self.path, tensor_pieces({"params": to_host(params)}, metadata))
            else:
                self._write_model(params, metadata, write_model)
        except Exception as error:  # a full disk, or a model that cannot be saved: no reason to lose the run
            logger.warning("%s could not be written at step %d: %r", self.path.name, step, error)

    def _write_model(self, params: Any, metadata: Mapping[str, str], write_model: WriteModel) -> None:
        unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}.unfinished")
        unfinished.unlink(missing_ok=True)  # it may be a link
        try:
            write_model(params, unfinished, metadata)
            os.replace(unfinished, self.path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _best(self) -> float | None:
        """Return the value of the file; None if there is none, or one of another metric."""
        found = best_metadata(self.path)
        if found.get("monitor") != self.monitor.name:
            return None
        try:
            value = float(found.get("value", math.nan))
        except ValueError:
            return None
        return value if math.isfinite(value) else None


def best_metadata(path: Path) -> dict[str, str]:
    """Return the step, the name and the value of the evaluation in the file; empty if it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError):
        return {}


def check_best(path: Path, run: str) -> None:
    """Raise ``OtherRunError`` if there is such a file and another run wrote it."""
    if (found := best_metadata(path)) and path.is_file():
        check_run(path, found.get(RUN), run)


def checked_keep_best(keep_best: Any) -> Monitor | None:
    """Return what ``keep_best`` names: a metric, or a metric and "min" or "max"; None keeps nothing."""
    if keep_best is None:
        return None
    if isinstance(keep_best, Monitor):
        return keep_best
    name, mode = keep_best if isinstance(keep_best, tuple | list) and len(keep_best) == 2 else (keep_best, None)
    if isinstance(name, str) and name == TRAINING_LOSS:
        raise ValueError('keep_best must be "loss" or a metric: the training loss is of no single iterate')
    return Monitor.of(name, mode, "keep_best")
