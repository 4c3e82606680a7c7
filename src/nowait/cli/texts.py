"""Values of options that are written as text: numbers with commas, slowdowns, targets, addresses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from nowait.cli.names import check_parameters, choice, parameters_of
from nowait.core import Audit
from nowait.core.audit import LEAVE_OUT, STOP

OFF = "off"
AUDIT_PARAMETERS = ("on_difference", "tolerance")
ON_DIFFERENCE = tuple(name.replace(" ", "-") for name in (STOP, LEAVE_OUT))
"""As on the command line, where a space would need quotes."""
N = TypeVar("N", int, float)


def numbers(text: str, option: str) -> list[float]:
    """Return the numbers of a comma-separated text."""
    return _parsed(text, option, float, "numbers")


def whole_numbers(text: str, option: str) -> list[int]:
    """Return the integers of a comma-separated text."""
    return _parsed(text, option, int, "whole numbers")


def _parsed(text: str, option: str, kind: Callable[[str], N], what: str) -> list[N]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be {what} with commas between them, got {text!r}") from None


def slowdown_of(text: str | None) -> dict[int, float] | None:
    """Parse ``0=100,3=2``: worker 0 a hundred times slower, worker 3 twice."""
    if text is None:
        return None
    from nowait.api.train_arguments import checked_slowdown

    try:
        items = [(int(worker), float(factor)) for worker, factor in (item.split("=") for item in text.split(","))]
    except ValueError:
        raise ValueError(f"--slowdown must be written like 0=100,3=2 (worker=factor), got {text!r}") from None
    if len(dict(items)) < len(items):
        raise ValueError(f"--slowdown has a worker twice: {text}")
    try:
        return checked_slowdown(dict(items))
    except ValueError as error:
        raise ValueError(f"--{error}" if str(error).startswith("slowdown") else f"--slowdown: {error}") from None


def target_of(text: str | None) -> dict[str, Any] | None:
    """Parse ``accuracy=0.9,perplexity<=20``; without a direction it is that of ``nw.train``."""
    if text is None:
        return None
    target: dict[str, Any] = {}
    for item in text.split(","):
        found = re.fullmatch(r"\s*([^<>=]+?)\s*(<=|>=|=)\s*([^<>=]+)", item)
        try:
            name, sign, value = found.groups()  # type: ignore[union-attr]
            target[name] = float(value) if sign == "=" else (sign, float(value))
        except (AttributeError, ValueError):
            raise ValueError(f"--target must be written like accuracy=0.9,perplexity<=20, got {text!r}") from None
    from nowait.engines.budget import Budget

    Budget(target=target)  # raises if a value is not finite
    return target


def port_of(text: str | None) -> int | str | None:
    """Return ``--metrics-port`` as ``nw.train`` takes it: a number, or host:port."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def audit_of(text: str | None, *, otherwise: bool | None = None) -> bool | Audit | None:
    """Parse ``0.001``, ``0.001:on_difference=leave-out,tolerance=1e-6`` or ``off``; ``otherwise`` without it."""
    if text is None:
        return otherwise
    share, _, rest = text.partition(":")
    if share.strip().lower() == OFF:
        if rest:
            raise ValueError(f"--audit off compares nothing, so it has no parameters, got {text!r}")
        return False
    options = parameters_of(rest)
    check_parameters(options, AUDIT_PARAMETERS, "--audit")
    try:
        number = float(share)
        tolerance = float(options["tolerance"]) if "tolerance" in options else None
    except ValueError:
        raise ValueError(
            f"--audit must be written like 0.001, 0.001:on_difference=leave-out or off, got {text!r}"
        ) from None
    what = choice(options.get("on_difference", STOP), ON_DIFFERENCE, "on_difference of --audit")
    return Audit(number, tolerance, what.replace("-", " "))
