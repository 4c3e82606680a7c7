"""Lists methods, stepsize rules, updates and schedules: for ``nowait methods`` and at the end of ``--help``."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nowait.cli.methods import RULES, known_methods, parameters
from nowait.cli.names import short_name
from nowait.cli.schedules import SCHEDULES, schedule_parameters
from nowait.cli.updates import UPDATES, update_parameters

INDENT = "    "
TORCH_UPDATES = "torch.NAME for any optimiser of torch.optim, such as torch.RAdam:weight_decay=0.1"
WIDEST = 100
TAKE_METHODS = ("race", "simulate", "train", "serve", "sweep", "tune")
TAKE_UPDATES = ("simulate", "train", "serve", "sweep", "tune", "tolerance")
"""They take schedules, too."""


class Listed(NamedTuple):
    """A method, stepsize rule, update or schedule."""

    name: str
    kind: Callable[..., Any]
    parameters: dict[str, Any]
    """Defaults by name; ``MISSING`` for required ones."""

    @property
    def signature(self) -> str:
        """The name with its parameters, as it is written after ``--method``; required ones have no value."""
        texts = [
            name if default is dataclasses.MISSING else f"{name}={_text(default)}"
            for name, default in self.parameters.items()
        ]
        return self.name + (":" + ",".join(texts) if texts else "")

    @property
    def explanation(self) -> str:
        """The docstring."""
        return (inspect.getdoc(self.kind) or "").replace("``", "`")


def methods() -> list[Listed]:
    """Return all methods."""
    return [Listed(name, kind, parameters(kind)) for name, kind in known_methods().items()]


def rules() -> list[Listed]:
    """Return the stepsize rules."""
    return [Listed(name, kind, {}) for name, kind in RULES.items()]


def updates() -> list[Listed]:
    """Return all updates."""
    return [Listed(name, make, update_parameters(make)) for name, make in UPDATES.items()]


def schedules() -> list[Listed]:
    """Return the schedules that have parameters."""
    kinds = {name: make for name, make in SCHEDULES.items() if schedule_parameters(make)}
    return [Listed(name, make, schedule_parameters(make)) for name, make in kinds.items()]


def everything() -> list[Listed]:
    """Return all methods, stepsize rules, updates and schedules."""
    return [*methods(), *rules(), *updates(), *schedules()]


def listed(name: str) -> Listed:
    """Return the method, stepsize rule, update or schedule of this name, or raise."""
    found = {one.name: one for one in everything()}
    kinds = {one.name: one.kind for one in found.values()}
    return found[short_name(name, kinds, "method, stepsize rule, update or schedule")]


def overview(width: int) -> str:
    """Return all methods, stepsize rules, updates and schedules with a line about each."""
    return "\n".join(_overview_lines(width))


def details(one: Listed, width: int) -> str:
    """Return everything about one method, stepsize rule, update or schedule."""
    head = f"{one.signature} ({one.kind.__name__})"
    required = [name for name, default in one.parameters.items() if default is dataclasses.MISSING]
    words = f"\nRequired: {', '.join(required)}." if required else ""
    paragraphs = one.explanation.split("\n\n")
    return f"{head}{words}\n\n" + "\n\n".join(_wrapped(paragraph, width) for paragraph in paragraphs)


def print_listing(one: Listed | None, *, as_json: bool) -> None:
    """Print everything about one of them, or a line about each."""
    from nowait.cli.results import open_console, print_json

    if as_json:
        print_json([_as_dictionary(each) for each in (everything() if one is None else (one,))])
        return
    width = min(open_console().width, WIDEST)
    print(overview(width) if one is None else details(one, width))


def epilog_of(command: Callable[..., None]) -> str | None:
    """Return the end of a command's help: the methods, updates and schedules that it takes, with their parameters."""
    sentences = []
    if command.__name__ in TAKE_METHODS:
        sentences.append(f"Methods and their parameters: {_signatures(methods())}.")
    if command.__name__ in TAKE_UPDATES:
        sentences.append(f"Updates and their parameters: {_signatures(updates())}; {TORCH_UPDATES}.")
        sentences.append(f"Schedules and their parameters: {_signatures(schedules())}.")
    return " ".join([*sentences, "The command nowait methods explains them."]) if sentences else None


def _signatures(entries: list[Listed]) -> str:
    return "; ".join(one.signature for one in entries)


def _overview_lines(width: int) -> Iterator[str]:
    sections = {
        "Methods (--method)": methods(),
        "Stepsize rules (stepsize= of a method, --rule of tolerance)": rules(),
        "Updates (--update)": updates(),
        "Schedules (--schedule)": schedules(),
    }
    for title, entries in sections.items():
        yield f"{title}:"
        for one in entries:
            yield _signature(one, width)
            yield textwrap.fill(one.explanation.splitlines()[0], width, initial_indent=INDENT, subsequent_indent=INDENT)
        yield ""
    yield textwrap.fill(
        "A parameter without a value is required; the steps of linear and cosine are those of the run. Updates are "
        f"also {TORCH_UPDATES}. Names of classes are accepted as well, in any case: "
        "RingmasterASGD:max_delay=80. For more: nowait methods NAME",
        width,
    )


def _as_dictionary(one: Listed) -> dict[str, Any]:
    texts = {
        name: None if default is dataclasses.MISSING else _text(default) for name, default in one.parameters.items()
    }
    return {"name": one.name, "class": one.kind.__name__, "parameters": texts, "explanation": one.explanation}


def _signature(one: Listed, width: int) -> str:
    """Return the signature, indented; a long one goes on in the next line after a comma."""
    lines = [""]
    for piece in re.split(r"(?<=,)", one.signature):
        if len(lines[-1]) + len(piece) > width - len(INDENT):
            lines.append("")
        lines[-1] += piece
    return "  " + f"\n{INDENT}  ".join(lines)


def _wrapped(paragraph: str, width: int) -> str:
    return paragraph if paragraph.startswith(">>>") else textwrap.fill(" ".join(paragraph.split()), width)


def _text(value: Any) -> str:
    """Return a default as it is written on the command line; three dots for one that cannot be written there."""
    if isinstance(value, bool | None):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}"
    return value if isinstance(value, str) else "…"
