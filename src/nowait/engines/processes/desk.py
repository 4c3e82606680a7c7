"""A worker process, as the server sees it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import final

from nowait.core import Ticket
from nowait.core.types import Vector
from nowait.core.versions import Version
from nowait.engines.processes.failures import Habits
from nowait.engines.processes.places import Line, Place
from nowait.engines.processes.wire import Order

NOTABLE_SECONDS = 1.0
"""A gradient that takes longer is mentioned in the live view."""


@final
@dataclass(slots=True, eq=False)
class Desk:
    """One process: the line to it, where its gradient lies, its ticket, and those that wait for it."""

    worker: int
    serial: int
    place: Place
    line: Line
    gradient: Vector
    began: float
    """When the run began, on the worker's clock."""
    habits: Habits
    took: float = -1.0
    """How long its latest gradient took, until ``habits`` hears of it."""
    running: Ticket | None = None
    version: Version | None = None
    """The version of the running ticket, held until the worker reports."""
    sent: float = 0.0
    """When the running ticket was sent."""
    queue: deque[Ticket] = field(default_factory=deque)
    order: int = Order.FORGET
    """What the next order says about the worker's memory."""
    warned: bool = False
    hurried: bool = False
    gone: bool = False
    """It was let go: its death is no news."""

    def kill(self) -> None:
        """End the process; its death will be told."""
        self.place.kill(self.serial)

    def state(self, now: float) -> str:
        """What it does, in words; nothing to say if it computes as usual."""
        if self.running is None:
            return "waits"
        seconds = now - self.sent
        if seconds < NOTABLE_SECONDS:
            return ""
        slow = self.habits.mean >= 0 and seconds > 3 * self.habits.mean
        return f"{'slow: ' if slow else ''}computes for {seconds:.1f} s"

    def seems_to_hang(self, now: float) -> bool:
        """Does it take far longer than it used to? Said once per ticket."""
        if self.took >= 0:
            self.habits.took(self.took)
            self.took = -1.0
        if self.running is None or self.warned or now - self.sent < self.habits.deadline():
            return False
        self.warned = True
        return True
