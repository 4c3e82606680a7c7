"""Runs of the benchmark: a trial is simulated until it reaches the target, and recorded so that it can be verified."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from nowait.api.simulate import simulate
from nowait.core import Method
from nowait.recording import Run, Trace
from nowait.recording.rows import ARRIVAL_DTYPE
from nowait.studies.bench.contenders import UPDATES, Contender
from nowait.studies.bench.suite import Suite, Task, Workload
from nowait.studies.bench.tuning import Score, Trial
from nowait.studies.quiet import quiet

KeepTrace = Callable[[Task, int, Trace], None]
"""Receives the trace of a run: its task, its seed, the trace."""


@final
@dataclass(frozen=True)
class Measured:
    """One run of an entry: what it reached, and digests with which another run is compared bit for bit."""

    seed: int
    seconds: float | None
    """The time of the first evaluation at or below the target; None if it was not reached."""
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

    @property
    def task(self) -> Task:
        """The cell that the entry belongs to."""
        return Task(self.problem, self.cluster, self.method)

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
class Cell:
    """One cell of the tables, ready to run."""

    def __init__(self, suite: Suite, task: Task, contender: Contender) -> None:
        self.task = task
        self.contender = contender
        self.workload: Workload = suite.workload(task.problem)
        cluster = suite.clusters[task.cluster]
        self.problem = self.workload.problem.make()
        self.speeds, self.faults = cluster.speeds(), cluster.faults()

    def entry(self, keep_trace: KeepTrace | None = None) -> Entry:
        """Tune the method, and run it with the seeds of the suite; the trace of the first run is kept."""
        bench = self.workload.problem
        best, score = self.workload.tuning.best(self.contender, bench.unit, self.speeds.num_workers, self.measure)
        method, update = self.method_of(best), UPDATES[best.update]
        runs = [self.run(best, seed) for seed in self.workload.seeds]
        if keep_trace is not None:
            keep_trace(self.task, self.workload.seeds[0], runs[0].trace)
        return Entry(
            problem=self.task.problem,
            cluster=self.task.cluster,
            method=self.task.method,
            choice=best.choice,
            update=best.update,
            stepsize=best.stepsize,
            config={"method": repr(method), "update": "usual" if update is None else repr(update)},
            tuned=None if score.missed else score.worst,
            runs=tuple(measured(run, bench.target) for run in runs),
        )

    def measure(self, trial: Trial, limit: float) -> Score:
        """Run a trial with the tuning seeds, at most for the time after which another trial is better."""
        target, worst = self.workload.problem.target, 0.0
        for seed in self.workload.tuning_seeds:
            run = self.run(trial, seed, limit, trace="none")
            found = measured_seconds(run, target)
            if found is None:
                loss = math.inf if run.stats.diverged else float(run.history.loss[-1])
                return Score(missed=True, worst=loss)
            worst = max(worst, found)
        return Score(missed=False, worst=worst)

    def run(self, trial: Trial, seed: int, limit: float = math.inf, trace: str = "full") -> Run:
        """Simulate a trial with a seed until it reaches the target, or the end of its time."""
        with quiet():
            return simulate(
                self.problem,
                self.method_of(trial),
                self.speeds,
                seconds=min(limit, self.workload.problem.seconds),
                target_loss=self.workload.problem.target,
                evaluate_seconds=self.workload.evaluate_seconds,
                update=UPDATES[trial.update],
                faults=self.faults,
                seed=seed,
                trace=trace,
                progress=False,
            )

    def method_of(self, trial: Trial) -> Method:
        """Return the method of a trial."""
        return self.contender.choices[trial.choice](trial.stepsize)


def measured(run: Run, target: float) -> Measured:
    """Return what a run reached, with its digests."""
    loss = float(run.history.loss[-1])
    history = np.stack([run.history.time.astype(np.float64), run.history.loss.astype(np.float64)])
    return Measured(
        seed=int(run.config["seed"]),
        seconds=measured_seconds(run, target),
        loss=loss if math.isfinite(loss) and not run.stats.diverged else None,
        steps=run.stats.steps,
        gradients=run.stats.gradients,
        trace=trace_digest(run.trace),
        losses=array_digest(history),
        params=array_digest(run.last),
    )


def measured_seconds(run: Run, target: float) -> float | None:
    """Return the time of the first evaluation at or below the target; None if there is none."""
    reached = np.flatnonzero(run.history.loss <= target)
    return float(run.history.time[reached[0]]) if len(reached) else None


def trace_digest(trace: Trace) -> str:
    """Return a hash of all arrivals and other events of a trace, but for the norms of gradients."""
    digest = hashlib.sha256()
    for name in ARRIVAL_DTYPE.names or ():
        if name != "gradient_norm":
            digest.update(np.ascontiguousarray(trace.arrivals[name]).tobytes())
    digest.update(np.ascontiguousarray(trace.events).tobytes())
    return digest.hexdigest()[:16]


def array_digest(array: Any) -> str:
    """Return a hash of the bits of an array."""
    return hashlib.sha256(np.ascontiguousarray(np.asarray(array)).tobytes()).hexdigest()[:16]
