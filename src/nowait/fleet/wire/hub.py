"""The event loop's view of file descriptors: whom to call when there is something to read, and when to write."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Protocol, final

from nowait.fleet.platform import spin


class Flushes(Protocol):
    """Collects what it has to send, for example the orders for a host."""

    def flush(self) -> None:
        """Send what was collected."""


@final
class Hub:
    """Waits for file descriptors, and calls a handler for each that is ready. Handlers must not block.

    They may add and remove descriptors, also others that became ready at the same time.
    """

    def __init__(self, spin_seconds: float = 0.0) -> None:
        self._poller = select.poll()
        self._spin_seconds = spin_seconds
        self.poll: Callable[[float], list[tuple[int, int]]] = self._poller.poll if spin_seconds == 0 else self._spinning
        """``poll(milliseconds)`` returns descriptors that are ready. It polls for ``spin_seconds`` before it sleeps."""
        self.handlers: dict[int, Callable[[], None]] = {}
        """What to call when a descriptor is ready."""
        self.dirty: list[Flushes] = []
        """What has collected something since the last wait."""
        self.unfinished: list[Callable[[], None]] = []
        """Handlers to call before the next wait."""
        self._readers: dict[int, Callable[[], None]] = {}
        """The handlers for reading of the descriptors that also wait to be written to."""

    def add(self, fd: int, handler: Callable[[], None]) -> None:
        """Call a handler whenever a descriptor can be read from, or was closed at its other end."""
        self.handlers[fd] = handler
        self._poller.register(fd, select.POLLIN)

    def remove(self, fd: int) -> None:
        """Forget a descriptor, before it is closed. Does nothing if it is unknown."""
        self._readers.pop(fd, None)
        if self.handlers.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def writable(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Also call a handler whenever a descriptor that was added can be written to; None: no longer."""
        read = self._readers.setdefault(fd, self.handlers[fd])
        if handler is None:
            self.handlers[fd] = self._readers.pop(fd)
            self._poller.modify(fd, select.POLLIN)
            return

        def write_and_read() -> None:
            handler()
            if self.handlers.get(fd) is write_and_read:  # else poll will tell, if the descriptor is still here
                read()

        self.handlers[fd] = write_and_read
        self._poller.modify(fd, select.POLLIN | select.POLLOUT)

    def again(self, handler: Callable[[], None]) -> None:
        """Call a handler before the next wait: it has more to read, for which its descriptor may not become readable.

        It is called even if its descriptor is removed meanwhile.
        """
        if handler not in self.unfinished:
            self.unfinished.append(handler)

    def wait(self, seconds: float) -> bool:
        """Send what was collected, wait for descriptors for at most this many seconds, and call their handlers.

        Returns False if there was nothing to do.
        """
        has_work = bool(self.unfinished)
        if self.dirty:
            self._flush()
        if has_work:
            unfinished, self.unfinished, seconds = self.unfinished, [], 0.0
            for handler in unfinished:
                handler()
            self._flush()
        for fd, _ in self.poll(1000 * seconds):
            has_work = True
            ready = self.handlers.get(fd)
            if ready is not None:
                ready()
        return has_work

    def _flush(self) -> None:
        for sender in self.dirty:
            sender.flush()
        self.dirty.clear()

    def _spinning(self, milliseconds: float) -> list[tuple[int, int]]:
        spin(self._poller, min(milliseconds / 1000, self._spin_seconds))
        return self._poller.poll(milliseconds)
