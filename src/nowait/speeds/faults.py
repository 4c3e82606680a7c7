"""Workers that leave and join while a simulation runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import final

from nowait.core import checks


@final
@dataclass
class Faults:
    """Leaves and joins at given times: ``(time, "leave" or "join", worker)``.

    A worker that joins before it ever left is not there at the start. What happens at the same time as an
    arrival happens after it.

    >>> faults = Faults([(10.0, "leave", 0), (20.0, "join", 0), (5.0, "join", 3)])
    >>> faults.present_at_start(5)
    [0, 1, 2, 4]
    """

    changes: Sequence[tuple[float, str, int]]

    def __post_init__(self) -> None:
        if not isinstance(self.changes, list | tuple):
            raise TypeError(f"faults are a list of (time, 'leave' or 'join', worker), got {self.changes!r}")
        for place, change in enumerate(self.changes):
            _check_change(place, change)
        self._check_alternation()

    def in_order(self) -> list[tuple[float, str, int]]:
        """The changes by time; those of one time as they were given."""
        return sorted(self.changes, key=lambda change: change[0])

    def present_at_start(self, num_workers: int) -> list[int]:
        """The workers 0 to num_workers - 1 less those whose first change is to join."""
        first: dict[int, str] = {}
        for _, kind, worker in self.in_order():
            first.setdefault(worker, kind)
        return [worker for worker in range(num_workers) if first.get(worker) != "join"]

    def _check_alternation(self) -> None:
        last: dict[int, str] = {}
        for time, kind, worker in self.in_order():
            if last.get(worker) == kind:
                raise ValueError(
                    f"worker {worker} is to {kind} at {time:g}, but it did so before without a change between"
                )
            last[worker] = kind


def _check_change(place: int, change: object) -> None:
    if not isinstance(change, tuple | list) or len(change) != 3:
        raise TypeError(f"faults[{place}] must be (time, 'leave' or 'join', worker), got {change!r}")
    time, kind, worker = change
    if not isinstance(time, Real) or not 0 <= float(time) < math.inf:
        raise ValueError(f"faults[{place}] has time {time!r}: it must be a finite number of at least 0")
    if kind not in ("leave", "join"):
        raise ValueError(f"faults[{place}] is {kind!r}: it must be 'leave' or 'join'")
    checks.at_least(0, worker, f"the worker of faults[{place}]", "workers are numbered from 0")
