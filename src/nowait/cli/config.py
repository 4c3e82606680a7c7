"""A TOML file with the names of a command's options."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

OWN_NAME = "config"


def load_config(context: Any, parameter: Any, path: Path | None) -> Path | None:  # noqa: ARG001 (typer calls it)
    """Take the options of a command from a file; what the command line says goes before it.

    Names are those of the options, with dashes or underscores; a table with the name of the command may hold them, so
    that one file serves several commands. An unknown name is refused, with the nearest known one.
    """
    if path is None:
        return None
    values = _of_command(_read(path), context.info_name)
    known = {_plain(option.lstrip("-")): item.name for item in context.command.params for option in item.opts}
    known.pop(OWN_NAME, None)
    defaults = {}
    for name, value in values.items():
        if _plain(name) not in known:
            near = difflib.get_close_matches(_plain(name), known, n=1)
            meant = f"; did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise ValueError(f"{path}: nowait {context.info_name} has no option {name!r}{meant}")
        defaults[known[_plain(name)]] = value
    context.default_map = (context.default_map or {}) | defaults
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def _of_command(values: dict[str, Any], command: str) -> dict[str, Any]:
    """The options outside tables, and those in the table of this command."""
    own = values.get(command, {})
    outside = {name: value for name, value in values.items() if not isinstance(value, dict)}
    return outside | (own if isinstance(own, dict) else {})


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()
