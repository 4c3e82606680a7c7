"""Methods named on the command line: ``ringmaster:max_delay=80,stepsize=constant``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import nowait as nw
from nowait import methods
from nowait.cli.names import check_parameters, parameters_of, short_name, value_of
from nowait.core import LMO, Method, Stepsize

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


def parse_method(text: str) -> Callable[[float], Method]:
    """Return a function of the stepsize that makes the method. ``stepsize=`` is ``adaptive`` or ``constant``.

    The name is short or that of the class: ``ringmaster:max_delay=80``, ``RingmasterASGD:max_delay=80``.
    """
    name, _, rest = text.partition(":")
    kind: Any = known_methods()[short_name(name, known_methods(), "method")]
    options = parameters_of(rest)
    rule = RULES[short_name(options.pop("stepsize", "adaptive"), RULES, "stepsize rule")]
    known = parameters(kind)
    check_parameters(options, known, name)
    values = {option: _value(value, known[option]) for option, value in options.items()}
    missing = [one for one, default in known.items() if default is dataclasses.MISSING and one not in values]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}: write {name}:{missing[0]}=...")
    kind(stepsize=rule(1.0), **values)  # raises if a value is refused
    return lambda size: kind(stepsize=rule(size), **values)


def parse_methods(texts: Iterable[str], option: str = "--method") -> dict[str, Callable[[float], Method]]:
    """Return the functions that make several methods, by their texts; raise if one is given twice."""
    found = {text: parse_method(text) for text in texts}
    if len(found) < len(list(texts)) or len({repr(make(1.0)) for make in found.values()}) < len(found):
        raise ValueError(f"{option} has one of them twice: {', '.join(texts)}")
    return found


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
