"""Where the speeds of a plan or a race come from: given, simulated, recorded or measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.api.train import train
from nowait.api.train_arguments import TOGETHER
from nowait.core import Constant, Problem, checks
from nowait.core.types import Floats
from nowait.fleet.options import RayCluster
from nowait.methods import AsynchronousSGD, MinibatchSGD
from nowait.problems import NoisyQuadratic
from nowait.recording import Interrupted, Run, Trace
from nowait.speeds import Fixed, Recorded, Speeds
from nowait.studies.whatif import steps_of
from nowait.theory.speedup import checked_seconds

STANDING_STILL = AsynchronousSGD(Constant(1e-12))
STANDING_IN_ROUNDS = MinibatchSGD(Constant(1e-12))
"""Measure speeds: params hardly move."""
GRADIENTS_EACH = 200
NO_EVALUATION = 2**40
ENOUGH_EACH, MOST_PROBES, LONGER = 2, 3, 3
"""A probe in which a worker delivers fewer gradients than ENOUGH_EACH is repeated, LONGER times as long."""
MOST_ROUNDS = 1_000
BLOCKS = 8
"""A worker's times are split into so many blocks, whose means tell how far its mean can be trusted."""


@final
@dataclass(frozen=True, eq=False)
class Source:
    """Speeds of workers and their averages."""

    speeds: Speeds
    seconds: Floats
    """The mean seconds per gradient of every worker."""
    words: str
    """Where the speeds come from, for the report."""
    rate: float
    """Gradients per second of all workers together."""
    round_seconds: float
    """Mean seconds of the slowest worker of a round: more than the slowest worker's mean if times vary."""
    errors: Floats | None = None
    """The standard errors of the logarithms of ``seconds``; None if they are exact."""
    silent: int = 0
    """How many workers delivered no gradient in the trace; they count as taking as long as the whole run."""

    @classmethod
    def of_seconds(cls, seconds: Iterable[float]) -> Self:
        """Make a source of each worker's seconds per gradient."""
        values = checked_seconds(seconds, "seconds_per_gradient")
        words = f"{len(values)} workers with the seconds per gradient given"
        return cls(Fixed(values.tolist()), values, words, float((1 / values).sum()), float(values.max()))

    @classmethod
    def of_speeds(cls, speeds: Speeds, seed: int) -> Self:
        """Make a source of any speeds, with averages from a short simulation if they are not recorded times."""
        checks.instance(speeds, Speeds, "speeds", "nw.speeds.Fixed([1.0, 1.0, 10.0])")
        if isinstance(speeds, Recorded):
            return cls._of_record(speeds)
        count = GRADIENTS_EACH * speeds.num_workers
        still = NoisyQuadratic(dimension=2)
        run = simulate(still, STANDING_STILL, speeds, gradients=count, seed=seed, progress=False)
        words = f"{speeds.num_workers} workers, {speeds!r}"
        complete, _, _ = completed(run.trace)
        rate = len(run.trace) / run.stats.seconds
        errors = log_errors(times_by_worker(complete))
        rounds = simulate(still, STANDING_IN_ROUNDS, speeds, steps=GRADIENTS_EACH, seed=seed, progress=False)
        round_seconds = rounds.stats.seconds / GRADIENTS_EACH
        return cls(speeds, mean_seconds(complete), words, rate, round_seconds, errors)

    @classmethod
    def _of_record(cls, recorded: Recorded) -> Self:
        """Make a source of a recorded job, with the averages of all its times."""
        means = recorded.times.means()[: recorded.num_workers]
        waiting = float(steps_of(recorded.times).table.max(axis=1).mean())
        errors = log_errors(recorded.seconds[: recorded.num_workers])
        return cls(recorded, means, repr(recorded.times), float((1 / means).sum()), waiting, errors)

    @classmethod
    def of_trace(cls, trace: Trace, words: str = "a recorded run") -> Self:
        """Make a source of a run's trace, whose compute times are repeated; all its workers, in order."""
        checks.instance(trace, Trace, "trace", "run.trace")
        complete, numbers, silent = completed(trace)
        words = f"{words}: {complete.num_workers} workers, {len(trace):,} gradients"
        if numbers != list(range(len(numbers))):
            words += f" (workers {', '.join(map(str, numbers))} are counted from 0 here)"
        if silent:
            words += f"; {len(silent)} delivered nothing, and count as slow as the run was long"
        rate, round_seconds = _settled_rate(trace), _round_seconds(complete)
        errors = log_errors(times_by_worker(complete))
        return cls(Recorded(complete), mean_seconds(complete), words, rate, round_seconds, errors, len(silent))

    @classmethod
    def of_probe(
        cls,
        problem: Problem | None,
        workers: int | None,
        probe_seconds: float,
        *,
        slowdown: Any = None,
        speeds: Speeds | None = None,
        engine: str | RayCluster = "processes",
        seed: int = 0,
    ) -> Self:
        """Make a source by measuring real workers, which compute gradients of the problem for ``probe_seconds``.

        A gradient takes from one arrival of its worker to the next: with what the server and the transport need, so
        that simulated workers deliver as many gradients per second as the measured ones.
        """
        if problem is None:
            raise ValueError(
                "a probe measures your problem's gradients: pass the problem, or give seconds_per_gradient="
            )
        seconds = checks.positive(probe_seconds, "probe_seconds", "workers need time to be measured")
        for _ in range(MOST_PROBES):
            run = _probe(
                problem,
                workers=workers,
                engine=engine,
                seconds=seconds,
                slowdown=slowdown,
                speeds=speeds,
                seed=seed,
            )
            counts = np.bincount(run.trace.worker, minlength=run.trace.num_workers)
            if counts.min() >= ENOUGH_EACH:
                break
            seconds *= LONGER
        where = "this machine" if engine == "processes" else "the cluster"
        return cls.of_trace(from_arrival_to_arrival(run.trace), f"a probe of {where} for {run.stats.seconds:.3g} s")


