"""How the event loop reaches workers: one interface, whether they run on this machine or on a cluster.

A *place* is a group of workers with one process that starts them. Places have numbers; ``HOME`` is on this machine and
also runs the evaluator. Every process that is started gets a serial number, by which its death is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from nowait.core.types import Vector

HOME = 0
"""The place where the evaluator and the fingerprint process run."""


class Reports(NamedTuple):
    """Records that arrived, and the gradients of those that announce one, by worker."""

    records: bytes
    gradients: Mapping[int, Vector] | Sequence[Vector]


class Died(NamedTuple):
    """A process ended. A negative exit code is the signal that killed it. Its reports were delivered before.

    If it could not be started at all, the code is ``NOT_STARTED`` plus the error number of the operating system.
    """

    serial: int
    code: int


class Opened(NamedTuple):
    """A place is ready to run up to ``capacity`` workers (HOME may have capacity 0 and still run the evaluator).

    Places with the smallest ``distance`` are filled first. ``name`` is that of the node, such as its host name;
    ``label`` is how messages call the place, if several are on one node.
    """

    place: int
    capacity: float
    distance: int = 0
    name: str = ""
    label: str = ""


class Gone(NamedTuple):
    """A place and all its processes are gone. Their reports were delivered before.

    ``lasting``: the problem could not be loaded there, and would not be loaded by a new process either.
    """

    place: int
    cause: str
    lasting: bool = False


class Leaving(NamedTuple):
    """A place will be gone in about this many seconds: its workers deliver what they compute, and leave.

    No worker is started there any more. When the last one has left, ``Transport.dismiss`` is called.
    """

    place: int
    seconds: float


TransportEvent = Reports | Died | Opened | Gone | Leaving


class Channel(Protocol):
    """Carries orders to one process."""

    def send(self, ticket: int, job: int, slot: int, instruction: int) -> None:
        """Send an order to compute a ticket at the point in a slot. Does nothing if the process is gone."""

    def close(self) -> None:
        """Close the connection; the process exits."""


class Transport(Protocol):
    """Starts processes, carries orders and reports, and says which processes and places are gone."""

    engine: str
    """The engine's name in ``run.stats``."""

    @property
    def fds(self) -> frozenset[int]:
        """The file descriptors to poll for input. A new object whenever they change."""

    @property
    def traffic(self) -> tuple[int, int] | None:
        """How many bytes were received from other machines and sent to them; None if there are none."""

    def open(self) -> None:
        """Begin to open the places; ``Opened`` events follow."""

    def receive(self, ready: Collection[int]) -> Iterable[TransportEvent]:
        """Return what arrived through these file descriptors, and what arrived without a readable descriptor."""

    def details(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """Return what a worker sent besides its report on a ticket; None if nothing arrived."""

    def start(self, worker: int, serial: int, place: int, began: float) -> Channel:
        """Start a process that counts the seconds of the run from ``began`` on this machine's monotonic clock."""

    def kill(self, serial: int, place: int) -> None:
        """Kill a process; its death is reported like any other."""

    def dismiss(self, place: int, reason: str = "") -> None:
        """End a place without workers that leaves or is not needed; no ``Gone`` follows. It may be gone already.

        With a ``reason`` it was given up: the machine is told why, and should not come back.
        """

    def reopen(self) -> None:
        """Begin to open HOME again after it was gone."""

    def flush(self) -> bool:
        """Send collected orders. Returns True if ``receive`` has something to return without waiting."""

    def tick(self, vacant: int, working: int) -> Iterable[TransportEvent]:
        """Do periodic work. ``vacant`` workers have no place, ``working`` have one."""

    def close(self) -> None:
        """Kill all processes and release all resources."""
