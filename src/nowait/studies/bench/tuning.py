"""Which trials a method gets: a grid of stepsizes for each choice of parameters, then refinement around the best.

Decides only; ``Measure`` makes the runs. Every method gets the same number of trials, whatever it has to choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

from nowait.studies.bench.contenders import Contender
from nowait.studies.bench.records import Trial

RANGE = 300.0
"""The grid covers stepsizes over this factor, around the middle: each of n stepsizes stands for an nth part of it."""


class Score(NamedTuple):
    """How good a trial was; lower is better."""

    missed: bool
    """True if a seed did not reach the target."""
    worst: float
    """The longest time to the target over the seeds; if one missed it, the highest of the last losses."""

    @property
    def limit(self) -> float:
        """A trial that is still running at this time cannot win."""
        return math.inf if self.missed else self.worst


NOTHING = Score(missed=True, worst=math.inf)
Measure = Callable[[Trial, float], Score]
"""Runs a trial; it may stop at the given time, because it cannot win any more."""


@final
@dataclass(frozen=True)
class Tuning:
    """The number of trials of a method: those of the grid, and rounds of two trials that refine it."""

    grid: int
    rounds: int

    @property
    def trials(self) -> int:
        """The number of trials of a method."""
        return self.grid + 2 * self.rounds

    def grid_of(self, contender: Contender, unit: float, num_workers: int) -> tuple[list[Trial], float]:
        """Return the trials of the grid, middle stepsizes first, and the ratio of neighbouring stepsizes."""
        combinations = contender.combinations()
        count = self.grid // len(combinations)
        if count == 0:
            raise ValueError(
                f"a method has at most {self.grid} combinations of choices and updates, one trial each, got "
                f"{len(combinations)}"
            )
        ratio = RANGE ** (1 / count)
        trials = []
        for place in sorted((place - (count - 1) / 2 for place in range(count)), key=abs):
            for choice, update in combinations:
                middle = contender.middle(choice, update, unit, num_workers)
                trials.append(Trial(choice, update, rounded(middle * ratio**place)))
        return trials, ratio

    def best(self, contender: Contender, unit: float, num_workers: int, measure: Measure) -> tuple[Trial, Score]:
        """Return the best trial and its score."""
        trials, ratio = self.grid_of(contender, unit, num_workers)
        best, score = trials[0], NOTHING
        for trial in trials:
            best, score = _better(best, score, trial, measure)
        for _ in range((self.trials - len(trials)) // 2):
            ratio = math.sqrt(ratio)
            middle = best
            for factor in (ratio, 1.0 / ratio):
                near = middle._replace(stepsize=rounded(middle.stepsize * factor))
                best, score = _better(best, score, near, measure)
        return best, score


def _better(best: Trial, score: Score, trial: Trial, measure: Measure) -> tuple[Trial, Score]:
    found = measure(trial, score.limit)
    return (trial, found) if found < score else (best, score)


def rounded(stepsize: float) -> float:
    """Return a stepsize with four digits: short, and the same on every processor.

    >>> rounded(0.123456)
    0.1235
    """
    return float(f"{stepsize:.4g}")