def _probe(problem: Problem, **where: Any) -> Run:
    """Return a run that measures speeds; raise ``Interrupted`` if a signal ended it."""
    try:
        run = train(problem, STANDING_STILL, **where, evaluate_every=NO_EVALUATION, start=TOGETHER, progress=False)
        signal = Interrupted.of(run).signal if run.stats.interrupted else ""
    except Interrupted as error:
        signal = error.signal
    if signal:
        raise Interrupted(signal, f"{signal} ended the probe of the workers' speeds")
    return run


def _settled_rate(trace: Trace) -> float:
    """Return gradients per second in the second half of a run: in the first, all workers start together."""
    last = float(trace.time[-1])
    settled = trace.time > last / 2
    return float(settled.sum() / (last / 2)) if last > 0 else 1.0


def from_arrival_to_arrival(trace: Trace) -> Trace:
    """Return the trace of asynchronous SGD with the times between a worker's arrivals as its compute times.

    The first gradient of a worker keeps its own time, since no arrival precedes it.
    """
    arrivals = trace.arrivals.copy()
    order = np.argsort(arrivals["worker"], kind="stable")
    same_worker = np.diff(arrivals["worker"][order]) == 0
    between = np.diff(arrivals["time"][order])[same_worker]
    later = order[1:][same_worker]
    arrivals["compute_seconds"][later] = np.maximum(between, arrivals["compute_seconds"][later])
    return replace(trace, source=arrivals)


def completed(trace: Trace) -> tuple[Trace, list[int], list[int]]:
    """Return the trace with workers renumbered from 0, their former numbers, and those without any gradient.

    The latter get one gradient that took as long as the run.
    """
    if not len(trace):
        raise ValueError("no gradient arrived, so there are no speeds to plan with: probe or record for longer")
    numbers = sorted({*trace.initial_workers.tolist(), *trace.worker.tolist()})
    silent = sorted(set(numbers) - set(trace.worker.tolist()))
    added = np.zeros(len(silent), trace.arrivals.dtype)
    added["worker"], added["compute_seconds"] = silent, max(trace.seconds, float(trace.time[-1]))
    arrivals = np.concatenate([trace.arrivals, added])
    arrivals["worker"] = np.searchsorted(numbers, arrivals["worker"])
    complete = replace(
        trace, source=arrivals, events=trace.events[:0], initial_workers=np.arange(len(numbers), dtype=np.int64)
    )
    return complete, numbers, silent


def mean_seconds(complete: Trace) -> Floats:
    """Return the mean compute seconds of every worker: of a simulation with this trace, its seconds per gradient."""
    counts = np.bincount(complete.worker, minlength=complete.num_workers)
    totals = np.bincount(complete.worker, complete.compute_seconds, minlength=complete.num_workers)
    return np.asarray(np.maximum(totals / np.maximum(counts, 1), 1e-12))


def times_by_worker(complete: Trace) -> list[Floats]:
    """Return the compute times of every worker, in their order."""
    return [complete.compute_seconds[complete.worker == worker] for worker in range(complete.num_workers)]


def log_errors(times: list[Floats]) -> Floats:
    """Return the standard errors of the logarithms of the workers' mean times.

    They come from the means of consecutive blocks, whose logarithms scatter little even if times have heavy tails. A
    worker with fewer than two times gets the largest error of the others.
    """
    errors = np.array([_log_error(mine) for mine in times])
    known = errors[~np.isnan(errors)]
    return np.where(np.isnan(errors), known.max() if len(known) else 0.0, errors)


def _log_error(times: Floats) -> float:
    blocks = np.array_split(times, min(BLOCKS, len(times)))
    logs = np.log([max(float(block.mean()), 1e-300) for block in blocks])
    return float(logs.std(ddof=1) / math.sqrt(len(logs))) if len(logs) > 1 else math.nan


def _round_seconds(complete: Trace) -> float:
    """Return the mean over rounds of the longest compute time of all workers, in the order ``Recorded`` uses them."""
    times = times_by_worker(complete)
    rounds = min(MOST_ROUNDS, max(len(mine) for mine in times))
    dealt = np.array([mine[np.arange(rounds) % len(mine)] for mine in times])
    return float(dealt.max(axis=0).mean())
