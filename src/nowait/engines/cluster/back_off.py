"""When another host may be started on a node after one there was lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

FIRST_PAUSE, LONGEST_PAUSE, MOST_DOUBLINGS = 0.1, 10.0, 20
"""Seconds before another host is started on a node; they double with each failure there in a row."""
STEADY_SECONDS = 10.0
"""A host that was ready for so long did not fail, also if it delivered nothing."""


@final
@dataclass
class _Node:
    failures: int = 0
    """How many hosts in a row were lost without having been of use."""
    not_before: float = 0.0


@final
class BackOff:
    """A pause for each node by itself, so that one that fails does not keep the others from working.

    A host that delivered a gradient, or was ready for ``STEADY_SECONDS``, was of use: whoever killed it, the next one
    on its node may come at once. Hosts that were of no use make the pause of their node double.

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
        """A host on this node is gone: how long it had been ready, and whether it had delivered a gradient.

        Returns True if it was of use.
        """
        state = self._nodes.setdefault(node, _Node())
        useful = delivered or ready_seconds >= STEADY_SECONDS
        state.failures = 1 if useful else state.failures + 1
        pause = FIRST_PAUSE * 2.0 ** min(state.failures - 1, MOST_DOUBLINGS)
        state.not_before = self._clock() + min(LONGEST_PAUSE, pause)
        return useful

    def paused(self) -> frozenset[str]:
        """The nodes where no host may be started now."""
        now = self._clock()
        return frozenset(node for node, state in self._nodes.items() if now < state.not_before)

    def next_end(self) -> float:
        """When the first of the pauses ends; infinity if no node is paused."""
        now = self._clock()
        return min((state.not_before for state in self._nodes.values() if now < state.not_before), default=math.inf)
