"""The entry point of worker processes, and how they are started where forking is not safe."""

from __future__ import annotations

import os
import signal
import sys
from typing import final

from nowait.fleet.worker.worker import Inherited

STANDARD_ERROR = 2
RESET = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@final
class Spawn:
    """Starts workers as new interpreters. Each reads a pipe that is closed when the zygote exits: its lifeline."""

    def __init__(self, inherited: Inherited) -> None:
        self._inherited = inherited
        self._lifeline, self._ours = os.pipe()

    def start(self, worker: int, serial: int, orders: int, began: float) -> int:
        """Start a worker that reads its orders from a pipe; returns its process id."""
        inherited = self._inherited
        code = (
            f"import sys; sys.path[:] = {[str(entry) for entry in sys.path]!r}; "
            f"from nowait.fleet.worker.worker import main; "
            f"main({tuple(inherited)!r}, {worker}, {serial}, {orders}, {began!r}, {self._lifeline})"
        )
        descriptors = (*inherited.descriptors, orders, self._lifeline)
        for fd in descriptors:
            os.set_inheritable(fd, True)
        try:
            return os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
        finally:
            for fd in descriptors:
                os.set_inheritable(fd, False)
