"""Params as a pool of immutable, reference-counted versions.

A step writes the next version into a spare array; a ticket holds a reference to the version it was given.
There are never more arrays than tickets in flight and two more: the current version and the spare.
"""

from __future__ import annotations

from collections.abc import Callable

from nowait.core.types import Vector


class Version:
    """Params after ``number`` steps. ``point`` is a read-only view of ``array``, which only a step writes."""

    __slots__ = ("array", "number", "point", "references", "slot", "stepsize_sum")

    def __init__(self, array: Vector, slot: int) -> None:
        self.array = array
        self.slot = slot
        self.point = array.view()
        self.point.flags.writeable = False
        self.number = 0
        self.references = 0
        self.stepsize_sum = 0.0
        """The stepsizes of all steps up to this version, added up (for ``StronglyConvexAverage``)."""


class Versions:
    """Owns the arrays. ``allocate`` makes one more when all are in use (shared memory, in some engines)."""

    __slots__ = ("_allocate", "_spares", "current", "live", "num_slots")

    def __init__(self, initial: Vector, allocate: Callable[[], Vector]) -> None:
        self._allocate = allocate
        self._spares: list[Version] = []
        self.num_slots = 0
        self.live: dict[int, Version] = {}
        first = self.spare()
        self._spares.pop()
        first.array[:] = initial
        first.references = 1
        self.live[0] = first
        self.current = first

    def spare(self) -> Version:
        """An array to write the next version into; it is used by nobody until ``publish``."""
        if not self._spares:
            self._spares.append(Version(self._allocate(), self.num_slots))
            self.num_slots += 1
        return self._spares[-1]

    def publish(self, stepsize: float) -> Version:
        """Make the spare, now written, the current version."""
        version = self._spares.pop()
        last = self.current
        version.number = last.number + 1
        version.stepsize_sum = last.stepsize_sum + stepsize
        version.references = 1
        self.live[version.number] = version
        self.current = version
        self.release(last)
        return version

    def release(self, version: Version) -> None:
        """Give up one reference; without references the array becomes a spare."""
        version.references -= 1
        if version.references == 0:
            del self.live[version.number]
            self._spares.append(version)
