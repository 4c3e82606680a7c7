"""Compute times of a recorded run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from nowait.speeds.speeds import Speeds, Timing


@final
@dataclass
class Recorded(Speeds):
    """Every worker repeats its compute times from a recorded run, in their order; the list repeats when it ends.

    For what-if questions: another method or stepsize with the same workers. ``trace`` is ``run.trace`` of any engine.
    Cancelled tickets whose results never arrived have no time and are left out. Workers without a recorded time, and
    workers that join with a higher number than the recorded ones, use the times of the others in turn.

    >>> import nowait as nw
    >>> problem, speeds = nw.problems.NoisyQuadratic(dimension=3), nw.speeds.Exponential(1.0, workers=4)
    >>> run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.1)), speeds, steps=100)
    >>> again = nw.simulate(problem, nw.MinibatchSGD(nw.Constant(0.1)), Recorded(run.trace), steps=10)
    >>> again.stats.seconds < run.stats.seconds
    True
    """

    trace: Any
    num_workers: int = field(init=False, repr=False)
    seconds: list[list[float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not hasattr(self.trace, "compute_seconds"):
            raise TypeError(f"trace must be the trace of a run, as in Recorded(run.trace), got {self.trace!r}")
        times: dict[int, list[float]] = {}
        for worker, seconds in zip(self.trace.worker.tolist(), self.trace.compute_seconds.tolist(), strict=True):
            times.setdefault(worker, []).append(seconds)
        if not times:
            raise ValueError("the trace has no arrivals, so it has no compute times: take the trace of a longer run")
        self.num_workers = self.trace.num_workers
        known = [times[worker] for worker in sorted(times)]
        self.seconds = [
            times.get(worker, known[worker % len(known)]) for worker in range(max(max(times) + 1, self.num_workers))
        ]

    def timing(self, seed: int) -> Timing:
        """Return a function that gives the worker's recorded time for the job."""
        times = self.seconds

        def recorded(worker: int, job: int, start: float) -> tuple[float, float]:
            mine = times[worker % len(times)]
            seconds = mine[job % len(mine)]
            return seconds, start + seconds

        return recorded
