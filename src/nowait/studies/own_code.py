"""Python code of the user's own, named as ``file.py:name``: methods and speed models."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nowait.core import Method, checks

Make = Callable[[float], Method]
"""Makes a method with a stepsize."""
METHOD = "a method of your own"
ENDING = ".py"
TRIED = 0.01
"""The stepsize with which a method is made once, to check it."""


def names_a_file(text: str) -> bool:
    """Return True if a text names code in a Python file.

    >>> names_a_file("mine.py:Mine:rounds=3"), names_a_file("ringmaster:max_delay=3")
    (True, False)
    """
    return f"{ENDING}:" in f"{text}:"  # a file without a name is refused later


def parts_of(text: str, what: str = METHOD) -> tuple[Path, str]:
    """Return the file and the name in ``file.py:name``; ``what`` is for errors."""
    place, colon, name = text.rpartition(":")
    if not colon or not place.endswith(ENDING) or not name:
        raise ValueError(f"{what} is given as file.py:name, got {text!r}")
    return Path(place), name


def object_in(text: str, what: str) -> Any:
    """Return what ``file.py:name`` names."""
    path, name = parts_of(text, what)
    module = module_in(path)
    made = getattr(module, name, None)
    if made is None:
        raise ValueError(f"{path} has no {name}{checks.did_you_mean(name, vars(module))}")
    return made


def makers_in(text: str) -> dict[str, Make]:
    """Return the functions of the stepsize that ``file.py:name`` gives, by choice of parameters.

    A class or function is the only choice, with an empty name; a dictionary has several.
    """
    made = object_in(text, METHOD)
    choices = {str(key): value for key, value in made.items()} if isinstance(made, Mapping) else {"": made}
    if not choices:
        raise ValueError(f"{text} is an empty dictionary: it needs a function of the stepsize for each choice")
    for make in choices.values():
        check_maker(make, text)
    return {choice: partial(make) for choice, make in choices.items()}  # a class alone would be taken for a mistake


def check_maker(make: Any, text: str, stepsize: Any = TRIED, **parameters: Any) -> None:
    """Raise unless a class or function of the user makes methods; it is called once."""
    if not callable(make):
        raise TypeError(f"{text} must be a class or a function of the stepsize, or a dictionary of them, got {make!r}")
    signature = signature_of(make)
    try:
        if signature is not None:
            signature.bind(stepsize, **parameters)
    except TypeError as error:
        words = " and ".join(["the stepsize", *parameters]) if parameters else "the stepsize alone, a number"
        raise TypeError(f"{text} is called with {words}: {error}") from None
    checks.instance(make(stepsize, **parameters), Method, f"what {text} makes", "a subclass of nw.Method")


def signature_of(make: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a class or function; None for one written in C that does not tell it."""
    try:
        return inspect.signature(make)
    except ValueError:
        return None


def module_in(path: Path) -> Any:
    """Import a Python file, once, under its own name unless another module has it.

    Its folder stays on the path of modules, so that it can import its neighbours.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    file = path.resolve()
    imported = (sys.modules.get(file.stem), sys.modules.get(_unique_name(file)))
    known = next((module for module in imported if _is_from(module, file)), None)
    if known is not None:
        return known
    try:
        return _imported(file)
    except ModuleNotFoundError as error:
        raise ValueError(f"there is no module {error.name}, which {path} needs") from error
    except SyntaxError as error:
        raise ValueError(f"{error.filename or path}, line {error.lineno}: {error.msg}") from None


def _imported(file: Path) -> Any:
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    importlib.invalidate_caches()
    if file.stem not in sys.modules:
        found = importlib.util.find_spec(file.stem)
        if found is not None and found.origin is not None and Path(found.origin).resolve() == file:
            return importlib.import_module(file.stem)
    spec = importlib.util.spec_from_file_location(_unique_name(file), file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _is_from(module: Any, file: Path) -> bool:
    source = getattr(module, "__file__", None)
    return source is not None and Path(source).resolve() == file


def _unique_name(file: Path) -> str:
    return f"nowait_own_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}_{file.stem}"
