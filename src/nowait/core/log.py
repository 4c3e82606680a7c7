"""What the server reports of a run as it happens. The recording layer makes a ``Trace`` of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from nowait.core.ledger import Arrival
    from nowait.core.messages import Resumed, TimerFired, WorkerJoined, WorkerLost
    from nowait.core.notes import Note


class Outcome(StrEnum):
    """What became of an arrival."""

    APPLIED = "applied"
    """a step was made along it"""
    HELD = "held"
    """it was added to a sum"""
    DROPPED = "dropped"
    """the method did not use it"""
    LATE = "late"
    """its ticket was cancelled, finished or never issued"""
    REJECTED = "rejected"
    """it had the wrong size, or contained NaN or infinity"""


APPLIED, HELD, DROPPED = Outcome.APPLIED, Outcome.HELD, Outcome.DROPPED
"""Module-level names, because they are faster to look up than members of an enumeration, once per gradient."""


class Log(Protocol):
    """Receives every event that was handled, in order. Arrivals are numbered 0, 1, …: their rows."""

    def arrived(self, arrival: Arrival, live_workers: int) -> None:
        """Record an arrival after it was handled, as the next row."""

    def stepped(self, weights: Mapping[int, float], step: int, stepsize: float) -> None:
        """Record that the held gradients of earlier rows entered their first step, each with its weight (by row)."""

    def happened(self, event: WorkerJoined | WorkerLost | TimerFired | Resumed) -> None:
        """Record another event."""

    def noted(self, note: Note) -> None:
        """Record what a method noted while it handled the present event."""


@final
class NoLog:
    """A log that discards everything."""

    def arrived(self, arrival: Arrival, live_workers: int) -> None:
        """Discard the arrival."""

    def stepped(self, weights: Mapping[int, float], step: int, stepsize: float) -> None:
        """Discard the weights."""

    def happened(self, event: WorkerJoined | WorkerLost | TimerFired | Resumed) -> None:
        """Discard the event."""

    def noted(self, note: Note) -> None:
        """Discard the note."""
