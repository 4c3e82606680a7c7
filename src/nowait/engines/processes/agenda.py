"""What the engine of real workers has to do at which time."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import final


@final
class Agenda:
    """Timers of the method, workers to replace, the home to start again, and the end of the run, in seconds of the run.

    Once the run is finished, only the home is still started again: the last loss may need it.
    """

    __slots__ = ("_replacements", "_timers", "end", "reopening")

    def __init__(self, end: float = math.inf) -> None:
        self.end = end
        self.reopening = math.inf
        """When to start the home again; infinity if it is there."""
        self._timers: list[float] = []
        self._replacements: list[tuple[float, int]] = []

    @property
    def is_empty(self) -> bool:
        """Returns True if there is no reason to look at the clock."""
        return not self._timers and not self._replacements and self.end == self.reopening == math.inf

    @property
    def to_replace(self) -> list[int]:
        """The workers that will be replaced."""
        return [worker for _, worker in self._replacements]

    def wake(self, at: float) -> None:
        """The method wants ``on_timer`` to be called."""
        heappush(self._timers, at)

    def replace(self, worker: int, at: float) -> None:
        """A worker is to be replaced."""
        heappush(self._replacements, (at, worker))

    def do_not_replace(self, worker: int) -> None:
        """A worker was removed, or is there again."""
        self._replacements = [entry for entry in self._replacements if entry[1] != worker]
        heapify(self._replacements)

    def take_timer(self, now: float) -> bool:
        """Returns True, and forgets the timer, if one is due."""
        if not self._timers or self._timers[0] > now:
            return False
        heappop(self._timers)
        return True

    def take_replacement(self, now: float) -> int | None:
        """Returns a worker whose replacement is due, and forgets it; None if there is none."""
        if not self._replacements or self._replacements[0][0] > now:
            return None
        return heappop(self._replacements)[1]

    def take_reopening(self, now: float) -> bool:
        """Returns True, and forgets it, if the home is to be started now."""
        if self.reopening > now:
            return False
        self.reopening = math.inf
        return True

    def next(self, *, finished: bool) -> float:
        """When something has to be done; infinity if nothing is planned."""
        if finished:
            return self.reopening
        return min([self.end, self.reopening, *self._timers[:1], *(at for at, _ in self._replacements[:1])])
