"""The records of the fleet: what is known of one worker, and of one host. Only ``Fleet`` writes to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import final

from nowait.core import Ticket
from nowait.fleet.server.events import HOME, SendOrder
from nowait.fleet.server.patience import FIRST_DEADLINE, Deaths, Durations
from nowait.fleet.wire.records import FORGET
from nowait.recording.worker_stats import hangs

NOTABLE_SECONDS = 1.0
"""The live view mentions a ticket that takes longer."""


class State(Enum):
    """What a worker does."""

    ABSENT = "has no process: it starts at ``until``, as soon as there is a seat"
    STARTING = "its process is being started: orders can be sent to it once that is done"
    HELD = "its process runs, and gets its first ticket when the run begins"
    IDLE = "has no ticket"
    COMPUTING = "computes a ticket or a task"
    CANCELLED = "computes a ticket that the server has cancelled"
    LEAVING = "computes its last ticket, then departs"
    ENDING = "was killed: its number is free when the death of its process is reported"


IDLE, COMPUTING = State.IDLE, State.COMPUTING


@final
@dataclass(slots=True, eq=False)
class Worker:
    """One worker, by its number; also the process that evaluates, and the one that computes the fingerprint."""

    number: int
    state: State = State.ABSENT
    until: float = -math.inf
    """When an absent worker is to be started."""
    wanted: bool = True
    """False once it was removed or given up: it is forgotten when its process is dead."""
    moved: bool = False
    """True if it was given up on one host, and went on with another one."""
    durations: Durations = field(default_factory=Durations)
    deaths: Deaths = field(default_factory=Deaths)

    # Its process
    host: int = HOME
    serial: int = 0
    """The number of its process; 0 if it has none."""
    send: SendOrder | None = None
    """Sends orders to its process."""
    ready: bool = False
    """True once a process that is held has loaded the problem."""
    proven: bool = False
    """True once the process has delivered a gradient and has not raised since."""
    dead_by: float = math.inf
    """When a process that was killed should be dead."""

    # Its tickets
    ticket: Ticket | None = None
    """The ticket of the server that was sent and not reported yet."""
    next: Ticket | None = None
    """The ticket of the server that is sent when this one has been reported."""
    task: Ticket | None = None
    """The evaluation, or the check of an audit, that was sent and not reported yet. It has no ticket then."""
    sent: float = 0.0
    """When the ticket or task was sent."""
    took: float = -1.0
    """How long the latest ticket took, from its order to the report; negative once ``durations`` has counted it."""
    instruction: int = FORGET
    """What the next order says about the worker's memory."""
    named: Ticket | None = None
    """The ticket or task of which a warning said that it takes too long."""
    hurried: Ticket | None = None
    """The cancelled ticket that the worker was told to cut short."""

    @property
    def is_member(self) -> bool:
        """True if it is a worker of the server: it has a process that was not killed."""
        return self.state is not State.ABSENT and self.state is not State.ENDING

    @property
    def current(self) -> Ticket | None:
        """The ticket or task that it computes."""
        return self.ticket or self.task

    def computing(self, at: float) -> float | None:
        """Return for how many seconds it has computed its ticket or task; None if it has none."""
        return None if self.current is None else max(0.0, at - self.sent)

    def describe(self, at: float, usual: float) -> str:
        """Return what it does, for the live view; an empty string if it computes as usual.

        ``usual`` are its seconds per gradient, negative if it has delivered none.
        """
        if self.state is State.ABSENT or self.state is State.ENDING:
            return "waits for room" if self.state is State.ABSENT and self.until <= at else "lost, to be replaced"
        if self.state is State.LEAVING:
            return "delivers, then leaves"
        seconds = self.computing(at)
        if seconds is None:
            return "waits"
        if seconds < NOTABLE_SECONDS:
            return ""
        slow = usual >= 0 and hangs(seconds, usual)
        return f"{'slow: ' if slow else ''}computes for {seconds:.1f} s"

    def count_duration(self) -> None:
        """Count how long the latest ticket took, if that was not done."""
        if self.took >= 0:
            self.durations.add(self.took)
            self.took = -1.0

    def hangs(self, at: float) -> bool:
        """Return True if its ticket takes far longer than this worker's earlier ones.

        The check of an audit may be of a worker with far larger batches; an evaluation may meet a busy machine.
        """
        if self.current is None or self.current is self.named:
            return False
        deadline = self.durations.deadline()
        return at - self.sent >= (deadline if self.task is None else max(deadline, FIRST_DEADLINE))


@final
@dataclass(slots=True, eq=False)
class Host:
    """One host that is open: it has loaded the problem."""

    number: int
    seats: float
    """How many workers it can run."""
    distance: int
    name: str
    label: str
    idle_since: float
    """Since when it has had no workers, if it has none."""
    used: int = 0
    """How many of its seats have a process."""
    faults: int = 0
    """How many of its workers were given up."""
    leaves_at: float = math.inf
    """When a leaving host is gone; infinity if it is not leaving."""

    @property
    def is_leaving(self) -> bool:
        """True if it will be gone soon."""
        return self.leaves_at < math.inf

    @property
    def room(self) -> float:
        """How many more workers can be started here."""
        return 0 if self.is_leaving else max(0, self.seats - self.used)
