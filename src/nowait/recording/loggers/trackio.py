"""Trackio."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, final

from nowait.recording.loggers.logger import Logger, Opening
from nowait.recording.loggers.measurements import FINISHED
from nowait.recording.loggers.settings import checked_module, checked_settings, under_own_name


@final
class Trackio(Logger):
    """Writes a run to Trackio: ``callbacks=[nw.loggers.Trackio(trackio, project="mine")]``.

    ``settings`` are the other arguments of ``trackio.init``. If there is an active run, it is used and stays open.
    """

    def __init__(self, module: Any, *, project: str = "nowait", **settings: Any) -> None:
        self._trackio = checked_module(module, "init", "nw.loggers.Trackio(trackio)")
        self._settings = checked_settings(module.init, "trackio.init", {"project": project, **settings})
        self._run: Any = None
        self._owns_run = False

    @property
    def name(self) -> str:
        """Trackio and the project."""
        return f"Trackio {self._settings['project']}"

    def open(self, opening: Opening) -> str | None:
        """Use the active run, or start one; a resumed run continues the one of before."""
        self._run = self._trackio.context_vars.current_run.get()
        self._owns_run = self._run is None
        if self._owns_run:
            with _printing_to_stderr():
                self._run = self._trackio.init(**self._arguments(opening))
        else:
            self._run.config.update(under_own_name(opening.config))
        return str(self._run.name)

    def _arguments(self, opening: Opening) -> dict[str, Any]:
        arguments = self._settings | {"config": opening.config | (self._settings.get("config") or {})}
        if opening.folder is not None:
            arguments = {"name": opening.folder.name} | arguments
        if opening.previous is not None:
            arguments |= {"name": opening.previous, "resume": "allow"}
        return arguments

    def log(self, values: dict[str, float], step: int) -> None:
        """Write one row."""
        self._run.log(values, step=step)

    def close(self, state: str) -> None:
        """Raise an alert if the run did not end well, and finish it if it was started here."""
        with _printing_to_stderr():
            try:
                if state != FINISHED:
                    self._run.alert(f"run {state}", level=self._trackio.AlertLevel.ERROR)
            finally:
                if self._owns_run:
                    self._trackio.finish()
                self._run = None


def _printing_to_stderr() -> contextlib.AbstractContextManager[Any]:
    """Keep what Trackio prints out of standard output, which may be JSON."""
    return contextlib.redirect_stdout(sys.stderr)
