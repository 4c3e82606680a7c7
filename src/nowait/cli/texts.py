"""Values of options that are written as text: numbers with commas, slowdowns, targets, addresses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

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
