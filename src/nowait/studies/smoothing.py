"""Smoothed losses: one lucky evaluation is no progress."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nowait.core.types import Floats

NARROW = 10
"""The window reaches a tenth of the evaluations of a run to both sides."""


def smoothed(losses: Floats) -> Floats:
    """Return the running median of a run's losses over a fifth of its evaluations.

    It is the same for losses that only decrease. The first ones have narrower windows, and the loss at the start stays.
    The last ones have no window, and are NaN, like what is NaN at the end of the row.

    >>> smoothed(np.array([9.0, 8.0, 7.0, 1.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])).tolist()
    [9.0, 8.0, 7.0, 6.0, 5.0, 5.0, 4.0, 3.0, 2.0, nan]
    """
    known = losses[~np.isnan(losses)]
    half = len(known) // NARROW
    result = np.full_like(losses, np.nan)
    for place in range(min(half, len(known) - half)):
        result[place] = np.median(known[: 2 * place + 1])
    if len(known) > 2 * half:
        result[half : len(known) - half] = np.median(sliding_window_view(known, 2 * half + 1), axis=-1)
    return result
