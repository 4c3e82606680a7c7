"""An arrival: a finished gradient, as a method sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from nowait.core.log import DROPPED
from nowait.core.memory import memory_of
from nowait.core.messages import GradientArrived
from nowait.core.sums import Held
from nowait.core.types import Vector
from nowait.core.versions import Version

if TYPE_CHECKING:
    from nowait.core.ledger import Ledger


@final
class Arrival:
    """A finished gradient that reached the server.

    ``delay`` is the index of the step this gradient would make, minus its version: 1 means fresh.
    ``gradient`` and ``point`` are read-only and valid only inside ``on_arrival``. Like a verb, reading the gradient
    or its norm checks it first: a bad one ends ``on_arrival`` there.
    """

    # What became of it. The defaults are in the class because an arrival is created once per gradient.
    outcome = DROPPED
    step = 0
    weight = 0.0
    stepsize = 0.0
    logged_norm = 0.0
    held: Held | None = None

    def __init__(self, event: GradientArrived, delay: int, row: int, version: Version | None, ledger: Ledger) -> None:
        self.event = event
        self.ledger = ledger
        self.ticket = ticket = event[0]
        self.raw_gradient: Any = event[1]
        self.worker = ticket[1]
        self.delay = delay
        self.row = row
        self.version_held = version

    @property
    def time(self) -> float:
        """When it arrived."""
        return self.event.time

    @property
    def version(self) -> int:
        """How many steps the point contains that the gradient was computed at."""
        return self.ticket.version

    @property
    def job(self) -> int:
        """How many tickets this worker number had before."""
        return self.ticket.job

    @property
    def started(self) -> float:
        """When the worker started to compute it."""
        return self.ticket.time if self.event.started is None else self.event.started

    @property
    def compute_seconds(self) -> float:
        """How long the worker computed."""
        seconds = self.event.compute_seconds
        return self.time - self.started if seconds is None else seconds

    @property
    def gradient(self) -> Vector:
        """A read-only view of the gradient, valid only inside ``on_arrival``."""
        if self.version_held is None:
            raise ValueError(f"the gradient of {self.ticket} is no longer available: use it inside on_arrival only")
        self.ledger._check_gradient()
        view: Vector = memory_of(self.raw_gradient).read_only(self.raw_gradient)
        return view

    @property
    def gradient_norm(self) -> float:
        """The norm of the gradient."""
        self.ledger._check_gradient()
        return self.logged_norm

    @property
    def point(self) -> Vector:
        """The params that the gradient was computed at, read-only and valid only inside ``on_arrival``."""
        if self.version_held is None:
            raise ValueError(f"the point of {self.ticket} is no longer available: use it inside on_arrival only")
        return self.version_held.point

    def __repr__(self) -> str:
        return f"Arrival({self.ticket}, delay={self.delay}, time={self.time})"
