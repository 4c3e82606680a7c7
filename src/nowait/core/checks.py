"""Checks of arguments, made once, where a value enters. Each error shows the value and says why it matters.

The checks return the value as a plain int or float: store that, because the argument may be a numpy scalar or a
fraction, which round differently and cannot be written to JSON.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")


def positive(value: object, name: str, why: str) -> float:
    """Return a finite number above zero, or raise."""
    number = _float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {shown(value)}: {why}")
    return number


def not_negative(value: object, name: str, why: str) -> float:
    """Return a finite number of at least zero, or raise."""
    number = _float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be a finite number of at least 0, got {shown(value)}: {why}")
    return number


def fraction(value: object, name: str, why: str) -> float:
    """Return a number in [0, 1), or raise."""
    number = _float(value)
    if not 0 <= number < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {shown(value)}: {why}")
    return number


def finite(value: object, name: str, why: str) -> float:
    """Return a finite number, or raise."""
    number = _float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {shown(value)}: {why}")
    return number


def at_least(least: int, value: object, name: str, why: str) -> int:
    """Return an integer of at least ``least``, or raise."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer of at least {least}, got {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {shown(value)}: {why}")
    return int(value)


def instance(value: object, kind: type[T], name: str, example: str) -> T:
    """Return the value if it is an instance of ``kind``; raise for anything else, the class itself included."""
    if isinstance(value, kind):
        return value
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(f"{name} must be an object, got the class {value.__name__}: write {value.__name__}(...)")
    raise TypeError(f"{name} must be a nowait {kind.__name__} such as {example}, got {shown(value)}")


def one_of(value: object, known: Sequence[str], name: str) -> str:
    """Return a text that is one of those known, or raise an error that lists them."""
    if not isinstance(value, str) or value not in known:
        nearest = did_you_mean(value, known)
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {shown(value)}{nearest}")
    return value


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a question that names the known name nearest to a wrong one; empty if none is near.

    >>> did_you_mean("RingMastr", ["rennala", "ringmaster"])
    "; did you mean 'ringmaster'?"
    """
    names = {one.lower(): one for one in known}
    wrong = str(name).lower()
    near = difflib.get_close_matches(wrong, names, n=1)
    near += [one for one in names if len(wrong) > 1 and one.startswith(wrong)]
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def store(target: Any, /, **values: Any) -> None:
    """Set fields of a frozen dataclass inside its ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(target, name, value)


def _float(value: object) -> float:
    """Return the value as a float, or NaN, which fails every check, if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def shown(value: object) -> str:
    """Return the repr of a value, cut to 80 characters, for error messages."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def no_renamed(given: Mapping[str, Any], function: str, **new_names: str) -> None:
    """Raise a TypeError for unknown keyword arguments; it names the new name of one that was renamed."""
    for name in given:
        hint = f": it is {new_names[name]}= now" if name in new_names else ""
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
