"""Ctrl-C and SIGTERM: the first asks the run to end well, the second ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self, final

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@final
class Interruption:
    """While this is entered in the main thread, a first signal calls ``ask``; a second raises KeyboardInterrupt."""

    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        self._ask(signal.Signals(number).name)
