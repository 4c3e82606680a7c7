"""The watcher that all calls of ``nw.train(..., watch=True)`` in a process share: one page shows all their runs."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from nowait.dashboard.watcher import Watcher, watch

_LOCK = threading.Lock()
_SHARED: list[Watcher] = []


def watch_in_background(folder: Path) -> Watcher:
    """Show a folder on the page of this process, which is opened at the first call. Its address is printed."""
    with _LOCK:
        if _SHARED:
            _SHARED[0].add(folder)
        else:
            _SHARED.append(watch(folder))
    sys.stderr.write(f"Watch this run at {_SHARED[0].url}\n")
    sys.stderr.flush()
    return _SHARED[0]


def close_shared() -> None:
    """Close the page of this process, if there is one."""
    with _LOCK:
        while _SHARED:
            _SHARED.pop().close()
