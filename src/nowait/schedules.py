"""Schedules of the stepsize over the steps of the server, for ``nw.Scheduled``. Products of them are schedules, too.

>>> import nowait as nw
>>> schedule = nw.schedules.warmup(10) * nw.schedules.cosine(1_000, final=0.1)
>>> rule = nw.Scheduled(nw.DelayAdaptive(0.5), schedule)
>>> rule(delay=1, num_workers=4, step=1)
0.05
"""

from nowait.core.schedules import CosineDecay, LinearDecay, Schedule, Warmup

__all__ = ["Schedule", "cosine", "linear", "warmup"]


def warmup(steps: int) -> Schedule:
    """Return a schedule that rises from 1/steps at the first step to 1 at step ``steps``, and stays there."""
    return Warmup(steps)


def linear(steps: int, final: float = 0.0) -> Schedule:
    """Return a schedule that falls from 1 to ``final`` along a line over ``steps`` steps, and stays there."""
    return LinearDecay(steps, final)


def cosine(steps: int, final: float = 0.0) -> Schedule:
    """Return a schedule that falls from 1 to ``final`` along half a cosine over ``steps`` steps, and stays there."""
    return CosineDecay(steps, final)
