"""Decides which slot of a host has which version of params, so that no version is sent to a host that has it."""

from __future__ import annotations

from typing import final


@final
class HostPoints:
    """The slots for points of one host. It has as many as it has workers at most.

    A worker uses its slot until it gets its next order, which comes after its report. A slot that nobody uses keeps its
    version until the slot is needed for another one.

    >>> points = HostPoints()
    >>> (
    ...     points.place(worker=0, version=7),
    ...     points.place(worker=1, version=7),
    ...     points.place(worker=0, version=8),
    ... )
    ((0, True), (0, False), (1, True))
    """

    def __init__(self) -> None:
        self._slot_of_worker: dict[int, int] = {}
        self._slot_of_version: dict[int, int] = {}
        self._versions: list[int] = []
        """The version in each slot."""
        self._users: list[int] = []
        """How many workers use each slot."""
        self._unused: dict[int, None] = {}
        """The slots that nobody uses, the oldest first."""

    def place(self, worker: int, version: int) -> tuple[int, bool]:
        """Return the slot for the point of a worker's next order, and True if the version has to be sent."""
        self.leave(worker)
        slot, missing = self._slot_of_version.get(version), False
        if slot is None:
            slot, missing = self._slot_for(version), True
        self._unused.pop(slot, None)
        self._users[slot] += 1
        self._slot_of_worker[worker] = slot
        return slot, missing

    def leave(self, worker: int) -> None:
        """Note that a worker does not use its slot any longer."""
        slot = self._slot_of_worker.pop(worker, None)
        if slot is not None:
            self._users[slot] -= 1
            if self._users[slot] == 0:
                self._unused[slot] = None

    def _slot_for(self, version: int) -> int:
        """Return a slot for a version that the host does not have."""
        if self._unused:
            slot = next(iter(self._unused))
            del self._slot_of_version[self._versions[slot]]
            self._versions[slot] = version
        else:
            slot = len(self._versions)
            self._versions.append(version)
            self._users.append(0)
        self._slot_of_version[version] = slot
        return slot
