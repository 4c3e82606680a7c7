"""Names the part of an object that cannot be pickled, for error messages."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from nowait.core.pickling import dumps

MOST_LEVELS = 20
"""How deep an object is searched."""


class _Part(NamedTuple):
    item: Any
    name: str
    users: str = ""
    """The functions through which it was reached, such as ", used by forward"."""

    def inner(self, item: Any, suffix: str) -> _Part:
        return _Part(item, f"{self.name}{suffix}", self.users)

    def used(self, item: Any, name: str) -> _Part:
        return _Part(item, name, f", used by {self.name}{self.users}")


def unpicklable_part(parts: Mapping[str, Any]) -> str | None:
    """Return the name of the innermost part that cannot be pickled; None if each of these parts can be.

    >>> unpicklable_part({"size": 3, "files": {"log": [1, (line for line in ())]}})
    "files['log'][1]"
    """
    part = _first_unpicklable([_Part(item, name) for name, item in parts.items()], set())
    if part is None:
        return None
    seen = {id(part.item)}
    for _ in range(MOST_LEVELS):
        inner = _first_unpicklable(_parts_of(part), seen)
        if inner is None:
            break
        part = inner
        seen.add(id(part.item))
    return part.name + part.users


def attributes_of(item: Any) -> dict[str, Any]:
    """Return the attributes that are pickled with an object, by name."""
    if isinstance(item, type):
        return dict(vars(item))
    try:
        state = item.__getstate__()
    except Exception:  # the code of the user, which may be what fails
        state = getattr(item, "__dict__", {})
    pieces = state if isinstance(state, tuple) else (state,)  # with __slots__ there are two dictionaries
    return {name: value for piece in pieces if isinstance(piece, dict) for name, value in piece.items()}


def _first_unpicklable(parts: Iterable[_Part], seen: set[int]) -> _Part | None:
    """Return the first part that cannot be pickled, found by halves: a data set may have millions of items."""
    left = [part for part in parts if id(part.item) not in seen]
    while len(left) > 1:
        half = left[: len(left) // 2]
        left = left[len(half) :] if _can_be_pickled([part.item for part in half]) else half
    return left[0] if left and not _can_be_pickled(left[0].item) else None


def _can_be_pickled(item: Any) -> bool:
    try:
        dumps(item, lambda _: None)
    except Exception:
        return False
    return True


def _parts_of(part: _Part) -> Iterator[_Part]:
    """Yield what is pickled with an object: its items or attributes, and what a function uses."""
    item = part.item
    if isinstance(item, Mapping):
        yield from (part.inner(value, f"[{key!r:.40}]") for key, value in item.items())
    elif isinstance(item, list | tuple | set | frozenset):
        yield from (part.inner(value, f"[{number}]") for number, value in enumerate(item))
    elif isinstance(item, MethodType):
        yield part.inner(item.__self__, ".__self__")
        yield part.inner(item.__func__, "")
    elif isinstance(item, partial):
        yield from (part.inner(getattr(item, name), f".{name}") for name in ("func", "args", "keywords"))
    elif isinstance(item, FunctionType):
        yield from (part.used(value, name) for name, value in _used_by(item))
    else:
        yield from (part.inner(value, f".{name}") for name, value in attributes_of(item).items())
        if not isinstance(item, type):
            yield _Part(type(item), type(item).__name__)


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield names and values of default arguments, of variables of functions around it, and of globals."""
    yield from ((f"the default argument {value!r:.60}", value) for value in function.__defaults__ or ())
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that is not assigned yet
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
        elif isinstance(instruction.argval, CodeType):  # a function that this one defines
            yield from _global_names(instruction.argval)
