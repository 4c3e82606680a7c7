"""Methods of the user's own in the benchmark: ``my_method.py:Mine``."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nowait.core import Method, checks
from nowait.studies.bench.contenders import EITHER, PLAIN, Contender, Make

TRIED = 0.01
"""The stepsize with which a method is made once, to check it."""


@cache
def own_contender(text: str) -> Contender:
    """Return the search space of ``file.py:name``.

    The name is a class or function of the stepsize, or a dictionary of such functions, one for each choice of
    parameters. Momentum is tried as well, unless the method makes its own update.
    """
    choices, methods = own_choices(text)
    own_updates = any(method.makes_its_own_update for method in methods)
    return Contender(choices, updates=PLAIN if own_updates else EITHER)


def own_choices(text: str) -> tuple[dict[str, Make], list[Method]]:
    """Return the functions of the stepsize that ``file.py:name`` gives, by choice of parameters, and examples."""
    made = own_object(text, "a method of your own")
    choices = {str(key): value for key, value in made.items()} if isinstance(made, Mapping) else {"": made}
    if not choices:
        raise ValueError(f"{text} is an empty dictionary: it needs a function of the stepsize for each choice")
    return choices, [_checked(make, text) for make in choices.values()]


def own_object(text: str, what: str) -> Any:
    """Return what ``file.py:name`` names; ``what`` is for errors."""
    path, name = _parts(text, what)
    module = _module(path)
    made = getattr(module, name, None)
    if made is None:
        raise ValueError(f"{path} has no {name}{checks.did_you_mean(name, vars(module))}")
    return made


def own_source(text: str) -> str:
    """Return a hash of the file of a method: when it changes, the method is computed again."""
    return hashlib.sha256(_parts(text)[0].read_bytes()).hexdigest()[:16]


def normalised(text: str) -> str:
    """Return the same method for every way to write its path.

    >>> normalised("./methods//mine.py:Mine")
    'methods/mine.py:Mine'
    """
    path, name = _parts(text)
    return f"{path.as_posix()}:{name}"


def _parts(text: str, what: str = "a method of your own") -> tuple[Path, str]:
    place, colon, name = text.rpartition(":")
    if not colon or not place.endswith(".py") or not name:
        raise ValueError(f"{what} is given as file.py:name, got {text!r}")
    return Path(place), name


def _checked(make: Make, text: str) -> Method:
    if not callable(make):
        raise TypeError(f"{text} must be a class or a function of the stepsize, or a dictionary of them, got {make!r}")
    try:
        method: Any = make(TRIED)
    except TypeError as error:
        raise TypeError(f"{text} is called with the stepsize alone, a number: {error}") from None
    return checks.instance(method, Method, f"what {text} makes", "a subclass of nw.Method")


@cache
def _module(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    name = f"nowait_bench_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from None
    return module
