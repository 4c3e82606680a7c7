"""Signals during sweeps and studies, which make many runs: none may be lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self, final

from nowait.engines.signals import SIGNALS
from nowait.recording import Interrupted


@final
class Watch:
    """A context manager: in the main thread, SIGINT and SIGTERM raise ``Interrupted``.

    Python prints and drops an exception that a signal handler raises inside a finalizer or a C callback (the compiler
    uses such callbacks). So the signal is stored as well, and ``check`` and the end of the ``with`` block raise again.
    """

    def __init__(self) -> None:
        self._signal = ""
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise ``Interrupted`` if a signal was received."""
        if self._signal:
            raise Interrupted(self._signal)

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                    self._before[number] = signal.getsignal(number)
                    signal.signal(number, self._on_signal)
        except BaseException:  # a signal came meanwhile
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._restore()
        finally:  # a signal that comes meanwhile leaves no handler behind
            self._restore()
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self.check()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        raise Interrupted(self._signal)
