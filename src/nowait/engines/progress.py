"""A progress bar for long work: shown on a terminal after a moment, silent elsewhere.

While it is open it also says, once in a process, that kernels are being compiled (numba does that at their first use on
a machine, and keeps the result on disk).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from time import monotonic
from types import TracebackType
from typing import Any, Self, final

EVENTS_BETWEEN_LOOKS = 256
SECONDS_BEFORE_SHOWING = 1.0


def somebody_looks() -> bool:
    """Is the standard error stream a terminal?"""
    return sys.stderr is not None and sys.stderr.isatty()


@cache
def listen_for_compiling() -> None:
    """From now on, write a line to the standard error stream when a kernel is compiled: the first time only."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            say_that_it_compiles()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]


@cache
def say_that_it_compiles() -> None:
    """Write the line, once in a process."""
    sys.stderr.write("compiling, once: the next run will find the compiled code on disk\n")
    sys.stderr.flush()


@final
class Progress:
    """``tick`` after every event. ``shown`` None means: if the standard error stream is a terminal."""

    def __init__(self, label: str, shown: bool | None = None) -> None:
        self._label = label
        self.shown = somebody_looks() if shown is None else shown
        self._events = 0
        self._began = 0.0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        self._began = monotonic()
        if self.shown:
            listen_for_compiling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tick(self, share_done: Callable[[], float | None]) -> None:
        """One more event; ``share_done`` tells how much of the work is behind, if that is known."""
        self._events += 1
        if self._events % EVENTS_BETWEEN_LOOKS == 0:
            self.show(share_done())

    def show(self, share: float | None) -> None:
        """So much of the work is behind; None if that is not known."""
        if not self.shown:
            return
        if self._bar is None:
            if monotonic() - self._began < SECONDS_BEFORE_SHOWING:
                return
            self._open()
        self._bar.update(self._task, completed=share or 0.0, total=None if share is None else 1.0)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(console=Console(stderr=True, markup=False, emoji=False), transient=True)
        self._task = self._bar.add_task(self._label, total=1.0)
        self._bar.start()
