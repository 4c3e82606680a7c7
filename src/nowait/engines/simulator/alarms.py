"""Events in virtual time other than arrivals: timers, joins and leaves."""

from __future__ import annotations

import sys
from collections.abc import Sized
from heapq import heappop, heappush
from typing import Protocol, final

from nowait.core import TimerFired, WorkerJoined, WorkerLost
from nowait.core.membership import WorkerSet
from nowait.speeds import Faults

FOREVER = sys.float_info.max
"""The end of virtual time; a ticket that takes infinitely long arrives after it."""
Alarm = TimerFired | WorkerJoined | WorkerLost


@final
class Alarms:
    """A queue of alarms ordered by time; alarms at the same time keep their order. ``end`` is the end of the run."""

    __slots__ = ("_end", "_heap", "_num_changes", "_num_set", "limit")

    def __init__(self, faults: Faults, end: float | None) -> None:
        self._end = FOREVER if end is None else end
        self._heap: list[tuple[float, int, Alarm]] = []
        self._num_set = 0
        self._num_changes = 0
        """How many of the alarms in the queue are joins and leaves."""
        self.limit = self._end
        """Arrivals up to this time come before the next alarm and the end."""
        for time, kind, worker in faults.in_order():
            self.add(WorkerJoined(worker, time) if kind == "join" else WorkerLost(worker, time))

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, alarm: Alarm) -> None:
        """Add an alarm."""
        heappush(self._heap, (alarm.time, self._num_set, alarm))
        self._num_set += 1
        if not isinstance(alarm, TimerFired):
            self._num_changes += 1
        self.limit = min(self._end, self._heap[0][0])

    def changes_to_come(self) -> bool:
        """Return whether a worker will join or leave."""
        return self._num_changes > 0

    def pop(self) -> Alarm | None:
        """Remove and return the next alarm; None if there is none before the end."""
        if not self._heap or self._heap[0][0] > self._end:
            return None
        alarm = heappop(self._heap)[2]
        self.limit = min(self._end, self._heap[0][0]) if self._heap else self._end
        if not isinstance(alarm, TimerFired):
            self._num_changes -= 1
        return alarm


class Standing(Protocol):
    """The attributes of a server or planner that ``why_nothing_happens`` reads."""

    @property
    def workers(self) -> WorkerSet:
        """The live workers."""

    @property
    def in_flight(self) -> Sized:
        """The tickets that workers have."""

    @property
    def steps(self) -> int:
        """How many steps were made."""


def why_nothing_happens(server: Standing) -> str:
    """Return why there are no more events; an error if the method is the cause."""
    if not server.workers:
        return f"every worker has left after {server.steps} steps, and none will join"
    if server.in_flight:
        return f"no worker will ever finish: {len(server.in_flight)} tickets are in flight after {server.steps} steps"
    raise RuntimeError(
        f"the method left every worker idle after {server.steps} steps: it must assign tickets or set a timer"
    )
