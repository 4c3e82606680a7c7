"""What to do about workers that die, raise or hang."""

from __future__ import annotations

from collections import Counter
from typing import final

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds before a worker that died again without a gradient is replaced; they double every time."""
MOST_DOUBLINGS = 20
FIRST_ERRORS = 3
"""Errors of one kind, from any workers, that stop a run in which no gradient was ever delivered."""
ERRORS_IN_A_ROW = 10
"""Errors of one kind from one worker, without a gradient of its own in between, that stop any run."""
NO_DETAILS = ("an error without details", "its traceback did not arrive")
"""Kind and text of an error whose letter is missing."""
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
        self._errors: dict[int, Counter[str]] = {}
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

    def raised(self, worker: int, kind: str, *, any_gradient: bool) -> bool:
        """A worker raised an error of this kind. Returns True if the run has to stop.

        Before the first gradient (``any_gradient`` is False) three errors from anybody are enough: the problem is
        wrong. Later only a worker that raises ten times in a row is: errors that happen now and then come three
        in a row sooner or later, from one worker or from several.
        """
        self.troubled.add(worker)
        errors = self._errors.setdefault(worker, Counter())
        errors[kind] += 1
        if any_gradient:
            return errors[kind] >= ERRORS_IN_A_ROW
        return sum(counts[kind] for counts in self._errors.values()) >= FIRST_ERRORS


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
