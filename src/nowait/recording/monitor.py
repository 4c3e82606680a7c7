"""Which metric of a run is watched, and which of its values are better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, final

from nowait.core import checks

T = TypeVar("T")

MODES = ("min", "max")


def lower_is_better(name: str) -> bool:
    """Return True for names that end in "loss"."""
    return name.endswith("loss")


@final
@dataclass(frozen=True)
class Monitor:
    """A metric by name, or the loss. ``mode`` "min": lower values are better; "max": higher ones."""

    name: str
    mode: str

    @classmethod
    def of(cls, name: Any, mode: Any = None, argument: str = "monitor") -> Monitor:
        """Return a checked monitor; a mode of None is "min" for names that end in "loss", else "max"."""
        if not isinstance(name, str) or not name:
            raise TypeError(
                f'{argument} must be the name of a metric, such as "accuracy" or "loss", got {checks.shown(name)}'
            )
        if mode is None:
            mode = "min" if lower_is_better(name) else "max"
        if not isinstance(mode, str) or mode not in MODES:
            raise ValueError(
                f'the mode of {argument} must be "min" or "max", got {checks.shown(mode)}: it says what is better'
            )
        return cls(name, mode)

    def value(self, values: Mapping[str, T]) -> T:
        """Return the watched entry, or raise an error that names those that there are."""
        if self.name not in values:
            raise ValueError(
                f"there is no metric {self.name!r}, only {', '.join(values)}: the problem's evaluate(params) has to "
                f"return it (for a TorchProblem: metrics={{{self.name!r}: function}})"
            )
        return values[self.name]

    def is_better(self, value: float, best: float | None, by: float = 0.0) -> bool:
        """Return True if a value is finite and better than the best one by more than ``by``."""
        if not math.isfinite(value) or best is None:
            return math.isfinite(value)
        return value < best - by if self.mode == "min" else value > best + by
