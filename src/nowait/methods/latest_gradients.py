"""The table used by methods that step along the mean of all workers' latest gradients."""

from __future__ import annotations

from typing import final

from nowait.core import Arrival, GradientSum, Server


@final
class LatestGradients:
    """Every worker's latest gradient, and their sum."""

    def __init__(self, server: Server) -> None:
        self.total = server.sum()
        self._server = server
        self.entries: dict[int, GradientSum] = {}
        self._spare = server.sum()
        self._replaced = 0

    def __len__(self) -> int:
        return len(self.entries)

    def replace(self, arrival: Arrival) -> None:
        """Store the arrival's gradient as its worker's entry; the old entry's memory is reused for the next one."""
        self._spare.add(arrival)
        old = self.entries.get(arrival.worker)
        if old is None:
            old = self._server.sum()
        self.total.merge(old, -1.0)
        self.total.merge(self._spare)
        self.entries[arrival.worker], self._spare = self._spare, old
        self._spare.clear()
        self._replaced += 1
        if self._replaced > len(self.entries):
            self._add_up()

    def remove(self, worker: int) -> None:
        """Remove a worker's entry."""
        if self.entries.pop(worker, None) is not None:
            self._add_up()

    def _add_up(self) -> None:
        """Recompute the total, once per round, so that rounding errors do not accumulate."""
        self.total.clear()
        for entry in self.entries.values():
            self.total.merge(entry)
        self._replaced = 0
