"""The contract of an engine, as checks that run on any engine. Each raises ``AssertionError``.

An engine is given as a function ``train(problem, method, *, workers, **options) -> Run`` that takes the options that
all engines have: budgets, ``evaluate_every``, ``update``, ``output``, ``callbacks`` and ``seed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nowait.core import BadWorkerError, Constant, DelayAdaptive, Momentum, Sample, Server, UniformAverage, sampler
from nowait.core.types import Vector
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.session import Parts
from nowait.engines.simulator import replay
from nowait.methods import AsynchronousSGD, MinibatchSGD, RandomAssignment
from nowait.problems import NoisyQuadratic
from nowait.recording import Callback, Control, Run, TraceRecorder

Engine = Callable[..., Run]
QUADRATIC = NoisyQuadratic(dimension=5, L=1.0, mu=0.5, sigma=0.1)
METHOD = AsynchronousSGD(DelayAdaptive(0.05))


class Bad:
    """A quadratic whose gradient is bad at one (worker, job), or always for one worker."""

    dimension = 5

    def __init__(self, kind: str, worker: int, job: int | None = None) -> None:
        self.kind, self.worker, self.job = kind, worker, job

    def initial(self) -> Vector:
        """Return the initial params of the quadratic."""
        return QUADRATIC.initial()

    def loss(self, point: Vector) -> float:
        """Return the loss of the quadratic."""
        return QUADRATIC.loss(point)

    def gradient(self, point: Vector, sample: Sample) -> Vector:
        """NaN, too short, an error, or right."""
        if sample.worker == self.worker and self.job in (None, sample.job):
            if self.kind == "error":
                raise ArithmeticError("no gradient today")
            return np.full(5, math.nan) if self.kind == "nan" else np.zeros(3)
        return QUADRATIC.gradient(point, sample)


def budgets_end_the_run(train: Engine) -> None:
    """Steps and gradients are counted exactly."""
    assert train(QUADRATIC, METHOD, workers=3, steps=40).stats.steps == 40
    assert train(QUADRATIC, MinibatchSGD(Constant(0.1)), workers=3, gradients=30).stats.gradients == 30
    reached = train(QUADRATIC, METHOD, workers=2, target_loss=0.05, evaluate_every=5)
    assert reached.history.loss.min() <= 0.05


def the_trace_tells_what_happened(train: Engine) -> None:
    """Unique tickets, delays that count steps, times that do not run backwards, everybody's jobs in order."""
    trace = train(QUADRATIC, RandomAssignment(Constant(0.02)), workers=4, steps=200).trace
    assert len(np.unique(trace.ticket)) == len(trace)
    made_before = np.concatenate([[0], np.maximum.accumulate(trace.step)[:-1]])
    assert np.array_equal(trace.delay, made_before + 1 - trace.version)
    assert (np.diff(trace.time) >= 0).all()
    assert (trace.started <= trace.time).all()
    assert (trace.compute_seconds >= 0).all()
    for worker in range(4):
        assert (np.diff(trace.job[trace.worker == worker]) == 1).all()


def the_trace_replays(train: Engine) -> None:
    """A replay gives the same iterates, with any update, output and seed."""
    update, output = Momentum(0.3), UniformAverage()
    run = train(QUADRATIC, METHOD, workers=3, steps=150, update=update, output=output, seed=4)
    again = _replay(run, Momentum(0.3), UniformAverage(), seed=4)
    assert np.array_equal(again.params, run.params)
    assert np.array_equal(again.last, run.last)


def samples_are_those_of_worker_and_job(train: Engine) -> None:
    """The first gradient of every worker is at x_0, with the sample of its job 0."""
    trace = train(QUADRATIC, MinibatchSGD(Constant(0.1)), workers=3, steps=5, seed=8).trace
    for worker in range(3):
        first = np.flatnonzero(trace.worker == worker)[0]
        expected = QUADRATIC.gradient(QUADRATIC.initial(), sampler(8).sample(worker, 0))
        assert math.isclose(trace.gradient_norm[first], float(np.linalg.norm(expected)), rel_tol=1e-9)


def losses_are_those_of_the_iterates(train: Engine) -> None:
    """From x_0 to x_K, with the step and the time of the params they were computed at."""
    run = train(QUADRATIC, METHOD, workers=3, steps=100, evaluate_every=20)
    every = _replay(run, None, None, seed=0, evaluate_every=1).history
    assert run.history.step[0] == 0
    assert run.history.step[-1] == 100
    assert np.array_equal(run.history.loss, every.loss[run.history.step])
    assert np.array_equal(run.history.time, every.time[run.history.step])


def callbacks_stop_add_and_remove(train: Engine) -> None:
    """Workers that a callback adds or removes do join or leave."""
    changes = Changes()
    run = train(QUADRATIC, MinibatchSGD(Constant(0.1)), workers=3, steps=10**8, callbacks=[changes])
    assert changes.joined == [3]
    assert changes.lost == [1]
    assert run.trace.live_workers[-1] == 3
    assert 3 in run.trace.worker


