"""A progress bar, shown on a terminal after a second of work, and a spinner for waits of unknown length.

While it is open, a line also tells, once in a process, that kernels are being compiled: numba does that at their first
use on a machine and caches the result on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from threading import Lock
from time import monotonic
from types import TracebackType
from typing import Any, Self, final

EVENTS_BETWEEN_UPDATES = 256
SECONDS_BEFORE_SHOWING = 1.0

_title: ContextVar[str] = ContextVar("title", default="")


def is_on_terminal() -> bool:
    """Return True if standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def titled(title: str) -> Iterator[None]:
    """Let the progress bars and live views that are made inside show this title instead of their own."""
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
    """Show a spinner and the seconds so far while something takes time; None shows it on a terminal."""
    with Progress(label, shown) as bar:
        bar.open()
        yield


@cache
def report_compiling() -> None:
    """Write a line to standard error when the first kernel is compiled."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            write_compiling_line()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]


@cache
def write_compiling_line() -> None:
    """Write the line, once in a process."""
    sys.stderr.write("compiling, once: later runs load the compiled code from disk\n")
    sys.stderr.flush()


@final
class Progress:
    """Call ``tick`` after every event. ``shown`` None shows the bar if standard error is a terminal."""

    def __init__(self, label: str, shown: bool | None = None) -> None:
        self._label = title_or(label)
        self.shown = is_on_terminal() if shown is None else shown
        self._events = 0
        self._began = 0.0
        self._bar: Any = None
        self._task: Any = None
        self._opening = Lock()

    def __enter__(self) -> Self:
        self._began = monotonic()
        if self.shown:
            report_compiling()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shown = False
        if self._bar is not None:
            with suppress(OSError):  # the terminal was closed
                self._bar.stop()

    def tick(self, share_done: Callable[[], float | None]) -> None:
        """Count an event; ``share_done`` returns the finished fraction of the work, or None if it is not known."""
        self._events += 1
        if self._events % EVENTS_BETWEEN_UPDATES == 0:
            self.show(share_done())

    def show(self, share: float | None) -> None:
        """Show the finished fraction of the work; None if it is not known. Any thread may call this."""
        if not self.shown or (self._bar is None and monotonic() - self._began < SECONDS_BEFORE_SHOWING):
            return
        self.open()
        words = "" if share is None else f"{share:.0%}"
        self._bar.update(self._task, completed=share or 0.0, total=None if share is None else 1.0, share=words)

    def open(self) -> None:
        """Show the bar now, if it is to be shown at all. Until ``show`` is called, it is a spinner."""
        if not self.shown:
            return
        with self._opening:  # threads of a sweep may come here together
            if self._bar is None:
                self._open()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        text = (SpinnerColumn(), TextColumn("{task.description}"))
        columns = (*text, BarColumn(bar_width=24), TextColumn("{task.fields[share]}"), TimeElapsedColumn())
        console = Console(stderr=True, markup=False, emoji=False)
        bar = RichProgress(*columns, console=console, transient=True)
        self._task = bar.add_task(self._label, total=None, share="")
        bar.start()
        self._bar = bar
