"""Params as a pool of immutable, reference-counted versions.

A step writes the next version into a spare array; a ticket holds a reference to the version it was given.
There are never more arrays than tickets in flight and two more: the current version and the spare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from nowait.core.types import Vector


@final
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


@final
class Versions:
    """Owns the arrays. ``allocate`` makes one more when all are in use (shared memory, in some engines).

    ``spare`` is the array to write the next version into; nobody uses it until ``publish``.
    """

    __slots__ = ("_allocate", "current", "free", "num_slots", "spare")

    def __init__(self, initial: Vector, allocate: Callable[[], Vector]) -> None:
        self._allocate = allocate
        self.free: list[Version] = []
        self.num_slots = 0
        self.current = self._new()
        self.current.array[:] = initial
        self.current.references = 1
        self.spare = self._new()

    def publish(self, stepsize: float) -> Version:
        """Make the spare, now written, the current version, and have another spare."""
        last, version = self.current, self.spare
        version.number = last.number + 1
        version.stepsize_sum = last.stepsize_sum + stepsize
        version.references = 1
        self.current = version
        last.references -= 1
        if last.references == 0:
            self.spare = last
        else:
            self.spare = self.free.pop() if self.free else self._new()
        return version

    def release(self, version: Version) -> None:
        """Give up one reference; without references the array is free again."""
        version.references -= 1
        if version.references == 0:
            self.free.append(version)

    def close(self, last: Vector) -> None:
        """Release all arrays, and have ``last`` for the current version. There can be no further one."""
        self.free.clear()
        self._allocate = _closed
        del self.spare
        number, self.current = self.current.number, Version(last, 0)
        self.current.number = number

    def _new(self) -> Version:
        self.num_slots += 1
        return Version(self._allocate(), self.num_slots - 1)


def _closed() -> Vector:
    raise RuntimeError("the run is over: no more steps can be made")
