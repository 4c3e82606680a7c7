"""A progress bar, shown on a terminal and in a notebook after a second of work.

While it is open, a line also tells, once in a process, that kernels are being compiled: numba does that at their first
use on a machine and caches the result on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from time import monotonic
from types import TracebackType
from typing import Any, Self, final

from nowait.engines.notebook import CellOutput, in_notebook
from nowait.engines.screens import Bar, is_watched, open_bar
from nowait.html import preformatted

EVENTS_BETWEEN_UPDATES = 256
SECONDS_BEFORE_SHOWING = 1.0


@cache
def report_compiling() -> None:
    """Tell when the first kernel is compiled."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            write_compiling_line()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]


@cache
def write_compiling_line() -> None:
    """Write the line, once in a process: to standard error, or, in a notebook, as a normal output of the cell."""
    words = "compiling, once: later runs load the compiled code from disk"
    if in_notebook():
        CellOutput().show(preformatted(words), words)
        return
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


@final
class Progress:
    """Call ``tick`` after every event. ``shown`` None shows the bar on a terminal and in a notebook."""

    def __init__(self, label: str, shown: bool | None = None) -> None:
        self._label = label
        self.shown = is_watched() if shown is None else shown
        self._events = 0
        self._began = 0.0
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        self._began = monotonic()
        if self.shown:
            report_compiling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def tick(self, share_done: Callable[[], float | None]) -> None:
        """Count an event; ``share_done`` returns the finished fraction of the work, or None if it is not known."""
        self._events += 1
        if self._events % EVENTS_BETWEEN_UPDATES == 0:
            self.show(share_done())

    def show(self, share: float | None) -> None:
        """Show the finished fraction of the work; None if it is not known."""
        if not self.shown:
            return
        if self._bar is None:
            if monotonic() - self._began < SECONDS_BEFORE_SHOWING:
                return
            self._bar = open_bar(self._label)
        self._bar.show(share)
