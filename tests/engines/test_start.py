"""The start of a run: what is wrong from the beginning, and how long it took."""

import importlib
import math

import numpy as np
import pytest

import nowait as nw

METHOD = nw.AsynchronousSGD(nw.Constant(0.1))
TWO = nw.speeds.Fixed([1.0, 2.0])


class Problem:
    """f(x) = ‖x‖²/2, but the loss at x_0 is not finite."""

    dimension = 2

    def __init__(self, first=math.nan):
        self._first = first

    def initial(self):
        return np.ones(2)

    def gradient(self, point, sample):
        return point.copy()

    def loss(self, point):
        return self._first if np.all(point == 1.0) else float(point @ point) / 2


class Compiled(nw.problems.NoisyQuadratic):
    """A problem that runs compiled, with a loss of its own."""

    def loss(self, point):
        return math.inf if np.array_equal(point, self.initial()) else 0.0


def check_advice(run):
    assert run.stats.diverged
    assert run.stats.advice.startswith("not finite before the first step: the loss at step 0 is ")
    assert run.stats.advice.endswith("Look at the problem's gradient and loss")


@pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_at_the_start_is_not_blamed_on_the_stepsize(first):
    check_advice(nw.simulate(Problem(first), METHOD, TWO, steps=20))


def test_nor_in_a_compiled_run():
    run = nw.simulate(Compiled(dimension=3), METHOD, TWO, steps=20)
    assert run.stats.engine == "compiled"
    check_advice(run)


def test_nor_with_real_workers_which_have_made_steps_when_the_loss_comes():
    check_advice(nw.train(Problem(), METHOD, workers=2, steps=100_000, progress=False))


def test_a_loss_that_comes_late_is_judged_by_the_step_it_is_of():
    """With real workers losses are evaluated beside the run, on snapshots."""
    from nowait.api.parts import make_parts
    from nowait.engines.budget import Budget
    from nowait.engines.session import Session, Snapshot
    from nowait.testing import gradient_from

    options = {"evaluate_every": None, "update": None, "output": None, "callbacks": (), "initial": None, "seed": 0}
    for step, words in ((0, "Look at the problem's gradient and loss"), (1, "Try a stepsize ten times smaller")):
        parts = make_parts(Problem(), METHOD, [0, 1], Budget(steps=9), **options)
        session = Session(parts, parts.server, parts.recorder, None, evaluator=NoAnswer())
        session.begin()
        session.start()
        for worker in (0, 1):
            session.handle(gradient_from(session.server, worker=worker))
        session.evaluated(Snapshot(step, step, 0.0), math.nan)
        assert session.server.steps == 2
        assert session.advice.endswith(words)


class NoAnswer:
    def evaluate(self, snapshot):
        pass


@pytest.mark.parametrize("problem", [Problem(), Compiled(dimension=3)], ids=["reference", "compiled"])
def test_a_sweep_and_a_race_refuse_a_loss_that_is_not_finite_at_the_start(problem):
    message = r"the loss of the initial params is (nan|inf): look at the problem's loss\(point\) and initial\(\)"
    with pytest.raises(ValueError, match=message):
        nw.sweep(problem, METHOD, TWO, stepsizes=[0.1, 0.2], steps=20)
    with pytest.raises(ValueError, match=message):
        nw.race(problem, {"a": METHOD, "b": METHOD}, engine="simulate", speeds=TWO, gradients=200)


@pytest.mark.parametrize(
    "slowdown_and_workers",
    [({2: 3.0}, 2, "slowdown names worker 2, but the workers are 0 to 1"), ({1: 3.0}, 1, "but the only worker is 0")],
)
def test_a_slowdown_of_a_worker_that_does_not_exist_is_an_error(slowdown_and_workers):
    slowdown, workers, message = slowdown_and_workers
    with pytest.raises(ValueError, match=message):
        nw.train(Problem(), METHOD, workers=workers, steps=20, slowdown=slowdown)
    with pytest.raises(ValueError, match=message):
        nw.race(Quick(), {"a": METHOD, "b": METHOD}, workers=workers, slowdown=slowdown, probe_seconds=0.1)
    with pytest.raises(ValueError, match=message):
        nw.plan(Quick(), workers=workers, slowdown=slowdown, probe_seconds=0.1)


class Quick(Problem):
    def __init__(self):
        super().__init__(first=1.0)


def test_with_a_fewest_and_a_most_workers_up_to_the_most_can_be_slowed(monkeypatch):
    training = importlib.import_module("nowait.api.training")
    monkeypatch.setattr(training, "connected", refuse)
    options = {"workers": (2, 4), "engine": "ray", "steps": 20}
    with pytest.raises(InterruptedError):
        nw.train(Problem(), METHOD, slowdown={3: 2.0}, **options)
    with pytest.raises(ValueError, match="slowdown names worker 4, 7, but the workers are 0 to 3"):
        nw.train(Problem(), METHOD, slowdown={7: 2.0, 4: 2.0, 3: 2.0}, **options)


def refuse(*_):
    raise InterruptedError


class Clock:
    """Time that passes only when a problem says so."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in ("api.simulate", "api.train", "api.replay", "engines.session"):
        monkeypatch.setattr(importlib.import_module(f"nowait.{module}"), "perf_counter", clock)
    return clock


class Slow(Quick):
    """Takes 100 seconds to make its first point."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def initial(self):
        self._clock.now += 100.0
        return np.ones(2)


def test_wall_seconds_are_counted_from_the_call_on(clock):
    run = nw.simulate(Slow(clock), METHOD, TWO, steps=20)
    assert run.stats.wall_seconds == 100.0
    assert nw.replay(run.trace, Slow(clock), METHOD).stats.wall_seconds == 100.0


def test_wall_seconds_of_real_workers_too(clock):
    run = nw.train(Slow(clock), METHOD, workers=1, steps=20, progress=False)
    assert run.stats.wall_seconds == 100.0
