"""Decides what happens to worker processes whose connection to the server broke and was made again.

The server does not know them: it starts its workers anew. A process whose worker is started again is adopted. What it
computed for the earlier connection is dropped: the server has lost that ticket, and the gradient might be overwritten
while it is sent. No clock, no input or output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from nowait.fleet.wire.records import LEAVING, READY, REPORT


@final
class Adoption:
    """The processes of a host, and those of them that were started through an earlier connection.

    >>> processes = Adoption()
    >>> processes.offer({0: 11, 1: 12})  # workers 0 and 1
    >>> processes.adopt(worker=0, serial=21), processes.adopt(worker=5, serial=22)
    (True, False)
    >>> processes.started(22)
    >>> (
    ...     processes.serial_here(21),
    ...     processes.died(11),
    ...     processes.died(12),
    ...     processes.died(22),
    ... )
    (11, 21, None, 22)
    """

    def __init__(self) -> None:
        self._serials: dict[int, int] = {}
        """The server's serial number of each process that it knows, by the serial number here."""
        self._offered: dict[int, int] = {}
        """Serial numbers here of the processes that were not adopted, by worker."""
        self._until = math.inf
        self.uncertain: dict[int, float] = {}
        """For workers that may still report to the earlier connection: the first ticket of the present one."""

    def started(self, serial: int) -> None:
        """Note that a process was started, which has the same serial number here and at the server."""
        self._serials[serial] = serial

    def offer(self, processes: Mapping[int, int]) -> None:
        """Note that the connection was made again; ``processes`` are the serial numbers here, by worker."""
        self._offered, self._serials, self._until = dict(processes), {}, math.inf
        self.uncertain = dict.fromkeys(processes, math.inf)

    def wait_until(self, time: float) -> None:
        """Wait for adoption until a time."""
        self._until = time

    def adopt(self, worker: int, serial: int) -> bool:
        """Return True if a worker that the server starts has a process already, which gets this serial number."""
        here = self._offered.pop(worker, None)
        if here is None:
            return False
        self._serials[here] = serial
        return True

    def not_adopted(self, now: float) -> list[tuple[int, int]]:
        """Return worker and serial number here of the processes that have waited for too long, once."""
        if not self._offered or now < self._until:
            return []
        left, self._offered = list(self._offered.items()), {}
        return left

    def serial_here(self, serial: int) -> int | None:
        """Return the serial number here of a process of the server; None if there is none."""
        return next((here for here, theirs in self._serials.items() if theirs == serial), None)

    def died(self, here: int) -> int | None:
        """Return the server's serial number of a process that has died; None if the server does not know it."""
        self._offered = {worker: serial for worker, serial in self._offered.items() if serial != here}
        return self._serials.pop(here, None)

    def ordered(self, worker: int, ticket: int) -> None:
        """Note the ticket of an order. The tickets of a worker have rising numbers."""
        if self.uncertain.get(worker) == math.inf:
            self.uncertain[worker] = ticket

    def wanted(self, records: bytes) -> bytes:
        """Return the reports of a batch without those on orders of an earlier connection."""
        kept = []
        for record in REPORT.iter_unpack(records):
            ticket, *_, worker, kind = record
            if kind == LEAVING:
                is_wanted = ticket in self._serials  # it has the serial number here in place of a ticket
            elif kind == READY or ticket < 0:
                is_wanted = True  # it is about no order, or an audit, the numbers of which are never used again
            elif is_wanted := ticket >= self.uncertain.get(worker, -math.inf):
                self.uncertain.pop(worker, None)
            if is_wanted:
                kept.append(REPORT.pack(*record))
        return b"".join(kept)

    def with_serials(self, records: bytes) -> bytes:
        """Return a batch of reports with the server's serial numbers of the processes that leave."""
        changed = []
        for ticket, started, seconds, worker, kind in REPORT.iter_unpack(records):
            number = self._serials.get(ticket, ticket) if kind == LEAVING else ticket
            changed.append(REPORT.pack(number, started, seconds, worker, kind))
        return b"".join(changed)
