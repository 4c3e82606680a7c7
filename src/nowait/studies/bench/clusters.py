"""The clusters of the benchmark. Ten workers each; the harmonic mean of their seconds per gradient is 1.

So with all workers busy every cluster computes ten gradients per second, and the times on two clusters differ only by
how they are spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from nowait.core.randomness import CounterRandom, Stream, many_normals
from nowait.numerics.elementary import log
from nowait.speeds import Faults, LogNormal, Pareto, Recorded, Speeds, alibaba

WORKERS = 10
CALM_PHASE, SLOW_PHASE, SLOWDOWN = 30.0, 20.0, 10.0
"""Bursts: mean seconds of the phases of a worker, and how many times slower it is in a slow one."""
AVAILABLE = (10, 10, 9, 10, 7, 4, 4, 8, 10, 10, 10, 3, 1, 5, 9, 10, 10, 10, 6, 8)
"""How many spot machines there are in every ten seconds; made up, with the outages of a whole zone in mind."""


@final
@dataclass(frozen=True)
class Cluster:
    """A cluster: its speeds, and who leaves and joins."""

    name: str
    title: str
    speeds: Callable[[], Speeds]
    faults: Callable[[], Faults] = lambda: Faults([])


def clusters() -> dict[str, Cluster]:
    """Return all clusters by name."""
    made_up = [
        Cluster("equal", "equal workers", lambda: _log_normal([1.0] * WORKERS, 0.1)),
        Cluster("straggler-10", "one worker 10 x slower", lambda: _log_normal([1.0] * (WORKERS - 1) + [10.0], 0.1)),
        Cluster("straggler-100", "one worker 100 x slower", lambda: _log_normal([1.0] * (WORKERS - 1) + [100.0], 0.1)),
        Cluster("lognormal", "medians from 1 to 20", lambda: _log_normal(_spread(math.log(20)), 0.3)),
        Cluster("pareto", "heavy tails, shape 1.5", lambda: Pareto(1 / 3, shape=1.5, workers=WORKERS)),
        Cluster("bursts", "workers slow down by 10 for a while", bursts),
        Cluster(
            "spot",
            "spot machines come and go",
            lambda: _log_normal([1.0] * WORKERS, 0.3),
            lambda: Faults.from_availability(list(AVAILABLE) * 4, every=10.0),
        ),
    ]
    recorded = [
        Cluster(f"alibaba-{job}", f"Alibaba's job {job}, recorded", lambda job=job: at_unit_rate(alibaba(job)))  # type: ignore[misc]
        for job in (1, 2, 3, 4)
    ]
    return {cluster.name: cluster for cluster in (*made_up, *recorded)}


def at_unit_rate(recorded: Recorded) -> Recorded:
    """Return the recorded speeds scaled so that the harmonic mean of the workers' mean seconds is 1."""
    means = [math.fsum(seconds) / len(seconds) for seconds in recorded.seconds]
    return recorded.scaled(float(f"{_unit_scale(means):.6g}"))


def bursts() -> Recorded:
    """Return speeds of workers that are slowed by others on their machine: calm and slow phases of random length."""
    return at_unit_rate(Recorded.of([_bursts_of(worker) for worker in range(WORKERS)]))


def _bursts_of(worker: int, jobs: int = 1_000) -> list[float]:
    random, normals = CounterRandom(worker, "bursts"), many_normals(Stream(worker, "bursts").key(0, 1), jobs)
    seconds: list[float] = []
    slow, ends, now = False, _exponential(random, CALM_PHASE), 0.0
    for normal in normals.tolist():
        usual = 1.0 + 0.05 * max(-3.0, min(3.0, normal))
        seconds.append(round(usual * (SLOWDOWN if slow else 1.0), 4))
        now += seconds[-1]
        while now >= ends:
            slow = not slow
            ends += _exponential(random, SLOW_PHASE if slow else CALM_PHASE)
    return seconds


def _exponential(random: CounterRandom, mean: float) -> float:
    return -mean * float(log(random.uniform()))


def _log_normal(medians: list[float], sigma: float) -> LogNormal:
    """Return these speeds, scaled. The mean of a log-normal duration is its median times exp(sigma²/2)."""
    means = [median * math.exp(sigma**2 / 2) for median in medians]
    scale = float(f"{_unit_scale(means):.6g}")
    return LogNormal([median * scale for median in medians], sigma=sigma)


def _unit_scale(means: list[float]) -> float:
    """Return the factor that makes the harmonic mean 1."""
    return math.fsum(1.0 / mean for mean in means) / len(means)


def _spread(width: float) -> list[float]:
    """Return medians that are evenly spread in the logarithm."""
    return [float(f"{median:.6g}") for median in np.exp(np.linspace(0.0, width, WORKERS)).tolist()]
