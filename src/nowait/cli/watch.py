"""``nowait watch``: serves the page until Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import nowait as nw
from nowait.cli.exits import StoppedError, signal_of
from nowait.cli.results import open_console
from nowait.engines.host_names import is_loopback


def run_watch(folders: list[Path], host: str, port: int, token: str | None, browser: bool | None) -> None:
    """Print the address and wait. Ctrl-C ends the command with status 130, as it does for every command."""
    console = open_console(stderr=True)
    with nw.watch(folders, host=host, port=port, token=token, open_browser=browser) as watcher:
        if not is_loopback(host):
            words = "Other machines can open this page, and it is not encrypted: only the token protects it."
            console.print(words, style="yellow", highlight=False)
        for folder in folders:
            if not folder.exists():
                console.print(f"{folder} does not exist yet: its runs appear when it does.", highlight=False)
        open_console().print(f"Watching {', '.join(map(str, folders))} at", highlight=False)
        open_console().print(watcher.url, highlight=False, soft_wrap=True)
        console.print("Ctrl-C ends it.", highlight=False)
        try:
            watcher.wait()
        except KeyboardInterrupt as error:
            raise StoppedError("Stopped watching.", signal_of(error)) from error
