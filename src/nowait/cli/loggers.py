"""Experiment trackers named on the command line: ``--log wandb:project=mine``."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import typer

from nowait import loggers
from nowait.cli.exits import refused_as_options
from nowait.cli.names import parameters_of
from nowait.core import checks

LOGS = Path("logs")
"""TensorBoard's files of a run are in a folder of its name in here."""

ADVICE = {"wandb": "; set WANDB_MODE=offline to log without an account"}
"""What to do if a tracker cannot be opened."""


class TrackerError(ValueError):
    """A tracker cannot be opened."""


@final
class NamedLogger(loggers.Logger):
    """A logger that ``--log`` names: it says in one sentence why it cannot be opened, and a hint when it closes."""

    def __init__(self, option: str, logger: loggers.Logger, hint: str) -> None:
        self._option, self._logger, self._hint = option, logger, hint

    @property
    def name(self) -> str:
        """The name of the logger."""
        return self._logger.name

    def open(self, opening: loggers.Opening) -> str | None:
        """Open a run of the tracker; raise ``TrackerError`` if that fails."""
        try:
            return self._logger.open(opening)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise TrackerError(f"--log {self._option}: {lines[0].rstrip('.')}{ADVICE.get(self._option, '')}") from error

    def log(self, values: dict[str, float], step: int) -> None:
        """Write numbers."""
        self._logger.log(values, step)

    def close(self, state: str) -> None:
        """Close the run of the tracker, and print the hint."""
        self._logger.close(state)
        if self._hint:
            typer.echo(self._hint, err=True)


def loggers_of(texts: list[str] | None, folder: Path) -> list[loggers.Logger]:
    """Return the loggers that ``--log`` names, for the run in a folder; a wrong one ends the command with status 2."""
    with refused_as_options():
        return [_logger_of(text, folder.resolve().name) for text in texts or ()]


def race_loggers(texts: list[str] | None, folder: Path) -> Callable[[str], list[loggers.Logger]] | None:
    """Return a function of a run's name that makes the loggers of this run of a race; None without ``--log``."""
    if not texts:
        return None
    loggers_of(texts, folder)  # wrong ones are refused before the race starts
    return lambda run_name: loggers_of(texts, folder.with_name(f"{folder.resolve().name}-{run_name}"))


def _logger_of(text: str, run_name: str) -> loggers.Logger:
    name, _, rest = text.partition(":")
    if name not in TRACKERS:
        nearest = checks.did_you_mean(name, TRACKERS)
        raise ValueError(f"--log: there is no tracker {name!r}: choose one of {', '.join(TRACKERS)}{nearest}")
    settings = parameters_of(rest)
    return NamedLogger(name, TRACKERS[name](_imported(name), run_name, settings), _hint(name, run_name, settings))


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = "mlflow-skinny or mlflow" if name == "mlflow" else name
        words = f"--log {name} needs the package {package}, which cannot be imported ({error}): pip install {name}"
        raise ValueError(words) from error


def _wandb(module: Any, run_name: str, settings: Mapping[str, str]) -> loggers.Logger:
    return loggers.Wandb(module, **{"name": run_name, **settings})


def _trackio(module: Any, run_name: str, settings: Mapping[str, str]) -> loggers.Logger:
    return loggers.Trackio(module, **{"name": run_name, **settings})


def _mlflow(module: Any, run_name: str, settings: Mapping[str, str]) -> loggers.Logger:
    _check_names("mlflow", settings, ("experiment", "run_name"))
    return loggers.MLflow(module, experiment=settings.get("experiment"), run_name=settings.get("run_name", run_name))


def _tensorboard(module: Any, run_name: str, settings: Mapping[str, str]) -> loggers.Logger:  # noqa: ARG001
    _check_names("tensorboard", settings, ("folder",))
    return loggers.TensorBoard(_tensorboard_folder(run_name, settings))


def _tensorboard_folder(run_name: str, settings: Mapping[str, str]) -> Path:
    return Path(settings.get("folder", LOGS / run_name))


def _hint(name: str, run_name: str, settings: Mapping[str, str]) -> str:
    """Return where the tracker's files are and how to look at them; empty if the tracker says so itself."""
    if name != "tensorboard":
        return ""
    folder = _tensorboard_folder(run_name, settings)
    return f"TensorBoard files: {folder}; look at them with: tensorboard --logdir {shlex.quote(str(folder))}"


def _check_names(tracker: str, settings: Mapping[str, str], known: tuple[str, ...]) -> None:
    for name in settings:
        if name not in known:
            nearest = checks.did_you_mean(name, known)
            raise ValueError(f"--log {tracker} has no setting {name!r}: it has {', '.join(known)}{nearest}")


TRACKERS: dict[str, Callable[[Any, str, Mapping[str, str]], loggers.Logger]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}
