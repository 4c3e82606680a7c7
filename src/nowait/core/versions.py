"""Params as a pool of immutable, reference-counted versions.

A step writes the next version into a spare array; a ticket holds a reference to the version it was given.
There are at most two arrays more than tickets in flight: the current version and the spare. The spare is chosen when
a step needs it, not when the step before is made: the version of the gradient that made that step is free by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from nowait.core.memory import HOST, Memory
from nowait.core.types import Vector


@final
class Version:
    """Params after ``number`` steps. ``point`` is ``array`` for reading; only a step writes the array."""

    __slots__ = ("array", "number", "point", "references", "slot", "stepsize_sum")

    def __init__(self, array: Vector, slot: int, memory: Memory) -> None:
        self.array = array
        self.slot = slot
        self.point: Vector = memory.read_only(array)
        self.number = 0
        self.references = 0
        self.stepsize_sum = 0.0
        """The sum of the stepsizes of all steps up to this version (for ``StronglyConvexAverage``)."""


@final
class Versions:
    """Owns the arrays and counts references to them; no other class changes ``Version.references``.

    ``allocate`` returns one more vector of the memory when all are in use (in shared memory, in some engines).
    ``spare`` is the one that the next version is written into; it is unused until ``publish``, and None until a step
    calls ``choose_spare``.
    """

    __slots__ = (
        "_allocate",
        "_keep_cancelled",
        "_memory",
        "by_ticket",
        "cancelled",
        "current",
        "free",
        "lent",
        "num_slots",
        "spare",
    )

    def __init__(
        self, initial: Vector, memory: Memory, allocate: Callable[[], Vector], *, keep_cancelled: bool = False
    ) -> None:
        self._memory = memory
        self._allocate = allocate
        self._keep_cancelled = keep_cancelled
        self.by_ticket: dict[int, Version] = {}
        """The version that each ticket in flight is computed at, by ticket id. Each entry is a reference.

        So are those of cancelled tickets that are kept.
        """
        self.cancelled: dict[int, int] = {}
        """The workers of cancelled tickets whose versions are kept, by ticket id."""
        self.lent: dict[int, Version] = {}
        """The versions of tickets that are computed once more, by a number below 0. Each entry is a reference."""
        self.free: list[Version] = []
        """The versions without references, whose arrays can be written again."""
        self.num_slots = 0
        self.current = self._new()
        memory.write(initial, self.current.array)
        self.current.references = 1
        self.spare: Version | None = None

    def choose_spare(self) -> Version:
        """Return the version to write the next params into: a free one, or a new one."""
        self.spare = self.free.pop() if self.free else self._new()
        return self.spare

    def publish(self, version: Version, stepsize: float) -> None:
        """Make the spare, which has been written, the current version. The last one is the next spare if it is free."""
        last = self.current
        version.number = last.number + 1
        version.stepsize_sum = last.stepsize_sum + stepsize
        version.references = 1
        self.current = version
        last.references -= 1
        self.spare = last if last.references == 0 else None

    def hold(self, ticket_id: int, version: Any) -> None:
        """Add a reference for a ticket. Code that removes it from ``by_ticket`` must ``release`` the version."""
        version.references += 1
        self.by_ticket[ticket_id] = version

    def drop(self, ticket_id: int) -> None:
        """Remove the reference of a ticket."""
        self.release(self.by_ticket.pop(ticket_id))

    def cancel(self, ticket_id: int, worker: int) -> None:
        """Remove the reference of a cancelled ticket, unless cancelled tickets are kept until ``forget``."""
        if self._keep_cancelled:
            self.cancelled[ticket_id] = worker
        else:
            self.release(self.by_ticket.pop(ticket_id))

    def forget(self, ticket_id: int) -> None:
        """Remove the reference of a cancelled ticket, if it was kept."""
        if self.cancelled.pop(ticket_id, None) is not None:
            self.drop(ticket_id)

    def forget_all(self, worker: int | None = None) -> None:
        """Remove the references of a worker's cancelled tickets; without a worker, those of all workers."""
        for ticket_id in [number for number, other in self.cancelled.items() if worker is None or other == worker]:
            self.forget(ticket_id)

    def retain(self, version: Version) -> Version:
        """Add a reference, until ``release``."""
        version.references += 1
        return version

    def release(self, version: Version) -> None:
        """Remove a reference; without references the array is free again."""
        version.references -= 1
        if version.references == 0:
            self.free.append(version)

    def close(self, last: Vector) -> None:
        """Release all arrays; ``last``, a NumPy array, becomes the current version. Nothing can be published then."""
        self.free.clear()
        self.by_ticket.clear()
        self.cancelled.clear()
        self.lent.clear()
        self._allocate = _closed
        self.spare = None
        number, self.current = self.current.number, Version(last, 0, HOST)
        self.current.number = number

    def _new(self) -> Version:
        self.num_slots += 1
        return Version(self._allocate(), self.num_slots - 1, self._memory)


def _closed() -> Vector:
    raise RuntimeError("the run is over: no more steps can be made")
