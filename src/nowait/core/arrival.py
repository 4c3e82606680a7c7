"""An arrival, as a method sees it."""

from __future__ import annotations

from typing import final

from nowait.core.log import Outcome
from nowait.core.messages import GradientArrived, Ticket
from nowait.core.sums import Held
from nowait.core.types import Vector
from nowait.core.versions import Version


@final
class Arrival:
    """A finished gradient that reached the server.

    ``delay`` is the index of the step this gradient would make, minus its version: 1 means fresh.
    ``gradient`` and ``point`` are read-only and valid only inside ``on_arrival``.
    """

    __slots__ = (
        "_raw_gradient",
        "_version",
        "checked",
        "compute_seconds",
        "delay",
        "gradient_norm",
        "held",
        "outcome",
        "row",
        "started",
        "step",
        "stepsize",
        "ticket",
        "time",
        "weight",
        "worker",
    )

    def __init__(self, event: GradientArrived, delay: int, row: int, version: Version | None) -> None:
        self.ticket: Ticket = event.ticket
        self.worker: int = event.ticket.worker
        self.delay = delay
        self.time: float = event.time
        self.started: float = event.ticket.time if event.started is None else event.started
        self.compute_seconds: float = (
            event.time - self.started if event.compute_seconds is None else event.compute_seconds
        )
        self.row = row
        self.held: Held | None = None
        self.checked = False
        self.outcome = Outcome.DROPPED
        self.step = 0
        self.weight = 0.0
        self.stepsize = 0.0
        self.gradient_norm = 0.0
        self._raw_gradient: Vector | None = event.gradient
        self._version = version

    @property
    def version(self) -> int:
        """How many steps the point contains that the gradient was computed at."""
        return self.ticket.version

    @property
    def job(self) -> int:
        """How many tickets this worker number had before."""
        return self.ticket.job

    @property
    def gradient(self) -> Vector:
        """The gradient, to read. Only inside ``on_arrival``."""
        view = self.raw_gradient.view()
        view.flags.writeable = False
        return view

    @property
    def point(self) -> Vector:
        """The params the gradient was computed at, to read. Only inside ``on_arrival``."""
        return self.version_held.point

    @property
    def raw_gradient(self) -> Vector:
        """The gradient, for the server and its sums."""
        if self._raw_gradient is None:
            raise ValueError(f"the gradient of ticket {self.ticket.id} is gone: use it inside on_arrival only")
        return self._raw_gradient

    @property
    def version_held(self) -> Version:
        """The version of the point, for the server."""
        if self._version is None:
            raise ValueError(f"the point of ticket {self.ticket.id} is gone: use it inside on_arrival only")
        return self._version

    def close(self) -> None:
        """``on_arrival`` is over: the gradient's memory and the version serve others now."""
        self._raw_gradient = None
        self._version = None

    def __repr__(self) -> str:
        return f"Arrival({self.ticket}, delay={self.delay}, time={self.time})"
