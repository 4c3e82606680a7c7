"""A progress bar, shown on a terminal and in a notebook after a second of work, and a spinner for other waits.

While it is open, a line also tells, once in a process, that kernels are being compiled: numba does that at their first
use on a machine and caches the result on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock, Timer
from time import monotonic
from types import TracebackType
from typing import Any, Self, final

from nowait.engines.notebook import CellOutput, in_notebook
from nowait.engines.screens import Bar, is_on_terminal, is_watched, open_bar
from nowait.html import preformatted

EVENTS_BETWEEN_UPDATES = 256
SECONDS_BEFORE_SHOWING = 1.0

_title: ContextVar[str] = ContextVar("title", default="")


@contextmanager
def titled(title: str) -> Iterator[None]:
    """Let the runs that are made inside show this title in their progress bars and live views."""
    before = _title.set(title)
    try:
        yield
    finally:
        _title.reset(before)


def title_or(label: str) -> str:
    """Return the title of ``titled``, or this label outside of it."""
    return _title.get() or label


@contextmanager
def spinner(label: str, shown: bool | None = None) -> Iterator[None]:
    """Show a spinner while something takes time; None shows it on a terminal and in a notebook."""
    with Progress(label, shown) as bar:
        bar.open()
        yield


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
    """Call ``tick`` after every event. ``shown`` None shows the bar on a terminal and in a notebook.

    ``words`` returns what is written after the bar.
    """

    def __init__(self, label: str, shown: bool | None = None, words: Callable[[], str] = str) -> None:
        self._label = label
        self._words = words
        self.shown = is_watched() if shown is None else shown
        self._timer: Timer | None = None
        """Opens the bar on a terminal even if no event ends in the first second, as while code is compiled."""
        if shown is None and is_on_terminal():
            self._timer = Timer(SECONDS_BEFORE_SHOWING, self._open_late)
            self._timer.daemon = True
        self._events = 0
        self._began = 0.0
        self._bar: Bar | None = None
        self._opening = Lock()

    def __enter__(self) -> Self:
        self._began = monotonic()
        if self.shown:
            report_compiling()
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._opening:
            self.shown = False
        if self._bar is not None:
            self._bar.close()

    def tick(self, share_done: Callable[[], float | None]) -> None:
        """Count an event; ``share_done`` returns the finished fraction of the work, or None if it is not known."""
        self._events += 1
        if self._events % EVENTS_BETWEEN_UPDATES == 0:
            self.show(share_done())

    def show(self, share: float | None) -> None:
        """Show the finished fraction of the work; None if it is not known. Any thread may call this."""
        if not self.shown or (self._bar is None and monotonic() - self._began < SECONDS_BEFORE_SHOWING):
            return
        self._opened().show(share, self._words())

    def open(self) -> None:
        """Show the bar now, if it is to be shown at all. Until ``show`` is called, it is a spinner."""
        if not self.shown:
            return
        self._opened().show(None)

    def _open_late(self) -> None:
        with self._opening:
            if self.shown and self._bar is None:
                self._bar = open_bar(self._label)

    def _opened(self) -> Bar:
        with self._opening:  # threads of a sweep may come here together
            if self._bar is None:
                self._bar = open_bar(self._label)
            return self._bar
