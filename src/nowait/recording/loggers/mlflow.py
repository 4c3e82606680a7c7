"""MLflow."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, final

from nowait.recording.loggers.background import Background
from nowait.recording.loggers.logger import Logger, Opening
from nowait.recording.loggers.measurements import FINISHED, INTERRUPTED
from nowait.recording.loggers.settings import checked_module, under_own_name

SECONDS_TO_SEND = 60.0
"""How long the end of a run waits for what was not sent yet."""
LONGEST_VALUE = 500
"""Characters of a parameter; some servers take no more."""
NOT_ALLOWED = re.compile(r"[^\w\-. /]")
"""What MLflow does not allow in names."""


@final
class MLflow(Logger):
    """Writes a run to MLflow: ``callbacks=[nw.loggers.MLflow(mlflow, experiment="mine")]``.

    ``run_name`` and ``tags`` are those of ``mlflow.start_run``; the tracking URI is MLflow's own, as set by
    ``mlflow.set_tracking_uri`` or ``MLFLOW_TRACKING_URI``. If there is an active run, it is used and stays open.
    """

    def __init__(
        self,
        module: Any,
        *,
        experiment: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self._mlflow = checked_module(module, "start_run", "nw.loggers.MLflow(mlflow)")
        self._experiment, self._run_name, self._tags = experiment, run_name, dict(tags or {})
        self._run_id = ""
        self._owns_run = False
        self._background: Background | None = None

    @property
    def name(self) -> str:
        """MLflow and the experiment."""
        return f"MLflow {self._experiment or ''}".rstrip()

    def open(self, opening: Opening) -> str | None:
        """Use the active run, or start one; a resumed run continues the one of before."""
        active = self._mlflow.active_run()
        self._owns_run = active is None
        run = self._started(opening) if active is None else active
        self._run_id = str(run.info.run_id)
        self._background = Background("nowait-mlflow", self.warn)
        if opening.previous is None:  # params of a run cannot be changed
            self._log_params(opening.config if self._owns_run else under_own_name(opening.config))
        return self._run_id

    def _started(self, opening: Opening) -> Any:
        if opening.previous is not None:
            return self._mlflow.start_run(run_id=opening.previous)
        if self._experiment is not None:
            self._mlflow.set_experiment(self._experiment)
        folder_name = None if opening.folder is None else opening.folder.name
        return self._mlflow.start_run(run_name=self._run_name or folder_name, tags=self._tags or None)

    def _log_params(self, config: Mapping[str, Any]) -> None:
        params = {_allowed(name): str(value)[:LONGEST_VALUE] for name, value in config.items()}
        try:
            self._mlflow.log_params(params)
        except Exception as error:
            self.warn(error)  # such as another value of the same param in the user's run

    def log(self, values: dict[str, float], step: int) -> None:
        """Send numbers in the background."""
        metrics, run_id, now = {_allowed(name): value for name, value in values.items()}, self._run_id, time.time()
        send = self._mlflow.log_metrics
        if self._background is not None:
            self._background.call(lambda: send(metrics, step=step, run_id=run_id, timestamp=int(1_000 * now)))

    def close(self, state: str) -> None:
        """Send what is left, note how the run ended, and end it if it was started here."""
        if self._background is not None and not self._background.close(SECONDS_TO_SEND):
            self.warn(TimeoutError(f"the last numbers were not sent within {SECONDS_TO_SEND:.0f} s"))
        self._background = None
        try:
            self._mlflow.set_tag("nowait.state", state)
        finally:
            if self._owns_run:
                self._mlflow.end_run(_status(state))


def _status(state: str) -> str:
    """Return MLflow's word for how a run ended."""
    return {FINISHED: "FINISHED", INTERRUPTED: "KILLED"}.get(state, "FAILED")


def _allowed(name: str) -> str:
    return NOT_ALLOWED.sub("_", name)
