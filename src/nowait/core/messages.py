"""The messages between engines and the server, all immutable: events in, commands out.

They are NamedTuples because several are created per gradient, and a frozen dataclass takes three times as long.
"""

from typing import Any, NamedTuple


class Ticket(NamedTuple):
    """One gradient computation given to a worker.

    ``version`` is how many steps the point contains that the gradient is computed at. ``job`` is how many
    tickets this worker number had before: with the seed and the worker it fixes the sample. ``time`` is when
    the server issued it.
    """

    id: int
    worker: int
    version: int
    job: int
    time: float = 0.0


class GradientArrived(NamedTuple):
    """A worker finished a ticket at ``time``, having started it at ``started`` (None: when it was issued)."""

    ticket: Ticket
    gradient: Any
    time: float
    started: float | None = None
    compute_seconds: float | None = None


class WorkerJoined(NamedTuple):
    """A worker joined and is idle. If its number was used before, its job numbers continue from there."""

    worker: int
    time: float


class WorkerLost(NamedTuple):
    """A worker left or died; its tickets are lost."""

    worker: int
    time: float


class TimerFired(NamedTuple):
    """A timer that a method set with ``server.wake`` has expired."""

    time: float


class Resumed(NamedTuple):
    """The run continues from a checkpoint: all tickets are lost, and the method is started again."""

    time: float


class Assign(NamedTuple):
    """Compute this ticket's gradient now: the worker has no other ticket.

    A queued ticket is assigned when its predecessor has arrived, in the commands of that event. A worker that still
    computes a cancelled ticket, and cannot be stopped, begins when it has finished that one.
    """

    ticket: Ticket


class Cancel(NamedTuple):
    """Do not compute these tickets, which an earlier event assigned to the worker: so far always one ticket.

    Tickets that were never assigned, because they were queued or issued in the same event, are in no command.
    """

    worker: int
    tickets: tuple[int, ...]


class Wake(NamedTuple):
    """Send a ``TimerFired`` at this time."""

    at: float


Event = GradientArrived | WorkerJoined | WorkerLost | TimerFired | Resumed
EVENTS: tuple[type, ...] = (GradientArrived, WorkerJoined, WorkerLost, TimerFired, Resumed)
"""The classes of events."""
Command = Assign | Cancel | Wake
