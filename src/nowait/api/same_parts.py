"""Compares the parts that ``nw.resume`` is given with those that the run has had."""

from __future__ import annotations

import json
from typing import Any

from nowait.recording import describe
from nowait.recording.errors import ANYWAY, OtherSettingsError


def check_same_part(config: dict[str, Any], name: str, given: Any, folder: object) -> None:
    """Raise if the method, update or output is described otherwise than in ``config.json``.

    Of code that is not of this library, only the names of classes and the fields of dataclasses can be compared.
    """
    found = difference(config.get(name), plain(given), name)
    if found is not None:
        entry, was, now = found
        raise OtherSettingsError(
            f"{entry} of the run in {folder} is {was}, but {name}= has {now}: pass the {name} of the run, or {ANYWAY} "
            f"to go on with another (the run can then not be replayed)"
        )


def plain(value: Any) -> Any:
    """Return the description of a value as ``config.json`` has it."""
    return json.loads(json.dumps(describe(value)))


def difference(was: Any, now: Any, entry: str) -> tuple[str, str, str] | None:
    """Return the first entry in which two descriptions differ, and both values; None if they are equal."""
    if not (isinstance(was, dict) and isinstance(now, dict)) or _name_of_class(was) != _name_of_class(now):
        return None if was == now else (entry, _shown(was), _shown(now))
    found = (difference(was.get(key), now.get(key), f"{entry}.{key}") for key in was | now if key != "type")
    return next((difference for difference in found if difference is not None), None)


def _name_of_class(description: dict[str, Any]) -> str:
    """Return the name of the class that is described, without the function that it may have been defined in."""
    return str(description.get("type")).rpartition(".")[2]


def _shown(value: Any) -> str:
    text = f"{value['type']}" if isinstance(value, dict) and "type" in value else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
