"""Names on the command line: short or of a class, in any case, with a suggestion for a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nowait.core import checks


def short_name(text: str, known: Mapping[str, Any], what: str) -> str:
    """Return the short name of a class or function that ``text`` names by its short name or its own, in any case.

    >>> import nowait as nw
    >>> short_name("MinibatchSGD", {"minibatch": nw.MinibatchSGD}, "method")
    'minibatch'
    """
    by_name = {_plain(kind.__name__): name for name, kind in known.items()}
    by_name |= {_plain(name): name for name in known}
    if _plain(text) in by_name:
        return by_name[_plain(text)]
    own_names = [kind.__name__ for kind in known.values()]
    nearest = checks.did_you_mean(text, [*own_names, *known])
    raise ValueError(f"there is no {what} {text!r}{nearest or ': choose one of ' + ', '.join(known)}")


def choice(text: str, known: Iterable[str], option: str) -> str:
    """Return one of the names that an option takes, in any case, or raise."""
    names = list(known)
    lower = text.strip().lower()
    if lower in names:
        return lower
    raise ValueError(f"{option} must be one of {', '.join(names)}, got {text!r}{checks.did_you_mean(text, names)}")


def check_parameters(given: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Raise if a parameter is given that its owner, a method or an update, does not have."""
    names = list(known)
    for name in given:
        if name not in names:
            nearest = checks.did_you_mean(name, names) or f"; it has {', '.join(names) or 'none'}"
            raise ValueError(f"{owner} has no parameter {name!r}{nearest}")


def parameters_of(text: str) -> dict[str, str]:
    """Return the parameters of ``name=value,name=value`` as texts."""
    items = [option_of(item) for item in text.split(",") if item.strip()]
    names = [name for name, _ in items]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]} is given twice in {text!r}")
    return dict(items)


def option_of(item: str) -> tuple[str, str]:
    """Return the name and the value of ``name=value``."""
    name, equals, value = item.strip().partition("=")
    if not equals:
        raise ValueError(f"{item!r} is not a parameter: write name=value")
    return name, value


def split_list(texts: Iterable[str]) -> list[str]:
    """Return the names of one or more lists with commas, each with its own parameters.

    A part with an equals sign and no name of its own is a further parameter of the name before it.

    >>> split_list(["sgd,muon:beta=0.9,nesterov=false,adam"])
    ['sgd', 'muon:beta=0.9,nesterov=false', 'adam']
    """
    parts: list[str] = []
    for text in texts:
        for number, part in enumerate(text.split(",")):
            if number and "=" in part and ":" not in part.partition("=")[0]:
                parts[-1] += f",{part.strip()}"
            else:
                parts.append(part.strip())
    return parts


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


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")
