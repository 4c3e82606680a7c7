"""Where workers are, as the engine sees it: one place on this machine, or many."""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from nowait.core.types import Vector
from nowait.core.versions import Version


class Line(Protocol):
    """How orders reach one worker."""

    @property
    def gradient(self) -> Vector:
        """Where its gradients lie when it reports; if they travel, each report brings its own."""

    def order(self, ticket: int, job: int, version: Version, instruction: int) -> None:
        """Have a ticket computed; ``instruction`` is an ``Order``. If the worker is gone, nothing happens."""

    def close(self) -> None:
        """Hang up: the worker ends."""


class Place(Protocol):
    """Workers with one zygote. Whoever is hired gets a serial number, by which a death is known."""

    @property
    def clock_ahead(self) -> float:
        """By how many seconds its clock is ahead of ours."""

    def hire(self, worker: int, serial: int, began: float) -> Line:
        """Have a worker started, which counts time from ``began`` on our clock."""

    def kill(self, serial: int) -> None:
        """Have a worker killed; its death will be told like any other."""


class Died(NamedTuple):
    """A worker process ended; a negative code is the signal that killed it."""

    serial: int
    code: int


class Gone(NamedTuple):
    """A place is gone, and all its workers. ``lasting``: another one like it would end in the same way."""

    place: Place
    cause: str
    lasting: bool = False


class Reported(NamedTuple):
    """Reports from a place whose gradients travel: the vectors of those that are gradients, in order."""

    place: Place
    records: bytes
    vectors: Sequence[Vector]


class Opened(NamedTuple):
    """There is room for more workers."""

    place: Place


News = Died | Gone | Reported | Opened


class Places(Protocol):
    """All the places of a run."""

    engine: str
    """What the run's ``stats.engine`` says."""
    reports: int
    """The pipe through which the workers of this machine report."""

    @property
    def home(self) -> Place:
        """Where the evaluator is: on this machine. After its loss the old one, until ``reopen_home``."""

    @property
    def home_is_ready(self) -> bool:
        """True while workers can be hired there; False while it is being started again."""

    def open(self) -> None:
        """Begin to start everything; there is something else to do meanwhile."""

    def wait_until_ready(self, poller: select.poll, interrupted: Callable[[], bool]) -> None:
        """Until the run can begin, or is interrupted. From now on ``poller`` tells of all there is to hear."""

    def find(self) -> Place | None:
        """Somewhere with room for one more worker."""

    def release(self, place: Place) -> None:
        """A worker of a place is gone for good: there is room for another."""

    def pending(self) -> bool:
        """Is there something to hear that the poller does not tell?"""

    def hear(self, ready: Collection[int]) -> Iterable[News]:
        """What was said through these files. What the dead had reported comes before their death."""

    def read(self) -> bytes:
        """Reports of this machine, which the poller told of."""

    def drain(self) -> bytes:
        """All reports of this machine that are there."""

    def letter(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """Returns the details that a worker sent before its report on a ticket; None if they are missing."""

    def flush(self) -> None:
        """Send the orders that were given."""

    def look(self, vacancies: int, workers: int) -> Iterable[News]:
        """Now and then: so many workers have no place, so many work."""

    def reopen_home(self) -> None:
        """Begin to start a new home after a loss. ``Opened`` tells that it is ready, ``Gone`` that it failed."""

    def close(self) -> None:
        """Nothing is left."""
