"""The records of a benchmark: what a method reached on a problem and a cluster, and at a point of the phase diagram."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

import numpy as np

from nowait.studies.bench.phase_grid import PhasePoint


@final
@dataclass(frozen=True)
class Task:
    """One cell of the tables: a method on a problem and a cluster."""

    problem: str
    cluster: str
    method: str

    @property
    def key(self) -> str:
        """The name of the entry."""
        return f"{self.problem}/{self.cluster}/{self.method}"


class Trial(NamedTuple):
    """One setting of a method."""

    choice: str
    update: str
    stepsize: float


@final
@dataclass(frozen=True)
class Measured:
    """One run of an entry: what it reached, and digests with which another run is compared bit for bit."""

    seed: int
    seconds: float | None
    """The time of the first step at or below the target; None if it was not reached."""
    loss: float | None
    """The last loss; None if the run diverged."""
    steps: int
    gradients: int
    trace: str
    """A hash of the arrivals and the other events."""
    losses: str
    """A hash of all evaluations."""
    params: str
    """A hash of the last params."""


@final
@dataclass(frozen=True)
class Entry:
    """The result of a method on a problem and a cluster: its best setting, and runs with the seeds of the suite."""

    problem: str
    cluster: str
    method: str
    choice: str
    update: str
    stepsize: float
    config: dict[str, Any]
    """The method and the update in words, for readers; a run is made from the fields above."""
    tuned: float | None
    """The longest time to the target over the tuning seeds; None if one did not reach it."""
    runs: tuple[Measured, ...]
    source: str = ""
    """A hash of the file of a method of the user's own."""

    @property
    def task(self) -> Task:
        """The cell that the entry belongs to."""
        return Task(self.problem, self.cluster, self.method)

    @property
    def key(self) -> str:
        """The name of the entry."""
        return self.task.key

    @property
    def trial(self) -> Trial:
        """The setting."""
        return Trial(self.choice, self.update, self.stepsize)

    @property
    def times(self) -> list[float]:
        """The time to the target of every run, infinity where it was not reached."""
        return [math.inf if run.seconds is None else run.seconds for run in self.runs]

    @property
    def median(self) -> float:
        """The median time to the target."""
        return float(np.median(self.times))

    def as_dictionary(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Entry:
        """Return the entry from JSON values."""
        return cls(**(values | {"runs": tuple(Measured(**run) for run in values["runs"])}))


@final
@dataclass(frozen=True)
class PhaseEntry:
    """The median time of every method at a point; None if it did not reach the target."""

    point: PhasePoint
    heterogeneity: float
    seconds: dict[str, float | None]

    @property
    def key(self) -> str:
        """The name of the entry."""
        return self.point.key

    @property
    def winner(self) -> str | None:
        """The method with the shortest median time; None if none reached the target."""
        reached = {name: time for name, time in self.seconds.items() if time is not None}
        return min(reached, key=lambda name: reached[name]) if reached else None

    def lead(self) -> float:
        """Return the time of the second method over that of the first; infinity if only one reached the target."""
        times = sorted(math.inf if time is None else time for time in self.seconds.values())
        return times[1] / times[0] if len(times) > 1 and times[0] < math.inf else math.inf

    def as_dictionary(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> PhaseEntry:
        """Return the entry from JSON values."""
        return cls(PhasePoint(**values["point"]), values["heterogeneity"], values["seconds"])
