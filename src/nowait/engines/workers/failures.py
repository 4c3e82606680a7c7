"""Counts failures of workers and decides when to give up; measures how long gradients take."""

from __future__ import annotations

from collections import Counter
from typing import final

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds before a worker that died repeatedly without delivering is replaced; doubled with each death."""
MOST_DOUBLINGS = 20
FIRST_ERRORS = 3
"""Errors of one kind, from any workers, that stop a run in which no gradient has been delivered."""
ERRORS_IN_A_ROW = 10
"""Errors of one kind from one worker, without a gradient of its own in between, that stop any run."""
MEMORY_ERRORS = ("MemoryError", "_ArrayMemoryError", "OutOfMemoryError")
"""The types of Python, NumPy and PyTorch."""
NO_DETAILS = ("an error without details", "its traceback did not arrive")
"""Kind and text of an error whose details did not arrive."""
SHORTEST_DEADLINE, FIRST_DEADLINE = 5.0, 120.0
"""Seconds after which a worker may count as hung; the second is for one that never delivered."""
MEMORY = 0.9
"""The weight of the past in the exponential averages of ``Durations``."""


@final
class Failures:
    """Counts the failures of each worker since it last delivered a gradient."""

    __slots__ = ("_deaths", "_errors", "_most", "_out_of_memory", "_seen", "deaths", "errors", "strays", "troubled")

    def __init__(self, most: int) -> None:
        self._most = most
        self._deaths: dict[int, int] = {}
        self._errors: dict[int, Counter[str]] = {}
        self._out_of_memory: set[int] = set()
        """The workers that were replaced because they ran out of memory, and have not delivered since."""
        self._seen: Counter[str] = Counter()
        """How often each kind of error occurred in the run."""
        self.troubled: set[int] = set()
        """The workers with failures since their last gradient."""
        self.deaths = self.errors = self.strays = 0
        """How many processes died, how often the problem raised, and how many reports were on tickets that their worker
        was never given, in the whole run."""

    def delivered(self, worker: int) -> None:
        """Reset the counts of a worker that delivered a gradient."""
        self.troubled.discard(worker)
        self._deaths.pop(worker, None)
        self._errors.pop(worker, None)
        self._out_of_memory.discard(worker)

    def died(self, worker: int) -> float | None:
        """Count a death. Returns after how many seconds to replace the worker; None to give it up."""
        self.deaths += 1
        deaths = self._deaths[worker] = self._deaths.get(worker, 0) + 1
        self.troubled.add(worker)
        if deaths > self._most:
            return None
        return 0.0 if deaths == 1 else min(FIRST_PAUSE * 2.0 ** min(deaths - 2, MOST_DOUBLINGS), LONGEST_PAUSE)

    def raised(self, worker: int, kind: str, *, any_gradient: bool) -> bool:
        """Count an error of this kind. Returns True if the run has to stop.

        Before the first gradient (``any_gradient`` is False) three errors from any workers are enough: the problem is
        broken. Later it takes ten errors in a row from one worker, because occasional errors come three in a row
        sooner or later.
        """
        self.errors += 1
        self.troubled.add(worker)
        errors = self._errors.setdefault(worker, Counter())
        errors[kind] += 1
        if any_gradient:
            return errors[kind] >= ERRORS_IN_A_ROW
        return sum(counts[kind] for counts in self._errors.values()) >= FIRST_ERRORS

    def ran_out_of_memory(self, worker: int, kind: str) -> bool:
        """Return True for the first error of this kind since the worker delivered, if its process is out of memory.

        A new process then has what the old one cannot give back. If that does not help, such an error is as any other.
        """
        if kind.partition(" ")[0] not in MEMORY_ERRORS or worker in self._out_of_memory:
            return False
        self.errors += 1
        self.troubled.add(worker)
        self._out_of_memory.add(worker)
        return True

    def times_seen(self, kind: str) -> int:
        """Count an error of this kind for messages; returns how many there were in the run, this one included."""
        self._seen[kind] += 1
        return self._seen[kind]


@final
class Durations:
    """Exponential averages of how long a worker's gradients take, and how much that varies."""

    __slots__ = ("deviation", "mean")

    def __init__(self) -> None:
        self.mean = -1.0
        self.deviation = 0.0

    def add(self, seconds: float) -> None:
        """Count one more gradient."""
        if self.mean < 0:
            self.mean = seconds
            return
        difference = seconds - self.mean
        self.mean += (1 - MEMORY) * difference
        self.deviation += (1 - MEMORY) * (abs(difference) - self.deviation)

    def deadline(self) -> float:
        """Return after how many seconds a gradient counts as hung.

        A worker may be killed by this, so it also counts how much the times vary; ``worker_stats.hangs`` only decides
        what pages show, and is sooner.
        """
        if self.mean < 0:
            return FIRST_DEADLINE
        return max(SHORTEST_DEADLINE, 5 * self.mean + 20 * self.deviation)
