"""New folders: numbered names that are not in use, and the rule that no file is overwritten."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from nowait.core import checks


def fresh_folder(base: str | Path) -> Path:
    """Create the first of the folders ``base-1``, ``base-2``, ... that does not exist, and return its path.

    Use it where the same code runs several times, such as a notebook cell: every run gets a folder of its own. Two
    processes that call it at the same time get different folders.

    >>> run = nw.train(
    ...     problem, method, workers=4, steps=1000, folder=nw.fresh_folder("runs/mine")
    ... )  # doctest: +SKIP
    """
    first = Path(checks.path(base, "base"))
    if not first.name or first.name == "..":
        raise ValueError(f"base must end in a name such as 'runs/mine', got {str(base)!r}: a number is added to it")
    first.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        candidate = first.with_name(f"{first.name}-{number}")
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("count() never ends")


def nearest_folder(path: Path) -> Path:
    """Return the nearest of the path's parents that exists."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def is_taken(path: Path) -> bool:
    """Return True if something exists at the path, other than an empty folder.

    The current folder counts as taken: results are moved to their place by a rename, which would remove it.
    """
    if path.resolve() == Path.cwd():
        return True
    if path.is_dir() and not path.is_symlink():
        with os.scandir(path) as entries:
            return any(True for _ in entries)
    return os.path.lexists(path)
