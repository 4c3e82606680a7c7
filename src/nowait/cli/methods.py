"""Methods named on the command line: ``ringmaster:max_delay=80,stepsize=constant``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable

import nowait as nw
from nowait import methods
from nowait.core import LMO, Method, Stepsize

RULES: dict[str, Callable[[float], Stepsize]] = {"adaptive": nw.DelayAdaptive, "constant": nw.Constant}
ENDINGS = ("ASGD", "SGD")
CAREFUL = 0.5
"""The default stepsize is this fraction of 1/L, divided by ``Method.stepsize_divisor``."""


def known_methods() -> dict[str, type[Method]]:
    """Return the methods with a stepsize rule, by their names on the command line."""
    found = {}
    for name in methods.__all__:
        kind = getattr(methods, name)
        if inspect.isclass(kind) and issubclass(kind, Method) and "stepsize" in _fields(kind):
            short = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)
            found[short.lower()] = kind
    return found


def parse_method(text: str) -> Callable[[float], Method]:
    """Return a function of the stepsize that makes the method. ``stepsize=`` is ``adaptive`` or ``constant``."""
    name, _, rest = text.partition(":")
    kinds = known_methods()
    if name not in kinds:
        raise ValueError(f"there is no method {name!r}: choose one of {', '.join(sorted(kinds))}")
    options = dict(option_of(item) for item in rest.split(",") if item)
    rule = options.pop("stepsize", "adaptive")
    if rule not in RULES:
        raise ValueError(f"stepsize must be one of {', '.join(RULES)}, got {rule!r}")
    fields = _fields(kinds[name])
    for option in options:
        if option not in fields:
            offered = ", ".join(field for field in fields if field != "stepsize") or "none"
            raise ValueError(f"{name} has no parameter {option!r}; it has {offered}")
    texts = {field.name for field in dataclasses.fields(kinds[name]) if isinstance(field.default, str)}  # type: ignore[arg-type]
    values = {option: value if option in texts else value_of(value) for option, value in options.items()}
    missing = [field for field, needed in fields.items() if needed and field not in values and field != "stepsize"]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}: write {name}:{missing[0]}=...")
    return lambda size: kinds[name](stepsize=RULES[rule](size), **values)  # type: ignore[call-arg]


def default_stepsize(method: Method, unit: float, workers: int) -> tuple[float, str]:
    """Return the default stepsize, and the text of what it is half of; ``unit`` is 1/L."""
    if isinstance(method.usual_update(), LMO):
        raise ValueError(f"the stepsize of {type(method).__name__} is the length of a step: set --stepsize")
    divisor = method.stepsize_divisor(workers)
    words = "1/L" if divisor == 1 else "1/(ML)" if divisor == workers else f"1/({divisor:.3g}·L)"
    return CAREFUL * unit / divisor, words


def _fields(kind: type[Method]) -> dict[str, bool]:
    """Return the parameters of a method, and whether each is required."""
    if not dataclasses.is_dataclass(kind):
        return {}
    return {
        field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(kind)
        if field.init
    }


def option_of(item: str) -> tuple[str, str]:
    """Return the name and the value of ``name=value``."""
    name, equals, value = item.partition("=")
    if not equals:
        raise ValueError(f"{item!r} is not a parameter: write name=value")
    return name, value


def value_of(text: str) -> bool | int | float:
    """Return a number, or true or false."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ValueError(f"{text!r} is neither a number nor true or false")
