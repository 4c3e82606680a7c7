"""Workers that leave and join during a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise
from typing import Self, final

from nowait.core import checks

HIGHEST_WORKER = 10_000_000
"""Limits the worker number, because arrays have one entry per number and a typing error could need terabytes."""


@final
@dataclass
class Faults:
    """Leaves and joins at given times: ``(time, "leave" or "join", worker)``.

    A worker whose first change is "join" is absent at the start. A change at the same time as an arrival happens
    after it.

    >>> faults = Faults([(10.0, "leave", 0), (20.0, "join", 0), (5.0, "join", 3)])
    >>> faults.present_at_start(5)
    [0, 1, 2, 4]
    """

    changes: Sequence[tuple[float, str, int]]

    def __post_init__(self) -> None:
        if not isinstance(self.changes, list | tuple):
            raise TypeError(f"faults are a list of (time, 'leave' or 'join', worker), got {self.changes!r}")
        self.changes = [_checked_change(index, change) for index, change in enumerate(self.changes)]
        self._check_alternation()

    @classmethod
    def from_availability(cls, counts: Iterable[int], *, every: float) -> Self:
        """Return the leaves and joins for the number of machines available in each interval of ``every`` seconds.

        For traces of spot instances. The run begins with the first count above 0. Machine n is worker n: when there
        are fewer, those with the highest numbers leave, and they join again when there are more. So simulate with
        speeds for as many workers as the largest count.

        >>> Faults.from_availability([2, 3, 3, 1], every=300).changes
        [(300.0, 'join', 2), (900.0, 'leave', 2), (900.0, 'leave', 1)]
        """
        seconds = checks.positive(every, "every", "it is the time between two counts, in seconds")
        available = list(dropwhile(lambda count: count == 0, _checked_counts(counts)))
        if not available:
            raise ValueError("no count is above 0: there is never a machine to compute on")
        changes = []
        for index, (before, now) in enumerate(pairwise(available), 1):
            changes += [(index * seconds, "join", worker) for worker in range(before, now)]
            changes += [(index * seconds, "leave", worker) for worker in reversed(range(now, before))]
        return cls(changes)

    def in_order(self) -> list[tuple[float, str, int]]:
        """Return the changes sorted by time; changes at the same time keep their order."""
        return sorted(self.changes, key=lambda change: change[0])

    def present_at_start(self, num_workers: int) -> list[int]:
        """Return the workers 0 to num_workers - 1 without those whose first change is to join."""
        if not self.changes:
            return list(range(num_workers))
        first: dict[int, str] = {}
        for _, kind, worker in self.in_order():
            first.setdefault(worker, kind)
        return [worker for worker in range(num_workers) if first.get(worker) != "join"]

    def check_leavers(self, num_workers: int) -> None:
        """Raise ValueError if a worker leaves that is not present."""
        joined = set(range(num_workers)) if self.changes else set()
        for time, kind, worker in self.in_order():
            if kind == "leave" and worker not in joined:
                raise ValueError(
                    f'worker {worker} has a "leave" entry at t={time:g}, but there are {num_workers} workers '
                    f"(0 to {num_workers - 1}) and it did not join before"
                )
            joined.add(worker)

    def _check_alternation(self) -> None:
        last: dict[int, str] = {}
        for time, kind, worker in self.in_order():
            if last.get(worker) == kind:
                raise ValueError(f'worker {worker} has two "{kind}" entries in a row (the second at t={time:g})')
            last[worker] = kind


def _checked_counts(counts: Iterable[int]) -> list[int]:
    counts = checks.listed(counts, "counts", "numbers of machines")
    why = "it is a number of machines"
    numbers = [checks.at_least(0, count, f"counts[{index}]", why) for index, count in enumerate(counts)]
    if max(numbers) > HIGHEST_WORKER:
        raise ValueError(f"the largest count is {max(numbers)}: take counts of at most {HIGHEST_WORKER:,}")
    return numbers


def _checked_change(index: int, change: object) -> tuple[float, str, int]:
    if not isinstance(change, tuple | list) or len(change) != 3:
        raise TypeError(f"faults[{index}] must be (time, 'leave' or 'join', worker), got {change!r}")
    time, kind, worker = change
    if kind not in ("leave", "join"):
        raise ValueError(f"faults[{index}] is {kind!r}: it must be 'leave' or 'join'")
    number = checks.at_least(0, worker, f"the worker of faults[{index}]", "workers are numbered from 0")
    if number > HIGHEST_WORKER:
        raise ValueError(f"the worker of faults[{index}] is {number}: take numbers of at most {HIGHEST_WORKER:,}")
    return checks.not_negative(time, f"the time of faults[{index}]", "a run begins at 0"), kind, number
