"""What the server reports of a run as it happens. The recording layer makes a ``Trace`` of it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from nowait.core.messages import Resumed, TimerFired, WorkerJoined, WorkerLost
    from nowait.core.server import Arrival


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
    """it had the wrong size, or NaN or infinity in it"""


APPLIED, HELD, DROPPED = Outcome.APPLIED, Outcome.HELD, Outcome.DROPPED
"""Members of an enumeration take longer to look up than names of a module, and these are needed once per gradient."""


class Log(Protocol):
    """Receives every event the server handled, in order. Arrivals are numbered 0, 1, …: their row."""

    def arrived(self, arrival: Arrival, live_workers: int) -> None:
        """An arrival was dealt with."""

    def stepped(self, row: int, step: int, weight: float, stepsize: float) -> None:
        """The held gradient of an earlier row entered its first step."""

    def happened(self, event: WorkerJoined | WorkerLost | TimerFired | Resumed) -> None:
        """Another event was handled."""


@final
class NoLog:
    """Keeps nothing."""

    def arrived(self, arrival: Arrival, live_workers: int) -> None:
        """Nothing."""

    def stepped(self, row: int, step: int, weight: float, stepsize: float) -> None:
        """Nothing."""

    def happened(self, event: WorkerJoined | WorkerLost | TimerFired | Resumed) -> None:
        """Nothing."""
