"""The losses of many runs that differ in stepsize and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers

COLUMNS = ("losses", "step", "gradients", "time")


@final
@dataclass(frozen=True, eq=False)
class SweepRun:
    """One run of a sweep: its losses (infinite from where it diverged) and when they were evaluated."""

    losses: Floats
    step: Floats
    gradients: Floats
    time: Floats
    answer: float | None = None
    """The loss of the output rule's answer; None if the answer is the last iterate."""


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
    engine: str
    """Whether all runs were compiled ("compiled") or some were not ("reference")."""
    answers: Floats | None = None
    """With an output rule: the loss of its answer, [stepsize, seed], infinite where the run diverged."""
    config: dict[str, Any] = field(default_factory=dict)
    """What was run, in plain words and numbers."""

    @classmethod
    def of(
        cls,
        stepsizes: Floats,
        seeds: Integers,
        runs: Mapping[tuple[float, int], SweepRun],
        engine: str,
        config: dict[str, Any],
    ) -> Self:
        """From the runs by stepsize and seed."""
        table = [[runs[size, seed] for seed in seeds.tolist()] for size in stepsizes.tolist()]
        longest = max(len(run.losses) for row in table for run in row)
        losses, step, gradients, time = (_padded(table, name, longest) for name in COLUMNS)
        diverged = np.asarray(np.isinf(losses).any(axis=2))
        losses[diverged[:, :, None] & np.isnan(losses)] = np.inf
        answers = None
        if table[0][0].answer is not None:
            answers = np.array([[run.answer for run in row] for row in table], dtype=np.float64)
            answers[diverged | ~np.isfinite(answers)] = np.inf
        return cls(stepsizes, seeds, losses, step, gradients, time, diverged, engine, answers, config)

    def run(self, place: int, seed_place: int) -> SweepRun:
        """The run with the stepsize and the seed at these places."""
        made = ~np.isnan(self.step[place, seed_place])
        return SweepRun(
            losses=self.curves[place, seed_place][made],
            step=self.step[place, seed_place][made],
            gradients=self.gradients[place, seed_place][made],
            time=self.time[place, seed_place][made],
            answer=None if self.answers is None else float(self.answers[place, seed_place]),
        )

    def save(self, folder: str | Path) -> Path:
        """Write it into a new folder. ``Sweep.load`` reads it, and ``nw.sweep(..., folder=...)`` adds to it."""
        from nowait.recording.sweep_folder import SweepFolder

        target = SweepFolder.create(folder, self.stepsizes, self.seeds, self.config)
        for place, size in enumerate(self.stepsizes.tolist()):
            runs = {(size, seed): self.run(place, number) for number, seed in enumerate(self.seeds.tolist())}
            target.add(runs, self.engine)
        return target.path

    @classmethod
    def load(cls, folder: str | Path) -> Sweep:
        """Read a finished sweep from its folder. One that is damaged or not finished is refused."""
        from nowait.recording.sweep_folder import SweepFolder

        return SweepFolder.open(folder).finished()

    @property
    def final(self) -> Floats:
        """The last loss of every run, at its last iterate: [stepsize, seed]."""
        return _last(self.curves)

    @property
    def decisive(self) -> Floats:
        """By which stepsizes are compared: the loss of the output rule's answer, or the last loss."""
        return self.final if self.answers is None else self.answers

    @property
    def lowest(self) -> Floats:
        """The lowest loss of every run: [stepsize, seed]."""
        lowest: Floats = np.nanmin(self.curves, axis=2)
        return lowest

    @property
    def best(self) -> float:
        """The stepsize with the lowest median of ``decisive`` over the seeds, among those that never diverged."""
        return float(self.stepsizes[self.best_place])

    @property
    def best_place(self) -> int:
        """Where ``best`` stands among the stepsizes."""
        steady = ~self.diverged.any(axis=1)
        if not steady.any():
            raise ValueError(
                f"every stepsize diverged for some seed: try smaller ones than {self.stepsizes.min():.3g}, the smallest"
            )
        return int(np.where(steady, np.median(self.decisive, axis=1), np.inf).argmin())

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


def _padded(table: list[list[SweepRun]], name: str, longest: int) -> Floats:
    """A column of all runs, [stepsize, seed, evaluation]; NaN after the end of a run."""
    padded = np.full((len(table), len(table[0]), longest), np.nan)
    for place, row in enumerate(table):
        for number, run in enumerate(row):
            column = getattr(run, name)
            padded[place, number, : len(column)] = column
    return padded


def _last(curves: Floats) -> Floats:
    """The last entry of every curve that is not NaN."""
    places = curves.shape[2] - 1 - np.isnan(curves)[:, :, ::-1].argmin(axis=2)
    last: Floats = np.take_along_axis(curves, places[:, :, None], axis=2)[:, :, 0]
    return last
