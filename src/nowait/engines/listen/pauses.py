"""Decides how long a host waits before it tries to connect again. Chance is an argument."""

from __future__ import annotations

from typing import final

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 15.0
STEADY_SECONDS = 10.0
"""A connection that was in use for this long ends the doubling."""


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
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._number, 20))
        self._number += 1
        return pause * (0.5 + 0.5 * chance)

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._number = 0
