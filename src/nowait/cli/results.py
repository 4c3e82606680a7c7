"""Prints results as text or as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
from rich.console import Console


def open_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text literally: names of folders and methods may contain brackets or colons.

    Rich would interpret ``[red]`` as a colour and ``:heart:`` as an emoji.
    """
    return Console(stderr=stderr, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """Print the value as JSON on standard output; numbers that are not finite become null."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Return dataclasses, arrays and numpy numbers as types that JSON supports."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
