"""Compute times of a recorded job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self, final

import numpy as np

from nowait.core import checks
from nowait.core.randomness import Stream
from nowait.core.types import Floats
from nowait.recording import Trace
from nowait.speeds.formula import RECORDED, Formula, stream_key
from nowait.speeds.reading import Paths, read_record
from nowait.speeds.speeds import WHY_WORKERS, Speeds, Timing, per_worker
from nowait.speeds.worker_times import WorkerTimes, times_of_trace


@final
class Recorded(Speeds):
    """Every worker repeats its compute times from a recorded job, in their order; the list repeats when it ends.

    For what-if questions: another method or stepsize with the same workers. ``trace`` is ``run.trace`` of any engine;
    ``Recorded.of`` takes lists of times, and ``Recorded.read`` the path of a file. Cancelled tickets whose results
    never arrived have no time and are left out. Workers without a recorded time, and workers that join with a higher
    number than the recorded ones, use the times of the others in turn.

    >>> import nowait as nw
    >>> problem = nw.problems.NoisyQuadratic(dimension=3)
    >>> speeds = nw.speeds.Exponential(1.0, workers=4)
    >>> run = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.1)), speeds, steps=100)
    >>> again = nw.simulate(
    ...     problem, nw.MinibatchSGD(nw.Constant(0.1)), Recorded(run.trace), steps=10
    ... )
    >>> again.stats.seconds < run.stats.seconds
    True
    """

    def __init__(self, trace: Trace | WorkerTimes) -> None:
        self.times = trace if isinstance(trace, WorkerTimes) else times_of_trace(trace)
        self.num_workers = trace.num_workers if isinstance(trace, Trace) else len(self.times)
        self._means = self.times.means()
        if not (self._means > 0).all():
            raise ValueError(f"all times of worker {int(self._means.argmin())} are 0: a gradient must take some time")

    @classmethod
    def of(cls, seconds: Iterable[Sequence[float] | Floats], *, source: str = "lists of times") -> Self:
        """Make recorded speeds of one list or array of times for every worker. ``source`` is for reports.

        >>> Recorded.of([[1.0, 1.5, 1.0], [4.0]])
        Recorded(lists of times: 2 workers, 4 times)
        """
        return cls(WorkerTimes.of(seconds, source))

    @classmethod
    def read(
        cls,
        path: Paths,
        *,
        worker: str | None = None,
        seconds: str | None = None,
        start: str | None = None,
        step: str | None = None,
        unit: str | None = None,
        event: str | None = None,
        world_size: int | None = None,
    ) -> Self:
        """Read the times of a job from a file: a table, a trace of a profiler, or the folder of a run.

        Of a CSV or Parquet table, ``worker``, ``seconds``, ``start`` and ``step`` name the columns (the last two may
        be missing), and ``unit`` is that of the seconds: "s", "ms", "us", "ns" or "min". Times are in the order of
        the steps, or else of the starts, or else of the rows. Known without names are tables with columns "worker" (or
        "rank") and "seconds" (or "duration"), and those of Alibaba and ByteDance. Of ``torch.profiler`` pass the
        traces of all ranks, as a list of files or a folder; ``event`` names the events that are steps, if those are
        not ``ProfilerStep#N``. A step's time is what the rank did not spend waiting in collective operations.
        ``world_size`` is how many workers the job had, if the file has fewer; by default it is what the traces say, or
        what follows from workers that are numbers.
        """
        names = {"worker": worker, "seconds": seconds, "start": start, "step": step}
        return cls(read_record(path, names, unit, event, world_size))

    @property
    def seconds(self) -> list[Floats]:
        """The times of every worker, in their order."""
        return [self.times.of_worker(worker) for worker in range(len(self.times))]

    def scaled(self, factor: float | Sequence[float]) -> Recorded:
        """Return the same job with all times multiplied by a factor, or those of each worker by its own.

        >>> Recorded.of([[1.0, 1.5], [4.0, 4.5]]).scaled([2.0, 0.5]).seconds
        [array([2., 3.]), array([2.  , 2.25])]
        """
        factors = per_worker(factor, self.num_workers, "factor").array
        return Recorded(self.times.scaled(np.resize(factors, len(self.times))))

    def bootstrapped(self, workers: int, *, block: int | None = None, seed: int = 0) -> Recorded:
        """Return a job with any number of workers that is like the recorded one.

        New worker w has as many times as recorded worker w modulo their number, made of blocks of ``block``
        consecutive times of that worker: slow workers stay slow, and so do slow phases that are shorter than a block.
        By default a block is as long as the square root of the number of times. Another ``seed`` draws other blocks.

        >>> Recorded.of([[1.0, 1.0, 9.0, 9.0], [4.0]]).bootstrapped(100, block=2).num_workers
        100
        """
        count = checks.at_least(1, workers, "workers", WHY_WORKERS)
        if block is not None:
            block = checks.at_least(1, block, "block", "it is a number of consecutive times")
        return Recorded(self.times.bootstrapped(count, block, seed))

    def timing(self, seed: int) -> Timing:
        """Return a function that gives the worker's recorded time for the job."""
        times = [mine.tolist() for mine in self.seconds]

        def recorded(worker: int, job: int, start: float) -> tuple[float, float]:
            mine = times[worker % len(times)]
            seconds = mine[job % len(mine)]
            return seconds, start + seconds

        return recorded

    def formula(self, seed: int) -> Formula:
        """Return the recorded times for compiled code, with the mean of each worker as its parameter."""
        key, times = stream_key(Stream(seed, "speed")), self.times
        return Formula(RECORDED, key, self._means, times=times.seconds, offsets=times.offsets)

    def described(self) -> dict[str, Any]:
        """Return what ``config.json`` says about these speeds: a checksum instead of all times."""
        times = {"array": [len(self.times.seconds)], "dtype": "float64", "crc32": self.times.checksum()}
        return {"type": "Recorded", "source": self.times.source, "workers": self.num_workers, "times": times}

    def __repr__(self) -> str:
        return f"Recorded({self.times!r})"
