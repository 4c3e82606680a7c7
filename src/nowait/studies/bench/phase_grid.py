"""The points of the phase diagram: noise, spread of speeds, and number of workers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.speeds import LogNormal, Recorded, Speeds, alibaba
from nowait.studies.bench.clusters import at_unit_rate
from nowait.theory import speedup

JOBS = (1, 2, 3, 4)
JITTER = 0.1
"""Sigma of the durations of a worker."""


@final
@dataclass(frozen=True)
class PhasePoint:
    """A cluster and a level of noise: workers with speeds spread over a ratio, or a recorded job."""

    workers: int
    noise: float
    """The variance of a gradient, relative to the squared norm of the gradient at the start."""
    ratio: float | None = None
    """Seconds per gradient of the slowest worker over those of the fastest one."""
    job: int | None = None
    """The recorded job; its workers are drawn again if there are more or fewer than it has."""

    @property
    def key(self) -> str:
        """The name of the point."""
        cluster = f"job {self.job}" if self.job is not None else f"ratio {self.ratio:g}"
        return f"{self.workers} workers, {cluster}, noise {self.noise:g}"

    def speeds(self) -> Speeds:
        """Return the speeds; the harmonic mean of the seconds per gradient is 1."""
        if self.job is not None:
            job = alibaba(self.job)
            return at_unit_rate(job if job.num_workers == self.workers else job.bootstrapped(self.workers))
        return LogNormal(self._medians(), sigma=JITTER)

    def heterogeneity(self) -> float:
        """Return s_max/HM of the mean seconds, the paper's speedup of asynchrony."""
        speeds = self.speeds()
        means = [float(np.mean(own)) for own in speeds.seconds] if isinstance(speeds, Recorded) else self._medians()
        return float(speedup(means).speedup)

    def _medians(self) -> list[float]:
        assert self.ratio is not None
        spread = [float(f"{value:.6g}") for value in np.exp(np.linspace(0.0, math.log(self.ratio), self.workers))]
        harmonic = self.workers / math.fsum(1.0 / value for value in spread)
        return [float(f"{value / harmonic:.6g}") for value in spread]


@final
@dataclass(frozen=True)
class PhaseGrid:
    """All points of a phase diagram: a grid for each number of workers, and the recorded jobs."""

    workers: tuple[int, ...]
    ratios: tuple[float, ...]
    noises: tuple[float, ...]
    jobs: tuple[int, ...] = JOBS

    def points(self) -> list[PhasePoint]:
        """Return the points of the grids, then those of the recorded jobs on grids of at least ten workers."""
        grid = [
            PhasePoint(workers, noise, ratio=ratio)
            for workers in self.workers
            for noise in self.noises
            for ratio in self.ratios
        ]
        recorded = [
            PhasePoint(workers, noise, job=job)
            for workers in self.workers
            if workers >= 10
            for noise in self.noises
            for job in self.jobs
        ]
        return grid + recorded
