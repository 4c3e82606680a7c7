"""Which stepsize to try next. Decides from the trials so far and starts nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nowait.studies.tuner import FARTHER

Score = tuple[int, float]
"""How good a trial was, lower is better: whether it failed, then by how much."""
REACHED, UNFINISHED, DIVERGED = 0, 1, 2
"""The first part of a score: the trial reached its target, it used up its budget, it diverged."""
SAME_GAP = 1.001
"""Two gaps between stepsizes count as equally wide up to this factor, because of rounding."""


def next_size(scores: Mapping[float, Score], start: float) -> float:
    """Return the stepsize of the next trial: ``start``, then beyond the end that is best, then nearer to the best.

    >>> (
    ...     next_size({}, 0.1),
    ...     next_size({0.1: (UNFINISHED, 2.0)}, 0.1),
    ...     next_size({0.1: (DIVERGED, 0.0)}, 0.1),
    ... )
    (0.1, 0.4, 0.025)
    >>> next_size(
    ...     {0.1: (UNFINISHED, 2.0), 0.4: (DIVERGED, 0.0), 0.025: (UNFINISHED, 3.0)}, 0.1
    ... )
    0.05
    """
    if not scores:
        return start
    sizes, best = sorted(scores), best_size(scores)
    if best is None:
        return sizes[0] / FARTHER
    if best == sizes[-1]:
        return best * FARTHER
    if best == sizes[0]:
        return best / FARTHER
    place = sizes.index(best)
    below, above = sizes[place - 1], sizes[place + 1]
    return math.sqrt(best * (above if _is_above_better(scores, below, best, above) else below))


def best_size(scores: Mapping[float, Score]) -> float | None:
    """Return the stepsize with the lowest score; None if every trial diverged."""
    size = min(scores, key=lambda one: (scores[one], one))
    return None if scores[size][0] == DIVERGED else size


def _is_above_better(scores: Mapping[float, Score], below: float, best: float, above: float) -> bool:
    """Return True if the next trial is above the best: where the gap is wider, or else the neighbour is better."""
    up, down = above / best, best / below
    if max(up, down) > SAME_GAP * min(up, down):
        return up > down
    return scores[above] < scores[below]
