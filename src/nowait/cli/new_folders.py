"""The folder that a command makes for its results if none is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from nowait.recording.fresh import fresh_folder

_made: list[Path] = []
"""The folders that this command made, with their parents that it made, innermost first."""


def free_folder(base: Path) -> Path:
    """Create and return the next numbered folder, such as runs/train-3 for runs/train."""
    parents = [parent.absolute() for parent in base.parents if not parent.exists()]
    folder = fresh_folder(base)
    _made.extend([folder.absolute(), *parents])
    return folder


@contextlib.contextmanager
def empty_folders_removed() -> Iterator[None]:
    """Remove the folders of ``free_folder`` in which the command has written nothing when it ends."""
    try:
        yield
    finally:
        while _made:
            with contextlib.suppress(OSError):
                _made.pop(0).rmdir()
