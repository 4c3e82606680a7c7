"""Weights & Biases."""

from __future__ import annotations

from typing import Any, final

from nowait.recording.loggers.logger import Logger, Opening
from nowait.recording.loggers.measurements import FINISHED
from nowait.recording.loggers.settings import checked_module, checked_settings, under_own_name

STEP = "step"
"""The x axis of our metrics. W&B's own step would drop what comes after a larger one, as in a resumed run."""


@final
class Wandb(Logger):
    """Writes a run to Weights & Biases: ``callbacks=[nw.loggers.Wandb(wandb, project="mine")]``.

    ``settings`` are the arguments of ``wandb.init``. If there is an active run, it is used and stays open.
    """

    def __init__(self, module: Any, **settings: Any) -> None:
        self._wandb = checked_module(module, "init", "nw.loggers.Wandb(wandb)")
        self._settings = checked_settings(module.init, "wandb.init", settings)
        self._run: Any = None
        self._owns_run = False
        self._metrics: set[str] = set()

    @property
    def name(self) -> str:
        """W&B and the project."""
        return f"W&B {self._settings.get('project') or ''}".rstrip()

    def open(self, opening: Opening) -> str | None:
        """Use the active run, or start one; a resumed run continues the one of before."""
        self._run, self._metrics = self._wandb.run, set()
        self._owns_run = self._run is None
        if not self._owns_run:
            self._run.config.update(under_own_name(opening.config), allow_val_change=True)
        else:
            self._run = self._wandb.init(**self._arguments(opening))
        self._run.define_metric(STEP, hidden=True)
        return str(self._run.id)

    def _arguments(self, opening: Opening) -> dict[str, Any]:
        config = self._settings.get("config")
        arguments = self._settings | {"config": opening.config | (config if isinstance(config, dict) else {})}
        if opening.folder is not None:
            arguments = {"name": opening.folder.name} | arguments
        if opening.previous is not None:
            arguments = {"id": opening.previous, "resume": "allow", "allow_val_change": True} | arguments
        return arguments

    def log(self, values: dict[str, float], step: int) -> None:
        """Write one row, with its step as the x axis."""
        for metric in sorted(values.keys() - self._metrics):
            self._run.define_metric(metric, step_metric=STEP)
        self._metrics |= values.keys()
        self._run.log({**values, STEP: step})

    def close(self, state: str) -> None:
        """Note how the run ended, and finish it if it was started here."""
        try:
            self._run.summary["state"] = state
        finally:
            if self._owns_run:
                self._run.finish(exit_code=0 if state == FINISHED else 1)
            self._run = None
