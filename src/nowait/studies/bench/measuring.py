"""Runs of the benchmark: a trial is simulated until it reaches the target, and recorded so that it can be verified."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, final

import numpy as np

from nowait.core import Method, Problem
from nowait.recording import Run, Trace
from nowait.recording.rows import ARRIVAL_DTYPE
from nowait.speeds import Speeds
from nowait.studies.bench.contenders import UPDATES, Contender
from nowait.studies.bench.records import Entry, Measured, Task, Trial
from nowait.studies.bench.running import evaluated_seconds, exact_seconds, run_to_target
from nowait.studies.bench.suite import Suite, Workload
from nowait.studies.bench.tuning import NOTHING, Score

KeepTrace = Callable[[Task, int, Trace], None]
"""Receives the trace of a run: its task, its seed, the trace."""


@final
class Cell:
    """One cell of the tables, ready to run."""

    def __init__(self, suite: Suite, task: Task, contender: Contender, source: str = "") -> None:
        self.task = task
        self.source = source
        """A hash of the file of a method of the user's own."""
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
            source=self.source,
            runs=tuple(self.measured(best, run) for run in runs),
        )

    def measure(self, trial: Trial, limit: float) -> Score:
        """Run a trial with the tuning seeds. It stops at the time at which it cannot win any more."""
        target, times, losses = self.workload.problem.target, [], []
        for seed in self.workload.tuning_seeds:
            run = self.run(trial, seed, limit, trace="none")
            found = evaluated_seconds(run, target)
            if found is None and limit < math.inf:
                return NOTHING
            times.append(math.inf if found is None else found)
            losses.append(math.inf if run.stats.diverged else float(run.history.loss[-1]))
        missed = max(times) == math.inf
        return Score(missed, max(losses) if missed else max(times))

    def run(self, trial: Trial, seed: int, limit: float = math.inf, trace: str = "full") -> Run:
        """Simulate a trial with a seed until it reaches the target, or the end of its time."""
        bench = self.workload.problem
        return run_to_target(
            *self._parts(trial),
            target_loss=bench.target,
            seconds=min(limit, bench.seconds),
            evaluate_seconds=self.workload.evaluate_seconds,
            trace=trace,
            **self._options(trial, seed),
        )

    def measured(self, trial: Trial, run: Run) -> Measured:
        """Return what a run reached, with its digests."""
        seed, loss = int(run.config["seed"]), float(run.history.loss[-1])
        target, options = self.workload.problem.target, self._options(trial, seed)
        history = np.stack([run.history.time.astype(np.float64), run.history.loss.astype(np.float64)])
        return Measured(
            seed=seed,
            seconds=exact_seconds(run, target, *self._parts(trial), **options),
            loss=loss if math.isfinite(loss) and not run.stats.diverged else None,
            steps=run.stats.steps,
            gradients=run.stats.gradients,
            trace=trace_digest(run.trace),
            losses=array_digest(history),
            params=array_digest(run.last),
        )

    def _parts(self, trial: Trial) -> tuple[Problem, Method, Speeds]:
        return self.problem, self.method_of(trial), self.speeds

    def _options(self, trial: Trial, seed: int) -> dict[str, Any]:
        return {"update": UPDATES[trial.update], "faults": self.faults, "seed": seed}

    def method_of(self, trial: Trial) -> Method:
        """Return the method of a trial."""
        return self.contender.choices[trial.choice](trial.stepsize)


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
