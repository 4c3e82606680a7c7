"""What a run is, in a few words, from its ``config.json``. The entries may be anything: the file may be damaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nowait.reports.words import in_words, problem_in_words

LONGEST = 80
"""Characters of a name."""


def facts_of(config: Mapping[str, Any]) -> list[str]:
    """Return the method, the problem, the workers and the seed, as far as they are known."""
    problem = config.get("problem")
    facts = [_method(config.get("method")), problem_in_words(problem) if isinstance(problem, str) else ""]
    workers, seed = config.get("workers"), config.get("seed")
    if isinstance(workers, int):
        facts.append(f"{workers:,} worker{'s' * (workers != 1)}")
    if isinstance(seed, int):
        facts.append(f"seed {seed}")
    return [fact[:LONGEST] for fact in facts if fact]


def minimum_of(config: Mapping[str, Any]) -> float | None:
    """Return F* if the configuration or its labels have it as ``minimum``; None if they do not."""
    labels = config.get("labels")
    for values in (config, labels if isinstance(labels, Mapping) else {}):
        value = values.get("minimum")
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def goal_of(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits of the budget that a progress bar can show: steps, gradients and seconds."""
    budget = config.get("budget")
    values = budget if isinstance(budget, Mapping) else {}
    known = {name: values.get(name) for name in ("steps", "gradients", "seconds")}
    return {name: float(value) for name, value in known.items() if isinstance(value, int | float) and value > 0}


def _kind(value: Any) -> str:
    """Return the name of a class in words, from its description."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    return in_words(kind) if isinstance(kind, str) and kind else ""


def _method(method: Any) -> str:
    """Return the method with its stepsize."""
    name, stepsize = _kind(method), method.get("stepsize") if isinstance(method, Mapping) else None
    gamma = stepsize.get("gamma", stepsize.get("value")) if isinstance(stepsize, Mapping) else stepsize
    size = f"{gamma:.4g}" if isinstance(gamma, int | float) and not isinstance(gamma, bool) else ""
    described = " ".join(part for part in (_kind(stepsize).lower(), size) if part)
    return f"{name}, {described}" if name and described else name
