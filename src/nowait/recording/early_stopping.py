"""A callback that ends a run whose loss or metric no longer improves."""

from __future__ import annotations

import logging
import math
from typing import final

from nowait.core import checks
from nowait.core.problem import TRAINING_LOSS
from nowait.recording.callbacks import Callback, Control
from nowait.recording.history import History
from nowait.recording.monitor import Monitor

logger = logging.getLogger("nowait")


@final
class EarlyStopping(Callback):
    """Ends the run after ``patience`` evaluations in a row without a better value than the best one before them.

    ``monitor`` is "loss", "training_loss" or a metric of the problem. ``mode`` "min" or "max" says whether lower or
    higher values are better; None takes "min" for names that end in "loss", else "max". A value counts as better if the
    difference is more than ``min_change``. Evaluations without a value do not count. In a resumed run the evaluations
    before count too.
    """

    def __init__(
        self, monitor: str = "loss", *, patience: int = 10, mode: str | None = None, min_change: float = 0.0
    ) -> None:
        self._monitor = Monitor.of(monitor, mode)
        self._patience = checks.at_least(1, patience, "patience", "it counts evaluations without a better value")
        self._min_change = checks.not_negative(min_change, "min_change", "it is a difference of two values")
        self._restart()

    def _restart(self) -> None:
        self._seen = self._without = 0
        self._best: float | None = None

    def on_evaluate(self, control: Control) -> None:
        """Stop the run if it did not improve for long enough."""
        history = control.history
        if len(history) <= self._seen:  # another run
            self._restart()
        for value in self._values(history)[self._seen :]:
            self._look_at(value)
        self._seen = len(history)
        if self._without >= self._patience:
            logger.info("stopped: %s did not improve in %d evaluations", self._monitor.name, self._without)
            control.stop()

    def _values(self, history: History) -> list[float]:
        columns = {"loss": history.loss} | history.metrics
        if self._monitor.name == TRAINING_LOSS and TRAINING_LOSS not in columns:
            return []  # no gradient has arrived yet
        values: list[float] = self._monitor.value(columns).tolist()
        return values

    def _look_at(self, value: float) -> None:
        if self._monitor.is_better(value, self._best, self._min_change):
            self._best, self._without = value, 0
        elif self._best is not None and not math.isnan(value):
            self._without += 1
