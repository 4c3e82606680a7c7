"""Methods named on the command line: ``ringmaster:max_delay=80,stepsize=constant``, ``mine.py:Mine:rounds=3``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import nowait as nw
from nowait import methods
from nowait.cli.names import check_parameters, parameters_of, short_name, value_of
from nowait.core import LMO, Method, Schedule, Stepsize
from nowait.studies.own_code import METHOD, TRIED, Make, check_maker, makers_in, names_a_file, object_in, signature_of

RULES: dict[str, Callable[[float], Stepsize]] = {"adaptive": nw.DelayAdaptive, "constant": nw.Constant}
"""The stepsize rules."""
ENDINGS = ("ASGD", "SGD")
CAREFUL = 0.5
"""The default stepsize is this fraction of 1/L, divided by ``Method.stepsize_divisor``."""


@cache
def known_methods() -> dict[str, type[Method]]:
    """Return the methods with a stepsize rule, by their short names."""
    found = {}
    for name in methods.__all__:
        kind = getattr(methods, name)
        if inspect.isclass(kind) and issubclass(kind, Method) and "stepsize" in _fields(kind):
            short = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)
            found[short.lower()] = kind
    return dict(sorted(found.items()))


def parse_method(text: str) -> Make:
    """Return a function of the stepsize that makes the method. ``stepsize=`` is ``adaptive`` or ``constant``.

    The name is short or that of the class, ``ringmaster:max_delay=80``, ``RingmasterASGD:max_delay=80``, or that of a
    class or function in a Python file, ``mine.py:Mine:rounds=3``. Without ``stepsize=``, methods of this library are
    adaptive, and those of a file get the number.
    """
    if names_a_file(text):
        return _own_method(text)
    name, _, rest = text.partition(":")
    kind: Any = known_methods()[short_name(name, known_methods(), "method")]
    options, rule = _options(rest)
    values = _values(options, parameters(kind), name)
    rule = RULES["adaptive"] if rule is None else rule
    kind(stepsize=rule(1.0), **values)  # raises if a value is refused
    return lambda size: kind(stepsize=rule(size), **values)


def parse_methods(texts: Iterable[str], option: str = "--method") -> dict[str, Make]:
    """Return the functions that make several methods, by their texts; raise if one is given twice.

    A dictionary in a Python file is several methods.
    """
    given = list(texts)
    made = {name: make for text in given for name, make in _choices(text).items()}
    if len(set(given)) < len(given) or len({repr(make(1.0)) for make in made.values()}) < len(made):
        raise ValueError(f"{option} has one of them twice: {', '.join(given)}")
    return made


def parameters_in(text: str) -> list[str]:
    """Return the names of the parameters that follow the name of a method in a Python file."""
    return list(parameters_of(_split_own(text)[1]))


def remembered_method(text: str) -> str:
    """Return a text that is valid in other folders too, with the absolute path of a Python file."""
    if not names_a_file(text):
        return text
    name, rest = _split_own(text)
    place, _, thing = name.rpartition(":")
    return f"{Path(place).resolve()}:{thing}" + (f":{rest}" if rest else "")


def scheduled(method: Method, schedule: Schedule | None) -> Method:
    """Return the method with its stepsize rule multiplied by a schedule."""
    if schedule is None:
        return method
    rule = getattr(method, "stepsize", None)
    if not isinstance(rule, Stepsize) or not dataclasses.is_dataclass(method):
        raise ValueError(
            f"--schedule multiplies a stepsize rule, which {type(method).__name__} has not: it must be a dataclass "
            f"with a field stepsize"
        )
    return dataclasses.replace(method, stepsize=nw.Scheduled(rule, schedule))


def _choices(text: str) -> dict[str, Make]:
    """Return the methods that a text names: several for a dictionary in a Python file."""
    if not names_a_file(text):
        return {text: parse_method(text)}
    name, rest = _split_own(text)
    if not isinstance(object_in(name, METHOD), Mapping):
        return {text: _own_method(text)}
    if rest:
        raise ValueError(f"{name} is a dictionary of methods, which has no parameters: omit {rest!r}")
    return {f"{name} {choice}": make for choice, make in makers_in(name).items()}


def _own_method(text: str) -> Make:
    """Return the function of the stepsize of ``file.py:name``, with its parameters if there are some."""
    name, rest = _split_own(text)
    make = object_in(name, METHOD)
    if isinstance(make, Mapping):
        raise ValueError(
            f"{name} is a dictionary of {len(make)} methods, but here one method is needed: name a class or a function "
            f"of the stepsize"
        )
    options, rule = _options(rest)
    values = _values(options, _own_parameters(make), name)

    check_maker(make, name, TRIED if rule is None else rule(TRIED), **values)
    return lambda size: make(size if rule is None else rule(size), **values)


def _split_own(text: str) -> tuple[str, str]:
    """Return ``file.py:name`` and the parameters after it."""
    place, ending, rest = text.partition(".py:")
    name, _, options = rest.partition(":")
    return f"{place}{ending}{name}", options


def _own_parameters(make: Any) -> dict[str, Any]:
    """Return the parameters after the stepsize of a class or function of the user, and their defaults."""
    signature = signature_of(make) if callable(make) else None
    items = [] if signature is None else list(signature.parameters.values())[1:]
    return {
        item.name: dataclasses.MISSING if item.default is item.empty else item.default
        for item in items
        if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    }


def _options(text: str) -> tuple[dict[str, str], Callable[[float], Stepsize] | None]:
    """Return the parameters of a method as texts, and its stepsize rule; None if none is named."""
    options = parameters_of(text)
    rule = options.pop("stepsize", None)
    return options, None if rule is None else RULES[short_name(rule, RULES, "stepsize rule")]


def _values(options: Mapping[str, str], known: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the values of parameters; raise if a name is not known or a required parameter is missing."""
    check_parameters(options, known, name)
    missing = [one for one, default in known.items() if default is dataclasses.MISSING and one not in options]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}: write {name}:{missing[0]}=...")
    return {option: _value(value, known[option]) for option, value in options.items()}


def parameters(kind: type[Method]) -> dict[str, Any]:
    """Return the parameters of a method besides the stepsize, and their defaults; ``MISSING`` for required ones."""
    return {name: default for name, default in _fields(kind).items() if name != "stepsize"}


def default_stepsize(method: Method, unit: float, workers: int) -> tuple[float, str]:
    """Return the default stepsize, and the text of what it is half of; ``unit`` is 1/L."""
    check_has_default_stepsize(method)
    divisor = method.stepsize_divisor(workers)
    words = "1/L" if divisor == 1 else "1/(ML)" if divisor == workers else f"1/({divisor:.3g}·L)"
    return CAREFUL * unit / divisor, words


def check_has_default_stepsize(method: Method) -> None:
    """Raise if the stepsize of a method cannot be chosen by L."""
    if isinstance(method.usual_update(), LMO):
        raise ValueError(f"the stepsize of {type(method).__name__} is the length of a step: set --stepsize")


def _value(text: str, default: Any) -> Any:
    """Return the value of a parameter: a text, a number, true, false, or none where that is the default."""
    if isinstance(default, str):
        return text
    return None if default is None and text.lower() == "none" else value_of(text)


def _fields(kind: type[Method]) -> dict[str, Any]:
    """Return the parameters of a method, and their defaults."""
    if not dataclasses.is_dataclass(kind):
        return {}
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(kind)
        if field.init
    }
