"""What the fleet is told (events), what it wants done (actions), and how the loop reaches hosts (ports and sources).

A *host* is one machine, or one part of a Ray node, that runs worker processes. Host 0, ``HOME``, is this machine: it is
called directly, and also runs the process that evaluates losses. Every process that is started gets a serial number, by
which its death is reported. Times of events are seconds of the monotonic clock of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from nowait.core import BadWorkerError, Ticket
from nowait.core.types import Vector

HOME = 0
"""The number of the host on this machine."""

# Events of hosts, emitted by ports and sources


class HostReady(NamedTuple):
    """A host has loaded the problem and has seats for workers (``HOME`` may have 0 and still runs the evaluator).

    Hosts with the smallest ``distance`` are filled first. ``name`` is the name of its node; ``label`` is how messages
    call it, if several are on one node. ``processes`` are those that run already, because the host has connected again:
    worker numbers by serial number.
    """

    host: int
    seats: float
    distance: int = 0
    name: str = ""
    label: str = ""
    processes: Mapping[int, int] = {}


class HostLeaves(NamedTuple):
    """A host will be gone in about this many seconds: its workers deliver what they compute, and leave."""

    host: int
    seconds: float


class HostGone(NamedTuple):
    """A host and all its processes are gone. Their reports were passed on before.

    ``lasting``: the problem could not be loaded there, and would not be loaded by a new process either.
    """

    host: int
    cause: str
    lasting: bool = False


class ProcessDied(NamedTuple):
    """A process ended; its reports were passed on before. ``wire.records.cause_of`` says what the code means."""

    serial: int
    code: int


HostEvent = HostReady | HostLeaves | HostGone | ProcessDied

# Events of reports


class ProcessLeaves(NamedTuple):
    """A worker process was told to end: it delivers what it computes, and leaves."""

    serial: int


class ProcessReady(NamedTuple):
    """The process of a worker has loaded the problem: the answer to ANNOUNCE."""

    number: int


class Raised(NamedTuple):
    """The problem raised an exception of some kind in a worker; ``any_gradient``: the run has seen a gradient."""

    number: int
    ticket_id: int
    kind: str
    text: str
    any_gradient: bool


class Faulty(NamedTuple):
    """A worker keeps sending what cannot be used; ``any_gradient``: the run has seen a gradient that can."""

    error: BadWorkerError
    any_gradient: bool


class Fingerprinted(NamedTuple):
    """The fields of the problem's fingerprint; None and the cause if it could not be computed."""

    details: tuple[Any, ...] | None
    cause: str = ""


# Events of the loop, the session and the server


class Began(NamedTuple):
    """The run begins: processes are started."""


class Released(NamedTuple):
    """All workers are ready, or have had their time: the run begins so many seconds later than they were told."""

    later: float


class JoinAsked(NamedTuple):
    """A worker with a new number is to join."""


class LeaveAsked(NamedTuple):
    """A worker is to leave."""

    number: int


class EvaluationAsked(NamedTuple):
    """The params of a step, which are in a slot, are to be evaluated."""

    slot: int
    step: int


class FingerprintAsked(NamedTuple):
    """The fingerprint of the problem is to be computed, by a process of its own."""


class Cancelled(NamedTuple):
    """The server has cancelled tickets of a worker."""

    number: int
    tickets: tuple[int, ...]


class Tick(NamedTuple):
    """Time has passed."""


class Ended(NamedTuple):
    """The run is over: only the evaluator is still needed."""


Event = (
    HostEvent
    | ProcessLeaves
    | ProcessReady
    | Raised
    | Faulty
    | Fingerprinted
    | Began
    | Released
    | JoinAsked
    | LeaveAsked
    | EvaluationAsked
    | FingerprintAsked
    | Cancelled
    | Tick
    | Ended
)

# Actions: to processes and hosts


class Start(NamedTuple):
    """Start a process for a worker, and pass what sends orders to it to ``Fleet.attach``."""

    host: int
    number: int
    serial: int


class Adopt(NamedTuple):
    """The same for a process that runs already, on a host that has connected again."""

    host: int
    number: int
    serial: int


class Kill(NamedTuple):
    """Kill a process; ``ProcessDied`` follows."""

    host: int
    serial: int


class Send(NamedTuple):
    """Send a worker the order for a ticket."""

    number: int
    ticket: Ticket


