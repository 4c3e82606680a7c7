"""The losses of many runs that differ in stepsize and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.types import Floats, Integers

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

COLUMNS = ("losses", "step", "gradients", "time")


@final
@dataclass(frozen=True, eq=False)
class SweepRun:
    """One run of a sweep: its losses (infinite after it diverged) and when they were evaluated."""

    losses: Floats
    step: Floats
    gradients: Floats
    time: Floats
    answer: float | None = None
    """The loss of the output rule's result; None if the result is the last iterate."""


@final
@dataclass(frozen=True, eq=False)
class Sweep:
    """The result of ``nw.sweep``. The first axis of every array is the stepsize, the second the seed.

    After a run diverged, its losses are infinite. If a run has fewer evaluations than another, the rest of its row is
    NaN.
    """

    stepsizes: Floats
    """The stepsizes, in the order given."""
    seeds: Integers
    """The seeds, in the order given."""
    curves: Floats
    """The loss at every evaluation, x_0 first: [stepsize, seed, evaluation]."""
    step: Floats
    """The number of steps at every evaluation, in the same shape as ``curves``."""
    gradients: Floats
    """The number of gradients at every evaluation, in the same shape."""
    time: Floats
    """The virtual seconds at every evaluation, in the same shape."""
    diverged: NDArray[np.bool_]
    """True where a run diverged: [stepsize, seed]."""
    engine: str
    """``"compiled"`` if all runs were compiled (``"gpu"`` if all for a GPU), else ``"reference"``."""
    answers: Floats | None = None
    """With an output rule: the loss of its result, [stepsize, seed], infinite where the run diverged."""
    config: dict[str, Any] = field(default_factory=dict)
    """A description of what was run, as JSON values."""
    not_compiled: str = ""
    """Why runs that this call computed were not compiled together; empty if they were. It is not stored in folders."""

    @classmethod
    def of(
        cls,
        stepsizes: Floats,
        seeds: Integers,
        runs: Mapping[tuple[float, int], SweepRun],
        engine: str,
        config: dict[str, Any],
    ) -> Self:
        """Create a sweep from its runs by stepsize and seed."""
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
        """Return the run with the stepsize and the seed at these indices."""
        made = ~np.isnan(self.step[place, seed_place])
        return SweepRun(
            losses=self.curves[place, seed_place][made],
            step=self.step[place, seed_place][made],
            gradients=self.gradients[place, seed_place][made],
            time=self.time[place, seed_place][made],
            answer=None if self.answers is None else float(self.answers[place, seed_place]),
        )

    def save(self, folder: str | Path) -> Path:
        """Write the sweep into a new folder. ``Sweep.load`` reads it; ``nw.sweep(..., folder=...)`` adds runs to it."""
        from nowait.recording.sweep_folder import SweepFolder

        target = SweepFolder.create(folder, self.stepsizes, self.seeds, self.config)
        for place, size in enumerate(self.stepsizes.tolist()):
            runs = {(size, seed): self.run(place, number) for number, seed in enumerate(self.seeds.tolist())}
            target.add(runs, self.engine)
        return target.path

    @classmethod
    def load(cls, folder: str | Path) -> Sweep:
        """Read a finished sweep from its folder; raise ValueError if it is damaged or incomplete."""
        from nowait.recording.sweep_folder import SweepFolder

        return SweepFolder.open(folder).finished()

    @property
    def final(self) -> Floats:
        """The last loss of every run, at its last iterate: [stepsize, seed]."""
        return _last(self.curves)

    @property
    def decisive(self) -> Floats:
        """The losses by which stepsizes are compared: those of the output rule's result, or the last losses."""
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
        """The index of ``best`` in ``stepsizes``."""
        steady = ~self.diverged.any(axis=1)
        if not steady.any():
            raise ValueError(
                f"every stepsize diverged for some seed: try stepsizes below {self.stepsizes.min():.3g}, the smallest"
            )
        return int(np.where(steady, np.median(self.decisive, axis=1), np.inf).argmin())

    @property
    def advice(self) -> str:
        """A suggestion for another grid; empty if the best stepsize is not at an end of the grid."""
        if self.diverged.any(axis=1).all():
            return f"every stepsize diverged for some seed: try stepsizes below {self.stepsizes.min():.3g}"
        if len(self.stepsizes) > 1 and self.best in (self.stepsizes.min(), self.stepsizes.max()):
            end = "smallest" if self.best == self.stepsizes.min() else "largest"
            return f"the best stepsize, {self.best:.3g}, is the {end} of the grid: a wider grid may do better"
        return ""

    def to_pandas(self) -> pd.DataFrame:
        """Return a pandas data frame with one row per evaluation of every run."""
        from nowait.recording.dataframes import pandas_frame, sweep_columns

        return pandas_frame(sweep_columns(self))

    def to_polars(self) -> pl.DataFrame:
        """Return a polars data frame with one row per evaluation of every run."""
        from nowait.recording.dataframes import polars_frame, sweep_columns

        return polars_frame(sweep_columns(self))

    def _repr_html_(self) -> str:
        from nowait.recording.notebook import html_of_sweep

        return html_of_sweep(self)

    def __repr__(self) -> str:
        found = "all diverged" if self.diverged.any(axis=1).all() else f"best {self.best:.3g}"
        return f"Sweep({len(self.stepsizes)} stepsizes, {len(self.seeds)} seeds, {found})"


def _padded(table: list[list[SweepRun]], name: str, longest: int) -> Floats:
    """Return one column of all runs as [stepsize, seed, evaluation]; NaN after the end of a run."""
    columns = [getattr(run, name) for row in table for run in row]
    lengths = np.array([len(column) for column in columns])
    padded = np.full((len(columns), longest), np.nan)
    padded[np.arange(longest) < lengths[:, None]] = np.concatenate(columns)
    return padded.reshape(len(table), len(table[0]), longest)


def _last(curves: Floats) -> Floats:
    """Return the last entry of every curve that is not NaN."""
    indices = curves.shape[2] - 1 - np.isnan(curves)[:, :, ::-1].argmin(axis=2)
    last: Floats = np.take_along_axis(curves, indices[:, :, None], axis=2)[:, :, 0]
    return last
