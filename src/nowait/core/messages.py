"""What passes between engines and the server: events in, commands out. All immutable, none does anything.

NamedTuples, because one of each is made per gradient and a frozen dataclass costs three times as much.
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
    """A worker is there and idle. A number that was there before goes on counting its jobs."""

    worker: int
    time: float


class WorkerLost(NamedTuple):
    """A worker is gone, and with it the tickets it had."""

    worker: int
    time: float


class TimerFired(NamedTuple):
    """A time that a method asked for with ``server.wake`` has come."""

    time: float


class Resumed(NamedTuple):
    """The run goes on from a checkpoint: all tickets are lost, and the method starts afresh."""

    time: float


class Assign(NamedTuple):
    """Compute this ticket's gradient, after those the worker already has."""

    ticket: Ticket


class Cancel(NamedTuple):
    """Forget these tickets of this worker, the running one and the queued ones."""

    worker: int
    tickets: tuple[int, ...]


class Wake(NamedTuple):
    """Send a ``TimerFired`` at this time."""

    at: float


Event = GradientArrived | WorkerJoined | WorkerLost | TimerFired | Resumed
Command = Assign | Cancel | Wake