def callbacks_see_the_start_and_the_end(train: Engine) -> None:
    """``on_start`` comes before everything else and ``on_end`` last, with the run, or None if the run failed."""
    seen = Ends()
    run = train(QUADRATIC, METHOD, workers=2, steps=40, evaluate_every=20, callbacks=[seen])
    assert seen.calls[0] == ("start", 0)
    assert seen.calls[-1] == ("end", 40)
    assert ("evaluate", 40) in seen.calls
    assert seen.runs[0] is not None
    assert seen.runs[0].stats.gradients == run.stats.gradients
    failed = Ends()
    _error_of(lambda: train(Bad("error", worker=0), METHOD, workers=1, steps=60, callbacks=[failed]))
    assert failed.runs == [None], f"on_end of a run that failed was called with {failed.runs}"


def a_bad_gradient_is_rejected_and_computed_again(train: Engine) -> None:
    """NaN never reaches params; something of the wrong shape is an error that names the worker."""
    run = train(Bad("nan", worker=1, job=4), MinibatchSGD(Constant(0.05)), workers=2, steps=10)
    assert run.stats.rejected == 1, "every worker has a job 4, and its ticket is issued again as job 5"
    assert run.stats.steps == 10
    assert np.isfinite(run.last).all()
    error = _error_of(lambda: train(Bad("shape", worker=0), METHOD, workers=1, steps=60))
    assert isinstance(error, BadWorkerError), f"gradients of the wrong shape ended in {error!r}"
    assert "worker 0 sent float64 of shape (3,)" in str(error)


def an_error_in_the_problem_is_shown(train: Engine) -> None:
    """The run ends with the message, not with a hang."""
    error = _error_of(lambda: train(Bad("error", worker=0), METHOD, workers=1, steps=60))
    assert "no gradient today" in str(error), f"the error of the problem ended in {error!r}"


def divergence_is_a_result(train: Engine) -> None:
    """Divergence raises no exception: ``stats.diverged`` is set, with advice."""
    run = train(QUADRATIC, AsynchronousSGD(Constant(50.0)), workers=2, steps=100_000)
    assert run.stats.diverged
    assert "stepsize" in run.stats.advice


ENGINE_CHECKS: list[Callable[[Engine], None]] = [
    budgets_end_the_run,
    the_trace_tells_what_happened,
    the_trace_replays,
    samples_are_those_of_worker_and_job,
    losses_are_those_of_the_iterates,
    callbacks_stop_add_and_remove,
    callbacks_see_the_start_and_the_end,
    a_bad_gradient_is_rejected_and_computed_again,
    an_error_in_the_problem_is_shown,
    divergence_is_a_result,
]
"""Checks of an engine: a function that runs parts and returns a ``Run``."""


class Changes(Callback):
    """Adds a worker and removes another, and stops the run some time after both have happened."""

    def __init__(self) -> None:
        self.joined: list[int] = []
        self.lost: list[int] = []
        self.steps_since = 0

    def on_step(self, control: Control) -> None:
        """Request the changes at step 20, and stop after both happened."""
        if control.steps == 20:
            control.add_workers(1)
            control.remove_worker(1)
        if self.joined and self.lost:
            self.steps_since += 1
        if self.steps_since > 5:
            control.stop()

    def on_worker_join(self, control: Control, worker: int) -> None:
        """One joined."""
        self.joined.append(worker)

    def on_worker_lost(self, control: Control, worker: int) -> None:
        """One left."""
        self.lost.append(worker)


class Ends(Callback):
    """Records when a run starts, is evaluated and ends."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self.runs: list[Run | None] = []

    def on_start(self, control: Control) -> None:
        """Record it."""
        self.calls.append(("start", control.steps))

    def on_evaluate(self, control: Control) -> None:
        """Record the step that was evaluated."""
        self.calls.append(("evaluate", control.loss_step))

    def on_end(self, control: Control, run: Run | None) -> None:
        """Record it."""
        self.calls.append(("end", control.steps))
        self.runs.append(run)


def _error_of(function: Callable[[], Any]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def _replay(run: Run, update: Any, output: Any, seed: int, evaluate_every: int | None = None) -> Run:
    workers, budget = run.trace.initial_workers.tolist(), Budget(gradients=len(run.trace) + 1)
    recorder = TraceRecorder(workers)
    server = Server(METHOD, QUADRATIC.initial(), workers, update=update, output=output, seed=seed, log=recorder)
    plan = EvaluationPlan.of(evaluate_every, budget)
    return replay(Parts(QUADRATIC, server, recorder, budget, plan, replaying=True), run.trace, seed, progress=False)
