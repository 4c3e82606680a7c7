"""What a session needs of whatever makes the steps of its run: the server, or the playback of a plan.

Both have these members and nothing of each other. What only a server can do (checkpoints, callbacks, looking for a
standstill) a session asks of ``Parts.server``, and a run with any of that is never made from a plan.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from nowait.core import Command
from nowait.core.ledger import Counts
from nowait.core.types import Vector
from nowait.recording import Trace
from nowait.recording.tally import Tally

EventT_contra = TypeVar("EventT_contra", contravariant=True)


class RunCounters(Protocol):
    """The counters of a run."""

    @property
    def steps(self) -> int:
        """Steps made."""

    @property
    def counts(self) -> Counts:
        """Counts of gradients."""

    @property
    def now(self) -> float:
        """The time of the latest event, in seconds."""


class RunServer(RunCounters, Protocol[EventT_contra]):
    """Makes the steps of a run, event by event."""

    @property
    def stepped_at(self) -> float:
        """The time of the latest step."""

    @property
    def num_tickets(self) -> int:
        """How many tickets were issued."""

    @property
    def diverged(self) -> str | None:
        """Why the run cannot continue, once params or losses stopped being finite."""

    @property
    def params(self) -> Vector:
        """The current params, for reading."""

    def start(self) -> list[Command]:
        """Start the run. Returns the first commands."""

    def handle(self, event: EventT_contra, /) -> list[Command]:
        """Handle one event. Returns the commands for the engine."""

    def declare_diverged(self, reason: str) -> None:
        """Record that the run cannot continue, because the loss is not finite."""

    def finish(self, last: Vector) -> Vector:
        """Return the answer of the output rule; ``last`` is a copy of params on the host."""


class RunRecorder(Protocol):
    """Has the record of a run when it is over."""

    def params_are(self, step: int, checksum: int) -> None:
        """Record the checksum of the params after a step."""

    def tally(self) -> Tally:
        """Return the totals over all arrivals."""

    def trace(self, seconds: float, last_norm: float) -> Trace:
        """Return the trace of the run, which ended after ``seconds`` at params with this norm."""
