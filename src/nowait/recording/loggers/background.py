"""Calls functions in a thread, so that a run does not wait for a server of a tracker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, final


@final
class Background:
    """Calls functions one after the other in a thread; exceptions are passed to ``on_error``."""

    def __init__(self, name: str, on_error: Callable[[Exception], object]) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._on_error = on_error
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Any]) -> None:
        """Call a function soon."""
        self._calls.put(function)

    def close(self, seconds: float) -> bool:
        """Wait until all calls are done, at most this long; returns False if they are not."""
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                function()
            except Exception as error:
                self._on_error(error)