class Instruct(NamedTuple):
    """Send a process an order that has no ticket to compute: HURRY (``value`` is the ticket), ANNOUNCE or BEGIN."""

    number: int
    instruction: int
    value: int = 0


class Evaluate(NamedTuple):
    """Order evaluation ``order`` from the evaluator: the params of a step, which are in a slot."""

    order: int
    slot: int
    step: int


class OpenHome(NamedTuple):
    """Open ``HOME`` again."""


class EndHost(NamedTuple):
    """End a host that has no workers. ``reason``: it was given up for that reason, and must not come back."""

    host: int
    reason: str = ""


# Actions: to the server, the session and the log


class Lost(NamedTuple):
    """Tell the server that a worker is lost."""

    number: int


class Joined(NamedTuple):
    """Tell the server that a worker has joined."""

    number: int


class Forget(NamedTuple):
    """Nobody computes this ticket any more: one that the server has cancelled, or a check of an audit."""

    ticket: Ticket


class Identify(NamedTuple):
    """The fingerprint of the problem is known; or it is not, for this cause."""

    details: tuple[Any, ...] | None
    cause: str = ""


class Warn(NamedTuple):
    """Log a warning."""

    message: str


class Note(NamedTuple):
    """Log a message at the level INFO."""

    message: str


class Stop(NamedTuple):
    """End the run for this reason."""

    reason: str


class Fail(NamedTuple):
    """End the run with ``error``, or ``WorkerFailedError``; ``while_running``: only if it has not ended by itself."""

    message: str
    while_running: bool = False
    error: BadWorkerError | None = None


Action = (
    Start
    | Adopt
    | Kill
    | Send
    | Instruct
    | Evaluate
    | OpenHome
    | EndHost
    | Lost
    | Joined
    | Forget
    | Identify
    | Warn
    | Note
    | Stop
    | Fail
)

# How the loop reaches hosts

SendOrder = Callable[[Ticket, int, int], None]
"""``send(ticket, slot, instruction)`` sends an order to one process; it does nothing if the process is gone."""
Emit = Callable[[HostEvent], None]
"""Passes an event on to the fleet. What the fleet decides is executed before it returns, which may close a host."""
SourceEmit = Callable[[HostEvent | FingerprintAsked], None]
"""The same for sources, whose hosts may wait for the fingerprint of the problem: ``Source.identified`` follows."""
TakeReports = Callable[[bytes, Any], None]
"""``take(records, gradients)``: reports of workers have arrived, with gradients by worker number."""


class Port(Protocol):
    """One host, as the loop reaches it: ``host.host.Pool`` on this machine, ``server.remote.RemoteHost`` elsewhere."""

    def start(self, number: int, serial: int, began: float) -> SendOrder:
        """Start a process that counts the seconds of the run from ``began`` on this machine's monotonic clock."""

    def adopt(self, number: int, serial: int, began: float) -> SendOrder:
        """Return what sends orders to a process that runs already."""

    def kill(self, serial: int) -> None:
        """Kill a process; ``ProcessDied`` follows."""


class Source(Protocol):
    """Where hosts come from. It emits ``HostReady`` and the other events of hosts, and never blocks."""

    engine: str
    """The engine's name in ``run.stats``."""

    @property
    def traffic(self) -> tuple[int, int] | None:
        """How many bytes were received from other machines and sent to them; None if there are none."""

    def open(self, emit: SourceEmit, take: TakeReports) -> None:
        """Begin to open ``HOME`` and to find other hosts."""

    def open_home(self) -> None:
        """Begin to open ``HOME`` again after it was gone."""

    def port(self, host: int) -> Port:
        """Return the port of a host that is ready."""

    def details(self, number: int, ticket_id: int) -> tuple[Any, ...] | None:
        """Return what a worker sent besides its report on a ticket; None if nothing arrived."""

    def end_host(self, host: int, reason: str) -> None:
        """End a host without workers; no ``HostGone`` follows. With a reason it must not come back."""

    def identified(self, fingerprint: tuple[Any, ...] | None) -> None:
        """Take the fingerprint of the server's problem; None if it could not be computed."""

    def tick(self, missing: int, working: int) -> None:
        """Do periodic work. ``missing`` workers have no seat, ``working`` have a process."""

    def close(self) -> None:
        """End all hosts and processes, and release everything. It may be called twice."""


Gradients = Mapping[int, Vector] | Sequence[Vector]
