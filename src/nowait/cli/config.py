"""Reads the options of a command from a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from nowait.cli.exits import refused_as_options
from nowait.core import checks

OWN_NAME = "config"


def load_config(context: Any, parameter: Any, path: Path | None) -> Path | None:  # noqa: ARG001 (typer calls it)
    """Take the options of a command from a file; options on the command line override it.

    Names are those of the options, with dashes or underscores; a table with the name of the command may hold them, so
    that one file serves several commands. An unknown name is an error that suggests the nearest known one.
    """
    if path is None:
        return None
    with refused_as_options():
        context.default_map = (context.default_map or {}) | _defaults(context, path)
    return path


def _defaults(context: Any, path: Path) -> dict[str, Any]:
    """Return the values in a file by the names of the command's parameters."""
    values = _of_command(_read(path), context, path)
    known = {_plain(option.lstrip("-")): item for item in context.command.params for option in item.opts}
    known.pop(OWN_NAME, None)
    defaults = {}
    for name, value in values.items():
        if _plain(name) not in known:
            nearest = checks.did_you_mean(_plain(name), known).replace("_", "-")
            raise ValueError(f"{path}: nowait {context.info_name} has no option {name!r}{nearest}")
        option = known[_plain(name)]
        defaults[option.name] = _fitting(value, option, f"{path}: {name}")
    return defaults


def _fitting(value: Any, option: Any, name: str) -> Any:
    """Return the value as the option takes it: a list for an option that may be repeated, else comma-separated text."""
    is_flag = getattr(option, "is_flag", False)
    if isinstance(value, dict) or isinstance(value, bool) != bool(is_flag):
        wanted = "true or false" if is_flag else "a number or a text"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    if getattr(option, "multiple", False):
        return value if isinstance(value, list) else [value]
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder, not a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def _of_command(values: dict[str, Any], context: Any, path: Path) -> dict[str, Any]:
    """Return the options outside tables and in the table of this command; every table must be that of a command."""
    commands = set(context.parent.command.commands) if context.parent is not None else {context.info_name}
    for name, value in values.items():
        if isinstance(value, dict) and name not in commands:
            raise ValueError(f"{path}: there is no command {name!r}{checks.did_you_mean(name, commands)}")
    outside = {name: value for name, value in values.items() if not isinstance(value, dict)}
    own: dict[str, Any] = values.get(context.info_name, {})
    return outside | own


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
