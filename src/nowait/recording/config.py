"""Describes the parts of a run as JSON values, for ``config.json``."""

from __future__ import annotations

import dataclasses
import math
import zlib
from typing import Any

import numpy as np

LONGEST_LIST = 64


def describe(value: Any) -> Any:
    """Return a JSON-compatible description of a value; a dataclass is described by its class and its fields."""
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, list | tuple | range):
        return [describe(item) for item in value] if len(value) <= LONGEST_LIST else _array(np.asarray(value))
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    described = getattr(value, "described", None)
    if callable(described) and not isinstance(value, type):
        return describe(described())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {"type": type(value).__name__} | {name: describe(getattr(value, name)) for name in names}
    return _plain(value)


def name_of(problem: Any) -> str:
    """Return the problem's ``repr``, or the name of its class if it has none of its own."""
    text = repr(problem)
    return type(problem).__name__ if text.startswith("<") else text


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating | np.integer):
        return _number(value)
    return {"type": getattr(value, "__qualname__", type(value).__qualname__)}


def _number(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if math.isfinite(plain) else str(plain)


def _array(value: np.ndarray[Any, Any]) -> Any:
    if value.size <= LONGEST_LIST:
        return describe(value.tolist())
    checksum = zlib.crc32(np.ascontiguousarray(value).tobytes())
    return {"array": list(value.shape), "dtype": str(value.dtype), "crc32": checksum}
