"""Smoothed losses: one lucky evaluation is no progress."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nowait.core.types import Floats

NARROW = 10
"""By default the window reaches a tenth of the evaluations of a run to both sides."""


def smoothed(losses: Floats, half_width: int | None = None) -> Floats:
    """Return the running median of a run's losses over ``half_width`` evaluations to both sides.

    It is the same for losses that only decrease. The first ones have narrower windows, and the loss at the start stays.
    The last ones have no window, and are NaN, like what is NaN at the end of the row.

    >>> smoothed(
    ...     np.array([9.0, 8.0, 7.0, 1.0, 6.0, 5.0, 4.0, 3.0, 2.0]), half_width=1
    ... ).tolist()
    [9.0, 8.0, 7.0, 6.0, 5.0, 5.0, 4.0, 3.0, nan]
    """
    known = losses[~np.isnan(losses)]
    half = len(known) // NARROW if half_width is None else min(half_width, (len(known) - 1) // 2)
    result = np.full_like(losses, np.nan)
    for place in range(half):
        result[place] = np.median(known[: 2 * place + 1])
    if len(known):
        result[half : len(known) - half] = np.median(sliding_window_view(known, 2 * half + 1), axis=-1)
    return result
