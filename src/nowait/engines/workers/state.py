"""The server's state for one worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from nowait.core import Ticket
from nowait.core.versions import Version
from nowait.engines.workers.failures import FIRST_DEADLINE, Durations
from nowait.engines.workers.records import EVALUATOR, Instruction
from nowait.engines.workers.transport import Channel
from nowait.recording.worker_stats import hangs

NOTABLE_SECONDS = 1.0
"""The live view mentions a gradient that takes longer."""


@final
@dataclass(slots=True, eq=False)
class WorkerState:
    """One process: where it runs, the channel to it, and the ticket it computes."""

    worker: int
    serial: int
    place: int
    durations: Durations
    channel: Channel | None = None
    """None until the process is started."""
    ticket: Ticket | None = None
    """The ticket that was sent and not reported yet."""
    version: Version | None = None
    """The version of that ticket, retained until the worker reports."""
    sent: float = 0.0
    """When the ticket was sent."""
    took: float = -1.0
    """How long the latest ticket took, from its order to the report; negative once ``durations`` has counted it."""
    instruction: int = Instruction.FORGET
    """What the next order says about the worker's memory."""
    warned: bool = False
    """True if a warning was given that this ticket takes too long."""
    hurried: bool = False
    """True if the worker was told that this ticket is cancelled."""
    leaving: bool = False
    """True if the process gets no more orders, and leaves when it has reported on the one it has."""
    checked: bool = False
    """True once a gradient of the process was chosen to be computed again by another worker."""
    released: bool = False
    """True if the process was given up: its death is expected."""

    def ordered(self, ticket: Ticket, now: float) -> None:
        """Note that a ticket is sent."""
        self.ticket, self.sent = ticket, now
        self.warned = self.hurried = False

    def delivered(self, now: float) -> None:
        """Note that it has reported on its ticket."""
        self.ticket, self.took = None, now - self.sent

    def computing(self, now: float) -> float | None:
        """Return for how many seconds it has computed its ticket; None if it has none."""
        return None if self.ticket is None else max(0.0, now - self.sent)

    def describe(self, now: float, usual: float) -> str:
        """Return what the process does, for the live view; an empty string if it computes as usual.

        ``usual`` are the worker's seconds per gradient, negative if it has delivered none.
        """
        if self.leaving:
            return "delivers, then leaves"
        if self.ticket is None:
            return "waits"
        seconds = now - self.sent
        if seconds < NOTABLE_SECONDS:
            return ""
        slow = usual >= 0 and hangs(seconds, usual)
        return f"{'slow: ' if slow else ''}computes for {seconds:.1f} s"

    def starts_to_hang(self, now: float) -> bool:
        """Return True, once per ticket, if the ticket takes far longer than this worker's earlier ones."""
        if self.took >= 0:
            self.durations.add(self.took)
            self.took = -1.0
        if self.ticket is None or self.warned or now - self.sent < self._deadline(self.ticket):
            return False
        self.warned = True
        return True

    def _deadline(self, ticket: Ticket) -> float:
        """Return how long a ticket may take.

        That of an audit may belong to a worker with far larger batches; an evaluation may meet a busy machine.
        """
        deadline = self.durations.deadline()
        return max(deadline, FIRST_DEADLINE) if ticket[0] < 0 or self.worker == EVALUATOR else deadline
