"""The exception that is raised when a signal ends a simulation, a replay, a sweep or a study."""

from __future__ import annotations

import signal as signals
from typing import Any, Self, final

from nowait.recording.run import Run


@final
class Interrupted(KeyboardInterrupt):
    """Raised when Ctrl-C, or another signal that ends a process, interrupts a call before it is complete.

    It is a ``KeyboardInterrupt``, so a loop around the call ends too. ``signal`` is the name of the signal, ``run`` the
    partial run of a simulation, ``race``, ``tolerance`` and ``reproduction`` the partial result of such a study; each
    is None if there is none.
    """

    def __init__(
        self,
        signal: str,
        words: str = "",
        *,
        run: Run | None = None,
        race: Any = None,
        tolerance: Any = None,
        reproduction: Any = None,
    ) -> None:
        advice = "" if run is None else run.stats.advice or f"{signal} ended the run"
        super().__init__(words or advice or f"{signal} ended the work")
        self.signal = signal
        self.run = run
        self.race = race
        self.tolerance = tolerance
        self.reproduction = reproduction

    @classmethod
    def of(cls, run: Run) -> Self:
        """Create it from a run that a signal ended; the run's advice begins with the name of the signal."""
        first = run.stats.advice.split(" ", 1)[0]
        return cls(first if first in signals.Signals.__members__ else "SIGINT", run=run)
