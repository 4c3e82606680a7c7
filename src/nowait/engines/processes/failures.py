"""What to do about workers that die, raise or hang."""

from __future__ import annotations

from typing import final

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds before a worker that died again without a gradient is replaced; they double every time."""
MOST_DOUBLINGS = 20
SAME_KIND = 3
"""So many errors of one kind, from workers that have not delivered since, stop the run."""
SHORTEST_DEADLINE, FIRST_DEADLINE = 5.0, 120.0
"""Seconds after which a worker may be called hung; the second for one that never delivered."""
MEMORY = 0.9


@final
class Failures:
    """Counts failures that no gradient has made good yet."""

    __slots__ = ("_deaths", "_errors", "_most", "troubled")

    def __init__(self, most: int) -> None:
        self._most = most
        self._deaths: dict[int, int] = {}
        self._errors: dict[int, list[str]] = {}
        self.troubled: set[int] = set()
        """The workers with a failure that is not made good."""

    def delivered(self, worker: int) -> None:
        """A gradient of a troubled worker arrived: all is forgiven."""
        self.troubled.discard(worker)
        self._deaths.pop(worker, None)
        self._errors.pop(worker, None)

    def died(self, worker: int) -> float | None:
        """After how many seconds to replace a worker that died; None to give it up."""
        deaths = self._deaths[worker] = self._deaths.get(worker, 0) + 1
        self.troubled.add(worker)
        if deaths > self._most:
            return None
        return 0.0 if deaths == 1 else min(FIRST_PAUSE * 2.0 ** min(deaths - 2, MOST_DOUBLINGS), LONGEST_PAUSE)

    def raised(self, worker: int, kind: str) -> bool:
        """A worker raised an error of this kind: is it enough?"""
        self.troubled.add(worker)
        self._errors.setdefault(worker, []).append(kind)
        return sum(kinds.count(kind) for kinds in self._errors.values()) >= SAME_KIND


@final
class Habits:
    """How long a worker's gradients take, from which one that takes far too long is told."""

    __slots__ = ("deviation", "mean")

    def __init__(self) -> None:
        self.mean = -1.0
        self.deviation = 0.0

    def took(self, seconds: float) -> None:
        """One more gradient."""
        if self.mean < 0:
            self.mean = seconds
            return
        difference = seconds - self.mean
        self.mean += (1 - MEMORY) * difference
        self.deviation += (1 - MEMORY) * (abs(difference) - self.deviation)

    def deadline(self) -> float:
        """After how many seconds it is strange that a gradient is not there."""
        if self.mean < 0:
            return FIRST_DEADLINE
        return max(SHORTEST_DEADLINE, 5 * self.mean + 20 * self.deviation)
