"""Ctrl-C, SIGTERM and SIGHUP: the first ends the run cleanly, a second Ctrl-C or SIGTERM immediately."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Self, final

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANGUP = getattr(signal, "SIGHUP", None)
"""Sent when the terminal is closed; None on Windows."""


@contextlib.contextmanager
def first_signals(call: Callable[[str], object], numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """In the main thread, the first of these signals calls a function; another one does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(number: int, _: object) -> None:
        restore()
        call(signal.Signals(number).name)

    for number in numbers:
        if before[number] is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()


@final
class Interruption:
    """A context manager: in the main thread, the first signal calls ``ask``, a second raises KeyboardInterrupt.

    With ``hangup``, SIGHUP calls ``ask`` too, unless it is ignored, as under ``nohup``. It never counts as the second
    signal, because shell and kernel may both send one when a terminal is closed.
    """

    def __init__(self, ask: Callable[[str], None], *, hangup: bool = False) -> None:
        self._ask = ask
        self._hangup = hangup
        self._asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
            if self._hangup and HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:
                self._before[HANGUP] = signal.signal(HANGUP, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            if number == HANGUP:
                return
            raise KeyboardInterrupt
        self._asked = True
        self._ask(signal.Signals(number).name)
