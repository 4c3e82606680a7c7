"""How long to wait, and how often to try again. No clock, no input or output: times are arguments.

Everything here is a number with its meaning, or counts with the decision that follows from them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
        """Return after how many seconds a ticket counts as hung.

        A worker may be killed by this, so it also counts how much the times vary; ``worker_stats.hangs`` only decides
        what pages show, and is sooner.
        """
        if self.mean < 0:
            return FIRST_DEADLINE
        return max(SHORTEST_DEADLINE, 5 * self.mean + 20 * self.deviation)


# Hosts

SECONDS_BETWEEN_WARNINGS = 10.0
"""How often a run that waits for workers logs that, and how often it logs that hosts were refused."""
STEADY_SECONDS = 10.0
"""A host that was ready, or a connection that was in use, for this long was useful, also if it delivered nothing."""
FIRST_NODE_PAUSE, LONGEST_NODE_PAUSE = 0.1, 10.0
"""Seconds before another host is started on a node; doubled with each failure in a row on that node."""
FIRST_RETRY, LONGEST_RETRY = 0.2, 15.0
"""Seconds before a host tries to connect again; doubled with each try."""
SLOW_NETWORK = 1e6
"""Bytes per second that any network is expected to carry."""
LONGEST_TRANSFER = 600.0
"""How much longer than usual any host may be silent, however large its gradients are."""
SUSPENDED_SECONDS = 2.0
"""If the server has not looked for this long, because it was suspended, it cannot know which hosts were silent."""


@final
class Silence:
    """Measures the silence of hosts, from their last message or from the end of a pause of the server.

    >>> silence = Silence(heartbeat_seconds=10.0)
    >>> silence.look(now=0.0)
    >>> silence.seconds(last_message=-5.0, now=0.0)
    5.0
    >>> silence.look(now=100.0)
    >>> silence.seconds(last_message=-5.0, now=101.0), silence.longest(expected_bytes=4e6)
    (1.0, 14.0)
    """

    def __init__(self, heartbeat_seconds: float) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._looked = math.inf
        self._paused_until = -math.inf

    def look(self, now: float) -> None:
        """Note that the server looks at its hosts, which it should do often."""
        if now - self._looked > SUSPENDED_SECONDS:
            self._paused_until = now
        self._looked = now

    def seconds(self, last_message: float, now: float) -> float:
        """Return for how long a host has been silent that sent its last message then."""
        return now - max(last_message, self._paused_until)

    def longest(self, expected_bytes: float) -> float:
        """Return how long a host may be silent; on a slow network its next message alone may take a while."""
        return self._heartbeat_seconds + min(expected_bytes / SLOW_NETWORK, LONGEST_TRANSFER)


@final
@dataclass
class _Node:
    failures: int = 0
    """How many hosts in a row were lost before they were useful."""
    not_before: float = 0.0


@final
class BackOff:
    """Keeps a pause for each node, so that a node that fails does not delay the others.

    A host that delivered a gradient, or was ready for ``STEADY_SECONDS``, was useful: after its loss the pause of its
    node is the shortest. After a host that was not useful the pause doubles.

    >>> now = 0.0
    >>> back_off = BackOff(lambda: now)
    >>> [back_off.lost("a") for _ in range(3)]
    [False, False, False]
    >>> back_off.paused()
    frozenset({'a'})
    >>> now = 0.5
    >>> back_off.paused()
    frozenset()
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._nodes: dict[str, _Node] = {}

    def lost(self, node: str, *, ready_seconds: float = 0.0, delivered: bool = False) -> bool:
        """Count the loss of a host that was ready for so long and may have delivered gradients.

        Returns True if it was useful.
        """
        state = self._nodes.setdefault(node, _Node())
        useful = delivered or ready_seconds >= STEADY_SECONDS
        state.failures = 1 if useful else state.failures + 1
        state.not_before = self._clock() + doubled(FIRST_NODE_PAUSE, LONGEST_NODE_PAUSE, state.failures - 1)
        return useful

    def pause(self, node: str, seconds: float) -> None:
        """Pause a node where no host has failed, for example because it is full."""
        state = self._nodes.setdefault(node, _Node())
        state.not_before = max(state.not_before, self._clock() + seconds)

    def paused(self) -> frozenset[str]:
        """Return the nodes where no host may be started now."""
        now = self._clock()
        return frozenset(node for node, state in self._nodes.items() if now < state.not_before)

    def next_end(self) -> float:
        """Return when the first of the pauses ends; infinity if no node is paused."""
        now = self._clock()
        return min((state.not_before for state in self._nodes.values() if now < state.not_before), default=math.inf)


@final
class Pauses:
    """Pauses that double, each shortened by chance, so that many hosts do not come back at the same moment.

    >>> pauses = Pauses()
    >>> [round(pauses.next(1.0), 1) for _ in range(8)], pauses.next(0.0)
    ([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0], 7.5)
    """

    def __init__(self) -> None:
        self._number = 0

    def next(self, chance: float) -> float:
        """Return the seconds until the next try; ``chance`` is between 0 and 1."""
        pause = doubled(FIRST_RETRY, LONGEST_RETRY, self._number)
        self._number += 1
        return pause * (0.5 + 0.5 * chance)

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._number = 0


@final
class Wait:
    """Measures for how long a run has had no workers, and says when to warn the user. Times are arguments.

    >>> wait = Wait(now=0.0)
    >>> [wait.is_due(now) for now in (5.0, 11.0, 12.0)], wait.seconds(12.0)
    ([False, True, False], 12.0)
    """

    def __init__(self, now: float) -> None:
        self._worked = self._warned = now

    def ended(self, now: float) -> None:
        """Note that workers run, or that they can run now."""
        self._worked = self._warned = now

    def seconds(self, now: float) -> float:
        """Return for how long there have been no workers."""
        return now - self._worked

    def is_due(self, now: float) -> bool:
        """Return True if the user is to be told now, every ``SECONDS_BETWEEN_WARNINGS``."""
        if now - self._warned <= SECONDS_BETWEEN_WARNINGS:
            return False
        self._warned = now
        return True
