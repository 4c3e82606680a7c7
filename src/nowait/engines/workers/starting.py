"""Starts all workers together: no worker gets a ticket before every process is ready. No clock, no input or output."""

from __future__ import annotations

from typing import final


@final
class StartingLine:
    """The worker processes that have not said yet that they are ready. ``holding`` is False once the run has begun.

    >>> line = StartingLine(holding=True)
    >>> line.started(0), line.started(1), line.ready(0)
    (None, None, None)
    >>> line.missing
    [1]
    >>> line.gone(1)
    >>> line.missing
    []
    """

    __slots__ = ("_starting", "holding")

    def __init__(self, *, holding: bool) -> None:
        self.holding = holding
        self._starting: set[int] = set()

    @property
    def missing(self) -> list[int]:
        """The workers whose processes are not ready, sorted."""
        return sorted(self._starting)

    def started(self, worker: int) -> None:
        """Wait for the process of a worker, which was started."""
        self._starting.add(worker)

    def ready(self, worker: int) -> None:
        """Note that the process of a worker is ready."""
        self._starting.discard(worker)

    def gone(self, worker: int) -> None:
        """Do not wait for a process that died. If it is replaced, ``started`` is called again."""
        self._starting.discard(worker)
