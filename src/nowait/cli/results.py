"""Results for people and for machines."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
from rich.console import Console


def open_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: names of folders and methods may hold brackets or colons.

    Rich would take ``[red]`` for a colour and ``:heart:`` for a picture.
    """
    return Console(stderr=stderr, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """The value as JSON on standard output; numbers that are not finite become null."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Dataclasses, arrays and numpy numbers as what JSON knows."""
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
