"""Names that older versions wrote into the files of runs and sweeps, mapped to the names used now."""

from __future__ import annotations

from typing import Any

GAMMA_WAS = {
    "Constant": "value",
    "DelayAdaptive": "largest",
    "ExponentialDelayAdaptive": "largest",
    "PolynomialDecay": "largest",
    "HingeDecay": "largest",
    "Threshold": "largest",
}
"""The former name of ``gamma`` in each stepsize rule."""
ENGINE_WAS = "way"
"""The former name of ``engine`` in ``stats.json`` and in the runs of a sweep."""
DEEPEST = 32
"""Descriptions nest a few levels; deeper ones, which no version wrote, are left as they are."""


def with_current_names(description: Any, depth: int = 0) -> Any:
    """Return a description made by ``describe`` with the field names of the current version.

    >>> with_current_names({"type": "DelayAdaptive", "largest": 0.1, "cut": None})
    {'type': 'DelayAdaptive', 'gamma': 0.1, 'cut': None}
    """
    if depth > DEEPEST:
        return description
    if isinstance(description, list):
        return [with_current_names(item, depth + 1) for item in description]
    if not isinstance(description, dict):
        return description
    kind = description.get("type")
    former = GAMMA_WAS.get(kind) if isinstance(kind, str) and "gamma" not in description else None
    return {
        "gamma" if former is not None and key == former else key: with_current_names(item, depth + 1)
        for key, item in description.items()
    }
