"""Checks of the values of single options. Typer calls them while it reads the command line, before any work starts."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import typer

from nowait.cli.exits import refused_as_options
from nowait.cli.names import choice

Check = Callable[[Any, str], object]
"""Takes the value and the name of the option; returns the value to use, or None to keep it."""
LARGEST_SEED = 2**63 - 1
FIGURES = (".png", ".pdf", ".svg")
"""How the name of a figure may end."""


def refusing(check: Check) -> Callable[[Any, Any, Any], Any]:
    """Return a callback for Typer: a value for which ``check`` raises ends the command with status 2."""

    def callback(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
        """Return the value to use, or end the command."""
        if value is None or context.resilient_parsing:
            return value
        with refused_as_options():
            found = check(value, _shown(parameter.opts[0]))
        return value if found is None else found

    return callback


def one_of(*known: str) -> Callable[[Any, Any, Any], Any]:
    """Return a callback that accepts these names in any case, and returns them as written here."""
    return refusing(lambda value, option: choice(value, known, option))


def _shown(name: str) -> str:
    """Return the name of an option, or that of an argument as the help shows it."""
    return name if name.startswith("-") else name.upper()


def _above_zero(value: float, option: str) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{option} must be a finite number above 0, got {value:g}")


def _finite(value: float, option: str) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{option} must be a finite number, got {value:g}")


def _seed(value: int, option: str) -> None:
    if value > LARGEST_SEED:
        raise ValueError(f"{option} must be at most 2^63 − 1, got {value}")


def _method(value: str | Iterable[str], option: str) -> None:
    from nowait.cli.methods import parse_method, parse_methods

    if isinstance(value, str):
        parse_method(value)
    else:
        parse_methods(value, option)


def _updates(value: Iterable[str], _: str) -> None:
    from nowait.cli.updates import parse_updates

    parse_updates(value)


def _update(value: str, _: str) -> None:
    from nowait.cli.updates import parse_one_update

    parse_one_update(value)


def _schedule(value: str, _: str) -> None:
    from nowait.cli.schedules import parse_schedule

    parse_schedule(value, steps=1)  # the steps of the run are not known yet


def _target(value: str, _: str) -> None:
    from nowait.cli.texts import target_of

    target_of(value)


def _slowdown(value: str, _: str) -> None:
    from nowait.cli.texts import slowdown_of

    slowdown_of(value)


def _audit(value: str, _: str) -> None:
    from nowait.cli.texts import audit_of

    audit_of(value)


def _metrics_port(value: str, option: str) -> None:
    from nowait.api.train_arguments import checked_metrics_address
    from nowait.cli.texts import port_of

    try:
        checked_metrics_address(port_of(value))
    except ValueError:
        raise ValueError(f"{option} must be a port, such as 9100, or HOST:PORT, got {value!r}") from None


def _new_folder(value: Path, option: str) -> None:
    from nowait.recording.fresh import is_taken, nearest_folder

    if is_taken(value):
        raise ValueError(f"{value} exists: choose another {option}")
    if not value.exists():
        _check_can_be_made(value, nearest_folder(value), option)


def _check_can_be_made(value: Path, parent: Path, option: str) -> None:
    """Raise if no folder can be made in the nearest parent that exists."""
    if not parent.is_dir():
        raise ValueError(f"cannot make the folder {value}, because {parent} is a file: choose another {option}")
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".nowait-"):
            pass
    except OSError as error:
        raise ValueError(f"cannot make the folder {value} ({error.strerror}): choose another {option}") from None


def _paper(value: str, _: str) -> None:
    from nowait.studies.reproduce import paper_named

    paper_named(value)


def _existing_folder(value: Path | list[Path], _: str) -> None:
    for folder in value if isinstance(value, list) else [value]:
        if not folder.exists():
            raise ValueError(f"there is no folder {folder}")
        if not folder.is_dir():
            raise ValueError(f"{folder} is a file, not the folder of a run")


def _new_file(value: Path, option: str) -> None:
    if value.is_dir():
        raise ValueError(f"{value} is a folder: give {option} a file")
    if not value.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {value.parent} for {option} {value}")


def _new_figure(value: Path, option: str) -> None:
    if value.suffix not in FIGURES:
        raise ValueError(f"{option} must end in {', '.join(FIGURES)}, got {value}")
    _new_file(value, option)


above_zero = refusing(_above_zero)
finite = refusing(_finite)
seed = refusing(_seed)
method = refusing(_method)
updates = refusing(_updates)
update = refusing(_update)
schedule = refusing(_schedule)
target = refusing(_target)
slowdown = refusing(_slowdown)
audit = refusing(_audit)
metrics_port = refusing(_metrics_port)
paper = refusing(_paper)
new_folder = refusing(_new_folder)
existing_folder = refusing(_existing_folder)


def folder_to_train(context: typer.Context, parameter: typer.CallbackParam, value: Path | None) -> Any:
    """Return the folder of a run, a new one or, with ``--resume``, that of a run; or end the command."""
    if value is not None and context.params.get("resume") and (value / "config.json").is_file():
        return value
    return new_folder(context, parameter, value)


new_file = refusing(_new_file)
new_figure = refusing(_new_figure)
