"""Time, and waiting for input, as the event loop needs them."""

from __future__ import annotations

import select
from time import monotonic
from typing import Protocol, final

from nowait.fleet.platform import spin


class WallClock(Protocol):
    """Time, and waiting for input."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""

    def wait(self, fds: frozenset[int], seconds: float) -> list[int]:
        """Wait until some of the file descriptors are readable, for at most this many seconds; returns those."""


@final
class SystemClock:
    """The monotonic clock of this machine, and ``poll``, which is called again and again for ``spin_seconds`` first."""

    def __init__(self, spin_seconds: float = 0.0) -> None:
        self.monotonic = monotonic
        self._spin_seconds = spin_seconds
        self._fds: frozenset[int] = frozenset()
        self._poller = select.poll()

    def wait(self, fds: frozenset[int], seconds: float) -> list[int]:
        """Wait until some of the file descriptors are readable, for at most this many seconds; returns those."""
        if fds is not self._fds:
            self._fds, self._poller = fds, select.poll()
            for fd in fds:
                self._poller.register(fd, select.POLLIN)
        if self._spin_seconds > 0:
            spin(self._poller, min(seconds, self._spin_seconds))
        return [fd for fd, _ in self._poller.poll(1000 * seconds)]


@final
class RunClock:
    """Counts the seconds of a run; ``before`` is how many it had when it was resumed."""

    __slots__ = ("_before", "_clock", "_monotonic", "began", "now")

    def __init__(self, clock: WallClock, before: float) -> None:
        self._clock, self._monotonic, self._before = clock, clock.monotonic, before
        self.began = 0.0
        """When the run began, or would have begun if it had not been interrupted, by the monotonic clock."""
        self.now = before
        """Seconds of the run, when the clock was last read."""

    def start(self) -> float:
        """Begin to count, again if necessary. Returns by how many seconds the clock was turned back."""
        later = self.read() - self._before
        self._monotonic = self._clock.monotonic
        self.began = self._monotonic() - self._before
        self.now = self._before
        return later

    def hold(self) -> None:
        """Stand still at the time before the run until ``start`` is called again."""
        self.start()
        held = self.began + self._before
        self._monotonic = lambda: held

    def read(self) -> float:
        """Return the seconds of the run."""
        self.now = self._monotonic() - self.began
        return self.now
