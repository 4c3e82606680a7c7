"""Checks of arguments, made once, where a value enters. Each error shows the value and says why it matters.

The checks return the value as a plain int or float: store that, because the argument may be a numpy scalar or a
fraction, which round differently and cannot be written to JSON.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
LIMIT = 1 << 63
"""Every integer argument is below it: larger ones do not fit into the arrays that count with them."""


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
    if int(value) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {shown(value)}: {why}")
    if int(value) >= LIMIT:
        raise ValueError(f"{name} must be below 2**63, got {shown(value)}: counters have 63 bits")
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


def flag(value: object, name: str) -> bool:
    """Return True or False, or raise for anything else: 60 or "no" would count as True."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {shown(value)}")


def flag_or_none(value: object, name: str) -> bool | None:
    """Return True, False or None, or raise for anything else."""
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    raise TypeError(f"{name} must be True, False or None, got {shown(value)}")


def function_or_none(value: Any, name: str, example: str) -> Any:
    """Return a function or None, or raise for anything else, a class included."""
    if value is None or (callable(value) and not isinstance(value, type)):
        return value
    raise TypeError(f"{name} must be a function, such as {example}, got {shown(value)}")


def listed(values: Any, name: str, of: str = "numbers") -> list[Any]:
    """Return the values of a list, tuple, one-dimensional array or generator, at least one, or raise.

    Mappings, sets, texts and bytes are refused, though Python can iterate over them: their order or their items are not
    what was meant. Masked arrays are, because their mask would be lost.
    """
    if isinstance(values, str | bytes | bytearray | Mapping | AbstractSet | type) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of {of}, got {shown(values)}")
    if isinstance(values, np.ndarray) and unmasked(values, name).ndim != 1:
        raise TypeError(f"{name} must be a list of {of}, got an array of shape {values.shape}")
    items = list(values)
    if not items:
        raise ValueError(f"{name} is empty: give at least one")
    return items


def unmasked(values: T, name: str) -> T:
    """Return values as they are, or raise a TypeError for a masked array, whose mask would be lost."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and its mask would be lost: leave the masked entries out, or fill them"
        )
    return values


def array(values: Any, name: str) -> Any:
    """Return numbers as an array, or raise for masked arrays and for lists of different lengths."""
    try:
        return np.asarray(unmasked(values, name))
    except ValueError:
        raise ValueError(f"{name} must be a list of numbers, got lists of different lengths") from None


def labels(value: Any) -> dict[str, Any]:
    """Return labels by name, or raise: for None there are none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f'labels must map names to values, as in {{"batch": 64}}, got {shown(value)}')
    names = [shown(name) if not isinstance(name, str) else name for name in value]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise ValueError(f"labels has two names that are written as {twice!r}, and only one would be kept: rename it")
    return dict(zip(names, value.values(), strict=True))


def path(value: Any, name: str = "folder") -> str:
    """Return the path of a folder or file as text, or raise for what cannot be one."""
    text = value.__fspath__() if hasattr(value, "__fspath__") and not isinstance(value, type) else value
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a path, such as 'runs/first', got {shown(value)}")
    if "\0" in text:
        raise ValueError(f"{name} must be a path, got {shown(value)}: no file system allows the character NUL")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be a path, got {shown(value)}: it is no valid text") from None
    return text


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a question that names the known name nearest to a wrong one; empty if none is near.

    >>> did_you_mean("RingMastr", ["rennala", "ringmaster"])
    "; did you mean 'ringmaster'?"
    """
    names = {one.lower(): one for one in known}
    if not isinstance(name, str):
        return ""
    wrong = name.lower()
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
    try:
        text = repr(value).replace("\n", " ")
    except Exception:  # a repr of the user's, or an integer with too many digits to print
        text = f"an object of {type(value).__name__} that cannot be printed"
    return text if len(text) <= 80 else text[:77] + "..."


def no_renamed(given: Mapping[str, Any], function: str, **new_names: str) -> None:
    """Raise a TypeError for unknown keyword arguments; it names the new name of one that was renamed."""
    for name in given:
        hint = f": it is {new_names[name]}= now" if name in new_names else ""
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
