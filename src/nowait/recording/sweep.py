"""The losses of many runs that differ in stepsize and seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers


@final
@dataclass(frozen=True, eq=False)
class Sweep:
    """What ``nw.sweep`` returns. The first axis of every array is the stepsize, the second the seed.

    Losses of a run that diverged are infinite from there on. Where a run has fewer evaluations than another, the rest
    of its row is NaN.
    """

    stepsizes: Floats
    seeds: Integers
    curves: Floats
    """The loss at every evaluation, x_0 first: [stepsize, seed, evaluation]."""
    step: Floats
    """After how many steps that was, in the same shape; ``gradients`` and ``time`` (virtual seconds) alike."""
    gradients: Floats
    time: Floats
    diverged: NDArray[np.bool_]
    """Whether a run diverged: [stepsize, seed]."""
    way: str
    """Whether the runs were compiled or made the reference way."""

    @property
    def final(self) -> Floats:
        """The last loss of every run: [stepsize, seed]."""
        return _last(self.curves)

    @property
    def lowest(self) -> Floats:
        """The lowest loss of every run: [stepsize, seed]."""
        lowest: Floats = np.nanmin(self.curves, axis=2)
        return lowest

    @property
    def best(self) -> float:
        """The stepsize with the lowest median of final losses over the seeds, among those that never diverged."""
        return float(self.stepsizes[self.best_place])

    @property
    def best_place(self) -> int:
        """Where ``best`` stands among the stepsizes."""
        steady = ~self.diverged.any(axis=1)
        if not steady.any():
            raise ValueError(
                f"every stepsize diverged for some seed: try smaller ones than {self.stepsizes.min():.3g}, the smallest"
            )
        return int(np.where(steady, np.median(self.final, axis=1), np.inf).argmin())

    @property
    def advice(self) -> str:
        """What to do about the grid; empty if the best stepsize lies inside it."""
        if self.diverged.any(axis=1).all():
            return f"every stepsize diverged for some seed: try smaller ones than {self.stepsizes.min():.3g}"
        if len(self.stepsizes) > 1 and self.best in (self.stepsizes.min(), self.stepsizes.max()):
            end = "smallest" if self.best == self.stepsizes.min() else "largest"
            return f"the best stepsize, {self.best:.3g}, is the {end} of the grid: a wider grid may do better"
        return ""

    def __repr__(self) -> str:
        found = "all diverged" if self.diverged.any(axis=1).all() else f"best {self.best:.3g}"
        return f"Sweep({len(self.stepsizes)} stepsizes, {len(self.seeds)} seeds, {found})"


def _last(curves: Floats) -> Floats:
    """The last entry of every curve that is not NaN."""
    places = curves.shape[2] - 1 - np.isnan(curves)[:, :, ::-1].argmin(axis=2)
    last: Floats = np.take_along_axis(curves, places[:, :, None], axis=2)[:, :, 0]
    return last
