"""What commands share: the speeds of a mixed cluster, and the folder for results."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import numpy as np

from nowait.core.types import Floats
from nowait.numerics.elementary import exp
from nowait.recording.fresh import is_taken

JITTER = 0.2
"""Compute times of a slowed worker are lognormal around its median; the standard deviation of their logarithms."""


def mixed_cluster(workers: int, straggler: float, seed: int) -> Floats:
    """Return seconds per gradient: lognormal around 1, and one straggler."""
    seconds: Floats = exp(0.5 * np.round(np.random.default_rng(seed).standard_normal(workers), 9))
    seconds[-1] = straggler * float(np.median(seconds))
    return seconds


def spread_cluster(workers: int, spread: float) -> Floats:
    """Return seconds per gradient: the quantiles of a lognormal distribution around 1, the slowest worker last.

    ``spread`` is the standard deviation of their logarithms.

    >>> spread_cluster(4, 1.0).round(2).tolist()
    [0.32, 0.73, 1.38, 3.16]
    """
    shares = (np.arange(workers) + 0.5) / workers
    normal = np.array([round(NormalDist().inv_cdf(float(share)), 9) for share in shares])
    seconds: Floats = exp(spread * normal)
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
