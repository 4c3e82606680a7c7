"""What the engine of real workers has to do at which time."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import final


@final
class Agenda:
    """Timers of the method, workers to replace, the restart of HOME, and the end of the run, in seconds of the run.

    Once the run is finished only the restart of HOME matters: the last loss may need it.
    """

    __slots__ = ("_replacements", "_timers", "end", "reopening")

    def __init__(self, end: float = math.inf) -> None:
        self.end = end
        self.reopening = math.inf
        """When to start HOME again; infinity if it is running."""
        self._timers: list[float] = []
        self._replacements: list[tuple[float, int]] = []

    @property
    def is_empty(self) -> bool:
        """True if nothing is scheduled, so the clock need not be checked."""
        return not self._timers and not self._replacements and self.end == self.reopening == math.inf

    @property
    def to_replace(self) -> list[int]:
        """The workers that are scheduled to be replaced."""
        return [worker for _, worker in self._replacements]

    def wake(self, at: float) -> None:
        """Schedule a call of the method's ``on_timer``."""
        heappush(self._timers, at)

    def replace(self, worker: int, at: float) -> None:
        """Schedule the replacement of a worker."""
        heappush(self._replacements, (at, worker))

    def do_not_replace(self, worker: int) -> None:
        """Cancel the replacement of a worker."""
        self._replacements = [entry for entry in self._replacements if entry[1] != worker]
        heapify(self._replacements)

    def clock_turned_back(self, seconds: float) -> None:
        """Move the times of replacements and of the restart of HOME; no timer is set before the run begins."""
        self.reopening -= seconds
        self._replacements = [(at - seconds, worker) for at, worker in self._replacements]

    def take_timers(self, now: float) -> int:
        """Remove the timers that are due and return their number."""
        due = 0
        while self._timers and self._timers[0] <= now:
            heappop(self._timers)
            due += 1
        return due

    def take_replacement(self, now: float) -> int | None:
        """Remove a worker whose replacement is due and return it; None if there is none."""
        if not self._replacements or self._replacements[0][0] > now:
            return None
        return heappop(self._replacements)[1]

    def take_reopening(self, now: float) -> bool:
        """Return True, once, when HOME is to be started again."""
        if self.reopening > now:
            return False
        self.reopening = math.inf
        return True

    def next(self, *, finished: bool) -> float:
        """Return the time of the next entry; infinity if nothing is scheduled."""
        if finished:
            return self.reopening
        return min([self.end, self.reopening, *self._timers[:1], *(at for at, _ in self._replacements[:1])])
