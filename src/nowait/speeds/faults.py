"""Workers that leave and join while a simulation runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from nowait.core import checks

HIGHEST_WORKER = 10_000_000
"""Workers are counted by number, so that a typing error must not ask for terabytes."""


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
        self.changes = [_checked_change(place, change) for place, change in enumerate(self.changes)]
        self._check_alternation()

    def in_order(self) -> list[tuple[float, str, int]]:
        """The changes by time; those of one time as they were given."""
        return sorted(self.changes, key=lambda change: change[0])

    def present_at_start(self, num_workers: int) -> list[int]:
        """The workers 0 to num_workers - 1 less those whose first change is to join."""
        if not self.changes:
            return list(range(num_workers))
        first: dict[int, str] = {}
        for _, kind, worker in self.in_order():
            first.setdefault(worker, kind)
        return [worker for worker in range(num_workers) if first.get(worker) != "join"]

    def check_leavers(self, num_workers: int) -> None:
        """Raise unless everybody who leaves is there by then."""
        joined = set(range(num_workers)) if self.changes else set()
        for time, kind, worker in self.in_order():
            if kind == "leave" and worker not in joined:
                raise ValueError(f"worker {worker} is to leave at {time:g}, but there are {num_workers} workers")
            joined.add(worker)

    def _check_alternation(self) -> None:
        last: dict[int, str] = {}
        for time, kind, worker in self.in_order():
            if last.get(worker) == kind:
                raise ValueError(
                    f"worker {worker} is to {kind} at {time:g}, but it did so before without a change between"
                )
            last[worker] = kind


def _checked_change(place: int, change: object) -> tuple[float, str, int]:
    if not isinstance(change, tuple | list) or len(change) != 3:
        raise TypeError(f"faults[{place}] must be (time, 'leave' or 'join', worker), got {change!r}")
    time, kind, worker = change
    if kind not in ("leave", "join"):
        raise ValueError(f"faults[{place}] is {kind!r}: it must be 'leave' or 'join'")
    number = checks.at_least(0, worker, f"the worker of faults[{place}]", "workers are numbered from 0")
    if number > HIGHEST_WORKER:
        raise ValueError(f"the worker of faults[{place}] is {number}: take numbers of at most {HIGHEST_WORKER:,}")
    return checks.not_negative(time, f"the time of faults[{place}]", "a run begins at 0"), kind, number
