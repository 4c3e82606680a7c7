"""Checks of arguments, made once, where a value enters. Each error says what came and why it matters."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeVar

T = TypeVar("T")


def positive(value: object, name: str, why: str) -> float:
    """A finite number above zero."""
    if not _is_number(value) or not 0 < value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}: {why}")
    return float(value)  # type: ignore[arg-type]


def not_negative(value: object, name: str, why: str) -> float:
    """A finite number of at least zero."""
    if not _is_number(value) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}: {why}")
    return float(value)  # type: ignore[arg-type]


def fraction(value: object, name: str, why: str) -> float:
    """A number in [0, 1)."""
    if not _is_number(value) or not 0 <= value < 1:  # type: ignore[operator]
        raise ValueError(f"{name} must be at least 0 and below 1, got {value!r}: {why}")
    return float(value)  # type: ignore[arg-type]


def at_least(least: int, value: object, name: str, why: str) -> int:
    """An integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}: {why}")
    return int(value)


def instance(value: object, kind: type[T], name: str, example: str) -> T:
    """An object of this kind, not something else and not the class itself."""
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(f"{name} must be an object, got the class {value.__name__}: write {example}")
    raise TypeError(f"{name} must be a nowait {kind.__name__} such as {example}, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
