"""The events that the workforce handles, and the actions it returns."""

from __future__ import annotations

from typing import NamedTuple

from nowait.core import BadWorkerError, Event
from nowait.engines.workers.state import WorkerState
from nowait.engines.workers.transport import Died, Gone, Leaving, Opened

# Events besides those of the transport


class Began(NamedTuple):
    """The server has started: workers for which there was no room are lost."""


class Raised(NamedTuple):
    """The problem raised an exception of some kind in a worker; ``any_gradient``: the run has seen a gradient."""

    worker: int
    kind: str
    text: str
    any_gradient: bool


class Faulty(NamedTuple):
    """A worker keeps sending what cannot be used; ``any_gradient``: the run has seen a gradient that can."""

    error: BadWorkerError
    any_gradient: bool


class WorkerLeaving(NamedTuple):
    """A worker process was told to end: it delivers what it computes, and leaves."""

    serial: int


class Requested(NamedTuple):
    """``Workforce.has_requests``: callbacks have asked for changes, or leaving workers have delivered."""


class Tick(NamedTuple):
    """Time has passed: something may be due."""


class Look(NamedTuple):
    """Time to check for workers that hang."""


WorkforceEvent = Began | Raised | Faulty | WorkerLeaving | Requested | Tick | Look | Died | Opened | Gone | Leaving

# Actions


class Start(NamedTuple):
    """Start a process, and set the channel of its state."""

    state: WorkerState


class Kill(NamedTuple):
    """Kill a process."""

    state: WorkerState


class Retire(NamedTuple):
    """Send a process no more orders: when it has reported on the one it has, call ``Workforce.retired``."""

    state: WorkerState


class Release(NamedTuple):
    """Close the channel of a process that is gone, and release the version of the ticket it had."""

    state: WorkerState


class Abandon(NamedTuple):
    """Release the version of a ticket that a worker failed to compute; the process stays."""

    state: WorkerState


class Ask(NamedTuple):
    """Order an evaluation from the evaluator: evaluation ``number``, of the params of a step, which are in a slot."""

    state: WorkerState
    number: int
    slot: int
    step: int


class Reopen(NamedTuple):
    """Start HOME again."""


class Dismiss(NamedTuple):
    """End a place that has no workers. ``reason``: it was given up for that reason, and must not come back."""

    place: int
    reason: str = ""


class Tell(NamedTuple):
    """Pass an event to the server."""

    event: Event


class Warn(NamedTuple):
    """Log a warning."""

    message: str


class Note(NamedTuple):
    """Log a message at the level INFO."""

    message: str


class Stop(NamedTuple):
    """End the run; an empty reason means that its time is over."""

    reason: str


class Fail(NamedTuple):
    """End the run with ``error``, or ``WorkerFailedError``; ``while_running``: only if it has not ended by itself."""

    message: str
    while_running: bool = False
    error: BadWorkerError | None = None


Action = Start | Kill | Retire | Release | Abandon | Ask | Reopen | Dismiss | Tell | Warn | Note | Stop | Fail
