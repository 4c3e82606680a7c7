"""Waiting for one file descriptor. ``select.select`` cannot watch descriptors of 1,024 and above; ``poll`` can."""

from __future__ import annotations

import select
from typing import Protocol


class HasFileno(Protocol):
    """A socket or file."""

    def fileno(self) -> int:
        """Return the file descriptor."""


def is_ready(file: int | HasFileno, seconds: float, events: int = select.POLLIN) -> bool:
    """Returns True once ``file`` has one of ``events`` (or is closed at its other end), False after ``seconds``."""
    poller = select.poll()
    poller.register(file, events)
    return bool(poller.poll(1000 * seconds))
