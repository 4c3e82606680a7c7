"""``nw.watch``: a page that shows runs while they run."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from nowait.core import checks

if TYPE_CHECKING:
    from nowait.dashboard.runs import RunTable
    from nowait.dashboard.server import WatchServer

ANY_ADDRESS = ("0.0.0.0", "::", "")
SECONDS_BETWEEN_SIGNALS = 0.5
"""How often ``wait`` lets Python handle signals."""


@final
class Watcher:
    """Serves the page until it is closed, or until the process ends. ``nw.watch`` returns one."""

    def __init__(self, server: WatchServer, runs: RunTable) -> None:
        self._server = server
        self._runs = runs
        self._closed = threading.Event()

    @property
    def url(self) -> str:
        """The address of the page, with the token."""
        host, port = self._server.host_and_port
        if host in ANY_ADDRESS:
            import socket

            host = socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/?token={self._server.access.token}"

    def add(self, folder: str | Path) -> None:
        """Also show the runs in this folder."""
        self._runs.watch(Path(checks.path(folder)))

    def wait(self) -> None:
        """Wait until it is closed, or until Ctrl-C raises ``KeyboardInterrupt``."""
        while not self._closed.wait(SECONDS_BETWEEN_SIGNALS):
            pass

    def close(self) -> None:
        """Stop serving. Pages that are open say so."""
        if not self._closed.is_set():
            self._closed.set()
            self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Watcher({self.url!r})"

    def _repr_html_(self) -> str:
        from html import escape

        return f'<a href="{escape(self.url)}" target="_blank" rel="noopener">{escape(self.url)}</a>'


def watch(
    folders: str | Path | Sequence[str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    open_browser: bool | None = None,
) -> Watcher:
    """Serve a page that shows runs while they run, and also runs that have finished or were killed.

    ``folders`` are run folders, or folders that contain runs: new runs in them appear on the page. They need not exist
    yet. The page needs nothing of the runs but their files, so a run may be started before or after, by any process.

    Only this machine can open the page. ``host="0.0.0.0"`` also lets other machines open it, unencrypted; everybody
    needs the token in ``url``. ``port`` 0 is any free one. ``token`` None makes a random one. ``open_browser`` None
    opens a browser if there is a screen. The watcher is a context manager; ``close`` ends it, ``wait`` waits for that.

    >>> import nowait as nw
    >>> with nw.watch("runs") as watcher:
    ...     watcher.url.startswith("http://127.0.0.1:")
    True
    """
    from nowait.dashboard.access import Access
    from nowait.dashboard.runs import RunTable
    from nowait.dashboard.server import WatchServer
    from nowait.dashboard.site import Site
    from nowait.engines.host_names import own_names

    runs = RunTable(checked_folders(folders))
    access = Access(token, host, own_names(host))
    try:
        server = WatchServer((host, port), access, Site(runs))
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot listen at {host}, port {port}: {error}; port 0 chooses a free one") from error
    server.start()
    watcher = Watcher(server, runs)
    if open_browser or (open_browser is None and has_screen()):
        import webbrowser

        webbrowser.open(watcher.url)
    return watcher


def checked_folders(folders: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the folders as paths; raise if one is a file, or if there is none."""
    given = folders if isinstance(folders, Sequence) and not isinstance(folders, str) else [folders]
    paths = [Path(checks.path(folder)) for folder in given]
    if not paths:
        raise ValueError("there is no folder to watch: give a run folder, or a folder that contains runs")
    for path in paths:
        if path.is_file():
            raise NotADirectoryError(f"{path} is a file: give a run folder, or a folder that contains runs")
    return paths


def has_screen() -> bool:
    """Return True if a browser would open where the user sees it: on a terminal of a machine with a screen."""
    if not (sys.stderr is not None and sys.stderr.isatty()) or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
