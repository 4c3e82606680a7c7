"""Decides when another host may be started on a node where one was lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

FIRST_PAUSE, LONGEST_PAUSE, MOST_DOUBLINGS = 0.1, 10.0, 20
"""Seconds before another host is started on a node; doubled with each failure in a row on that node."""
STEADY_SECONDS = 10.0
"""A host that was ready for this long counts as useful, also if it delivered nothing."""


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
        pause = FIRST_PAUSE * 2.0 ** min(state.failures - 1, MOST_DOUBLINGS)
        state.not_before = self._clock() + min(LONGEST_PAUSE, pause)
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
