"""The common part of all loggers: when they log, what a failure does, and which run of the tracker is continued."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from nowait.recording.callbacks import Callback, Control
from nowait.recording.files import write_json
from nowait.recording.folder import TRACKERS
from nowait.recording.loggers.measurements import (
    Events,
    Mark,
    Setting,
    evaluation,
    flattened,
    measurements,
    state_of,
)
from nowait.recording.run import Run

log = logging.getLogger("nowait")


@final
@dataclass(frozen=True)
class Opening:
    """What a logger knows when it opens a run of its tracker."""

    config: dict[str, Setting]
    """The config of the run, without nesting."""
    step: int
    """0, or the step from which the run is resumed."""
    folder: Path | None = None
    """The folder of the run."""
    previous: str | None = None
    """What ``open`` returned when this run started, if it is resumed from its folder."""


class Logger(Callback, ABC):
    """Writes a run to an experiment tracker at every evaluation.

    Subclasses open, write and close a run of their tracker. An exception in ``open`` ends the run before it starts.
    Later ones are logged as a warning, once, and training goes on.
    """

    _since = Mark(0, 0, 0.0)
    _events = Events()
    _is_open = _has_warned = False

    @property
    @abstractmethod
    def name(self) -> str:
        """The tracker and the project, in a few words, for messages."""

    @abstractmethod
    def open(self, opening: Opening) -> str | None:
        """Open a run of the tracker, and return what is needed to continue it later; None if it cannot be continued."""

    @abstractmethod
    def log(self, values: dict[str, float], step: int) -> None:
        """Write numbers that belong to a step. Steps never decrease within a run, but a resumed run goes back."""

    @abstractmethod
    def close(self, state: str) -> None:
        """Close the run of the tracker. ``state`` is "finished", "diverged", "interrupted" or "failed"."""

    @final
    def on_start(self, control: Control) -> None:
        """Open the tracker's run, the one of before if this run is resumed."""
        self._since, self._events = Mark.of(control), Events()
        self._has_warned = False
        folder, config = control.folder, flattened(control.config)
        identity = self.open(Opening(config, control.steps, folder, _remembered(folder).get(self.name)))
        self._is_open = True
        if folder is not None and identity is not None:
            write_json(folder / TRACKERS, _remembered(folder) | {self.name: identity})

    @final
    def on_evaluate(self, control: Control) -> None:
        """Write the evaluation at its own step, and the other numbers at the current step."""
        evaluated, step = evaluation(control), control.steps
        if evaluated and control.loss_step not in (None, step):
            self._try(self.log, evaluated, control.loss_step)
            evaluated = {}
        self._log_numbers(control, evaluated)

    @final
    def on_worker_join(self, control: Control, worker: int) -> None:
        """Count it."""
        self._events = replace(self._events, joined=self._events.joined + 1)

    @final
    def on_worker_lost(self, control: Control, worker: int) -> None:
        """Count it."""
        self._events = replace(self._events, lost=self._events.lost + 1)

    @final
    def on_checkpoint(self, control: Control, path: Path) -> None:
        """Count it."""
        self._events = replace(self._events, checkpoints=self._events.checkpoints + 1)

    @final
    def on_end(self, control: Control, run: Run | None) -> None:
        """Write the last numbers, and close the tracker's run."""
        if not self._is_open:
            return
        self._is_open = False
        if Mark.of(control) != self._since:
            self._try(self._log_numbers, control, {})
        self._try(self.close, state_of(run))

    def warn(self, error: Exception) -> None:
        """Log a warning for the first failure of a run, and nothing for later ones."""
        if not self._has_warned:
            self._has_warned = True
            log.warning("logging to %s failed; the run goes on, and later failures are not shown: %r", self.name, error)

    def _log_numbers(self, control: Control, evaluated: dict[str, float]) -> None:
        self._try(self.log, evaluated | measurements(control, self._since, self._events), control.steps)
        self._since = Mark.of(control)

    def _try(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self.warn(error)


def _remembered(folder: Path | None) -> dict[str, str]:
    """Return the runs of trackers that a run folder names, by the name of the logger."""
    if folder is None or not (folder / TRACKERS).is_file():
        return {}
    try:
        found = json.loads((folder / TRACKERS).read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{folder / TRACKERS} is not JSON: remove it, and the tracker gets a new run") from None
    return {str(name): str(identity) for name, identity in found.items()} if isinstance(found, dict) else {}
