"""What is raised when a signal ends a simulation, a replay, a sweep or a study."""

from __future__ import annotations

import signal as signals
from typing import Any, Self, final

from nowait.recording.run import Run


@final
class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or another signal that ends a process, stopped the work before it was complete.

    It is a ``KeyboardInterrupt``, so it also ends the loop around the call. ``signal`` is the name of the signal,
    ``run`` the part of a simulation that was made, ``race`` the part of a race; each is None if there is none.
    """

    def __init__(self, signal: str, *, run: Run | None = None, race: Any = None) -> None:
        words = f"{signal} ended the work" if run is None else run.stats.advice or f"{signal} ended the run"
        super().__init__(words)
        self.signal = signal
        self.run = run
        self.race = race

    @classmethod
    def of(cls, run: Run) -> Self:
        """From a run that a signal ended; its advice begins with the name of the signal."""
        first = run.stats.advice.split(" ", 1)[0]
        return cls(first if first in signals.Signals.__members__ else "SIGINT", run=run)
