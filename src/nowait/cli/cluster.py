"""What commands share: the speeds of a mixed cluster, and the folder for results."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nowait.core.types import Floats
from nowait.numerics.elementary import exp
from nowait.recording.fresh import is_taken


def mixed_cluster(workers: int, straggler: float, seed: int) -> Floats:
    """Return seconds per gradient: lognormal around 1, and one straggler."""
    seconds: Floats = exp(0.5 * np.round(np.random.default_rng(seed).standard_normal(workers), 9))
    seconds[-1] = straggler * float(np.median(seconds))
    return seconds


def check_new_folder(folder: Path) -> None:
    """Raise if something is in the folder, or it is not a folder."""
    if is_taken(folder):
        raise FileExistsError(f"{folder} exists: choose another --folder")


def make_folder(folder: Path) -> None:
    """Create the folder before the work starts, so that no result is lost."""
    check_new_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {folder} ({error.strerror}): choose another --folder") from error
