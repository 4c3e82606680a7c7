"""How long to wait, and how often to try again. No clock, no input or output: times are arguments.

Everything here is a number with its meaning, or counts with the decision that follows from them.
"""

from __future__ import annotations

from collections import Counter
from typing import final

MOST_DOUBLINGS = 20


def doubled(first: float, longest: float, times: int) -> float:
    """Return a pause that was doubled this many times, up to the longest one.

    >>> [doubled(0.1, 1.0, times) for times in range(5)]
    [0.1, 0.2, 0.4, 0.8, 1.0]
    """
    return float(min(longest, first * 2.0 ** min(times, MOST_DOUBLINGS)))


# Workers

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds before a worker that died repeatedly without delivering is replaced; doubled with each death."""
FIRST_ERRORS = 3
"""Errors of one kind, from any workers, that stop a run in which no gradient has been delivered."""
ERRORS_IN_A_ROW = 10
"""Errors of one kind from one worker, without a gradient of its own in between, that stop any run."""
MEMORY_ERRORS = ("MemoryError", "_ArrayMemoryError", "OutOfMemoryError")
"""The types of Python, NumPy and PyTorch."""
SHORTEST_DEADLINE, FIRST_DEADLINE = 5.0, 120.0
"""Seconds after which a worker may count as hung; the second is for one that never delivered."""
SECONDS_TO_DIE = 10.0
"""How long a process that was killed may take to end."""
LONG_PAUSE = 5.0
"""If the engine has not looked for this long, deaths may have been reported that it has not seen yet."""
MEMORY = 0.9
"""The weight of the past in the exponential averages of ``Durations``."""
MOST_FAULTY = 3
"""A host of which this many workers were given up is given up too."""
SECONDS_TO_RECORD = 10.0
"""A new run waits this long for the fingerprint of its problem; after that, it is recorded during the run."""
SECONDS_TO_COMPARE = 120.0
"""A resumed run waits this long for the fingerprint, and then continues without a comparison."""


@final
class Deaths:
    """Counts the deaths of a process in a row, and says how long to wait before the next one is started."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def pause(self, most: int) -> float | None:
        """Count a death. Returns the seconds until a replacement; None after more than ``most`` deaths in a row."""
        self.count += 1
        if self.count > most:
            return None
        return 0.0 if self.count == 1 else doubled(FIRST_PAUSE, LONGEST_PAUSE, self.count - 2)


@final
class Failures:
    """Counts the errors of workers: of each worker since it last delivered, and of the whole run."""

    def __init__(self) -> None:
        self._errors: dict[int, Counter[str]] = {}
        self._out_of_memory: set[int] = set()
        """The workers that were replaced because they ran out of memory, and have not delivered since."""
        self._seen: Counter[str] = Counter()
        """How often each kind of error occurred in the run."""
        self.deaths = self.errors = self.strays = 0
        """How many processes died, how often the problem raised, and how many reports were on tickets that their worker
        was never given, in the whole run."""

    def forgive(self, number: int) -> None:
        """Reset the counts of a worker that delivered a gradient, or is given up."""
        self._errors.pop(number, None)
        self._out_of_memory.discard(number)

    def raised(self, number: int, kind: str, *, any_gradient: bool) -> bool:
        """Count an error of this kind. Returns True if the worker, or the run, has to stop.

        Before the first gradient (``any_gradient`` is False) three errors from any workers are enough: the problem is
        broken. Later it takes ten errors in a row from one worker, because occasional errors come three in a row
        sooner or later.
        """
        self.errors += 1
        errors = self._errors.setdefault(number, Counter())
        errors[kind] += 1
        if any_gradient:
            return errors[kind] >= ERRORS_IN_A_ROW
        return sum(counts[kind] for counts in self._errors.values()) >= FIRST_ERRORS

    def ran_out_of_memory(self, number: int, kind: str) -> bool:
        """Return True for the first error of this kind since the worker delivered, if its process is out of memory.

        A new process then has what the old one cannot give back. If that does not help, such an error is as any other.
        """
        if kind.partition(" ")[0] not in MEMORY_ERRORS or number in self._out_of_memory:
            return False
        self.errors += 1
        self._out_of_memory.add(number)
        return True

    def times_seen(self, kind: str) -> int:
        """Count an error of this kind for messages; returns how many there were in the run, this one included."""
        self._seen[kind] += 1
        return self._seen[kind]


@final
class Durations:
    """Exponential averages of how long a worker's tickets take, from order to arrival, and how much that varies."""

    __slots__ = ("deviation", "mean")

    def __init__(self) -> None:
        self.mean = -1.0
        self.deviation = 0.0

    def add(self, seconds: float) -> None:
        """Count one more ticket."""
        if self.mean < 0:
            self.mean = seconds
            return
        difference = seconds - self.mean
        self.mean += (1 - MEMORY) * difference
        self.deviation += (1 - MEMORY) * (abs(difference) - self.deviation)

    def deadline(self) -> float:
        """Return after how many seconds a ticket counts as hung."""
        if self.mean < 0:
            return FIRST_DEADLINE
        return max(SHORTEST_DEADLINE, 5 * self.mean + 20 * self.deviation)
