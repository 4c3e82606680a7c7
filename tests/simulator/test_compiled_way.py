"""The compiled way: the results of the reference way, and who does not qualify for it."""

import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse

import nowait as nw
from names import plain
from nowait.engines.simulator import compiled, execution, playback, schedule
from nowait.engines.simulator.blueprint import Blueprint
from nowait.engines.simulator.planner import Planner
from nowait.testing import CATALOGUE

SAMPLES, DIMENSION = 120, 19
RANDOM = np.random.default_rng(0)
DENSE = RANDOM.normal(size=(SAMPLES, DIMENSION))
SPARSE = scipy.sparse.random(SAMPLES, DIMENSION, density=0.3, random_state=1, format="csr")
TARGETS = DENSE @ RANDOM.normal(size=DIMENSION) + 0.1 * RANDOM.normal(size=SAMPLES)
LABELS = np.sign(TARGETS)
SINGLE = DENSE.astype(np.float32), TARGETS.astype(np.float32)
PROBLEMS = {
    "least squares": nw.problems.LeastSquares(DENSE, TARGETS),
    "least squares, batch 13": nw.problems.LeastSquares(DENSE, TARGETS, batch_size=13),
    "least squares, l2": nw.problems.LeastSquares(DENSE, TARGETS, l2=0.1),
    "least squares, shards": nw.problems.LeastSquares(DENSE, TARGETS, batch_size=2).split(5, by="sorted"),
    "least squares, float32": nw.problems.LeastSquares(*SINGLE),
    "least squares, float32, batch 3, l2": nw.problems.LeastSquares(*SINGLE, batch_size=3, l2=0.1),
    "least squares, sparse": nw.problems.LeastSquares(SPARSE, TARGETS),
    "logistic": nw.problems.LogisticRegression(DENSE, LABELS),
    "logistic, sparse, batch 4, l2": nw.problems.LogisticRegression(SPARSE, LABELS, batch_size=4, l2=0.01),
    "logistic, sparse, shards": nw.problems.LogisticRegression(SPARSE, LABELS).split(3),
    "absolute": nw.problems.AbsoluteLoss(DENSE, TARGETS),
    "absolute, sparse, batch 2": nw.problems.AbsoluteLoss(SPARSE, TARGETS, batch_size=2),
    "hinge": nw.problems.Hinge(DENSE, LABELS, batch_size=9),
    "quadratic": nw.problems.NoisyQuadratic(DIMENSION, sigma=0.1),
    "quadratic, heterogeneous": nw.problems.NoisyQuadratic(DIMENSION, sigma=0.1).split(5, by="label", zeta=0.3),
}
PROBLEM = PROBLEMS["least squares"]
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.01))
SPEEDS = nw.speeds.LogNormal([0.3, 1.0, 1.0, 2.0, 7.0], sigma=0.5)
TURMOIL = nw.speeds.Faults([(3.0, "leave", 0), (9.0, "join", 0), (12.0, "join", 7), (30.0, "leave", 2)])
LOOKS_AT_GRADIENTS = {
    "AdaptiveRevision",
    "Auto",
    "Auto, no momentum",
    "ClippedASGD",
    "DelayCompensatedSGD",
    "DelayCompensatedSGD, adaptive",
    "PickySGD",
}


def with_both(problem=PROBLEM, method=METHOD, speeds=SPEEDS, **options):
    options = {"seed": 3, "evaluate_every": 7} | options
    first = nw.simulate(problem, method, speeds, **options)
    second = nw.simulate(problem, method, speeds, engine="reference", **options)
    assert second.stats.engine == "reference"
    return first, second


def check_that_they_agree(first, second, engine="compiled"):
    assert first.stats.engine == engine
    assert np.array_equal(first.last, second.last)
    tolerance = 1e-10 if first.last.dtype == np.float64 else 1e-5
    np.testing.assert_allclose(first.params, second.params, rtol=tolerance, atol=tolerance)
    for name in first.trace.arrivals.dtype.names:
        rtol = tolerance if name == "gradient_norm" else 0.0
        np.testing.assert_allclose(first.trace.arrivals[name], second.trace.arrivals[name], rtol=rtol, err_msg=name)
    assert np.array_equal(first.trace.events, second.trace.events)
    assert first.history.rows() == second.history.rows()
    for name in ("steps", "gradients", "dropped", "late", "lost", "cancelled", "seconds", "diverged", "advice"):
        assert getattr(first.stats, name) == getattr(second.stats, name), name
    for name in ("work_share", "bytes_up", "bytes_down", "rejected", "interrupted"):
        assert np.array_equal(getattr(first.stats, name), getattr(second.stats, name)), name


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("method", ["AsynchronousSGD", "RingleaderASGD", "RennalaSGD", "GradientTable"])
def test_every_problem_gives_the_reference_results(name, method, caplog):
    check_that_they_agree(*with_both(PROBLEMS[name], CATALOGUE[method], gradients=150))


@pytest.mark.parametrize("faults", [None, TURMOIL], ids=["still", "turmoil"])
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_gives_the_reference_results(name, faults, caplog):
    has_its_update = CATALOGUE[name].usual_update() is not None
    engine = "reference" if name in LOOKS_AT_GRADIENTS or has_its_update else "compiled"
    check_that_they_agree(*with_both(method=CATALOGUE[name], faults=faults, gradients=300), engine)


@pytest.mark.parametrize(
    "output",
    [
        nw.UniformAverage,
        nw.ExponentialAverage,
        nw.StepsizeWeightedAverage,
        nw.RandomIterate,
        nw.UniformIterate,
        "strongly convex",
    ],
)
@pytest.mark.parametrize("name", ["AsynchronousSGD", "RingmasterASGD", "RandomAssignment", "FedBuff"])
def test_every_output_gives_the_reference_results(name, output):
    output = nw.StronglyConvexAverage(0.5) if output == "strongly convex" else output()
    check_that_they_agree(*with_both(method=CATALOGUE[name], output=output, gradients=200))


@pytest.mark.parametrize(
    "speeds",
    [
        nw.speeds.Fixed([1.0, 1.0, 1.0, 3.0]),  # many arrive at the same time
        nw.speeds.Fixed(1.0, workers=7),
        nw.speeds.Exponential([0.5, 2.0]),
        nw.speeds.Pareto(1.0, shape=0.9, workers=6),
        nw.speeds.Communication(nw.speeds.LogNormal(1.0, sigma=1.0, workers=3), down=[0.1, 0.2, 0.3], up=0.5),
        nw.speeds.Communication(nw.speeds.Communication(nw.speeds.Fixed([1.0, 2.0]), up=0.1), down=0.2),
        nw.speeds.Adversary([0, 1, 1, 2, 0, 3], workers=5),
        nw.speeds.UpDown(1.0, up=5.0, down=5.0, workers=3),
        nw.speeds.TimeVarying(lambda worker, time: 1.0 + worker + (time < 5), workers=3),
        nw.speeds.BySample(1.0, lambda sample: 1.0 + sample.index(3), workers=3),
        nw.speeds.Recorded.of([[1.0, 0.1, 7.0], [0.3], [2.0, 1.0]]),
        nw.speeds.Communication(nw.speeds.alibaba(4), down=0.1),
    ],
    ids=lambda speeds: type(speeds).__name__,
)
@pytest.mark.parametrize("method", ["AsynchronousSGD", "RingmasterASGD", "MinibatchSGD"])
def test_every_speed_model_gives_the_reference_results(speeds, method):
    check_that_they_agree(*with_both(method=CATALOGUE[method], speeds=speeds, gradients=100))


@pytest.mark.parametrize(
    "budget",
    [
        {"steps": 1},
        {"steps": 100, "evaluate_every": None},
        {"gradients": 77, "evaluate_every": None},
        {"seconds": 40.0, "evaluate_every": None},
        {"seconds": 40.0, "gradients": 30},
        {"seconds": 0.01},
        {"steps": 5_000, "target_loss": 2.0},
        {"target_loss": 2.0},
    ],
    ids=plain,
)
@pytest.mark.parametrize("name", ["AsynchronousSGD", "RingmasterASGD", "RennalaSGD", "MindFlayerSGD"])
def test_every_budget_ends_the_run_where_the_reference_way_does(name, budget, caplog, monkeypatch):
    monkeypatch.setattr(compiled, "SHORT", 8)
    check_that_they_agree(*with_both(method=CATALOGUE[name], **budget))
    average = nw.StepsizeWeightedAverage()
    check_that_they_agree(*with_both(method=CATALOGUE[name], output=average, **budget))


def test_ten_thousand_steps():
    problem = nw.problems.LogisticRegression(DENSE, LABELS)
    check_that_they_agree(*with_both(problem, steps=10_000, output=nw.UniformAverage(), evaluate_every=1_000))


@pytest.mark.parametrize("name", ["AsynchronousSGD", "FedBuff"])
def test_long_runs_are_planned_piece_by_piece(name, monkeypatch):
    monkeypatch.setattr(compiled, "LONG", 10)
    monkeypatch.setattr(compiled, "SHORT", 10)
    monkeypatch.setattr(compiled, "GROWTH", 3)
    for budget in ({"steps": 100}, {"gradients": 160}, {"seconds": 50.0}, {"steps": 40}):
        check_that_they_agree(*with_both(method=CATALOGUE[name], **budget))
        check_that_they_agree(*with_both(method=CATALOGUE[name], output=nw.UniformAverage(), **budget))


def test_a_cap_far_away_costs_nothing():
    """A plan of so many steps would take 7 GB."""
    run = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=compiled.MOST_EVENTS, target_loss=2.0, evaluate_every=7)
    assert run.stats.engine == "compiled"
    assert run.stats.steps < 10_000


def test_a_run_whose_tickets_were_all_cancelled_says_why_it_made_no_step():
    method = nw.MindFlayerSGD(0.1, trials=1, timeout_seconds=0.5)
    first, second = with_both(method=method, speeds=nw.speeds.Fixed([1.0] * 3), seconds=20.0)
    assert first.stats.engine == "compiled"
    assert first.stats.advice == second.stats.advice
    assert "no step was made" in first.stats.advice
    assert "Every attempt took longer than timeout_seconds=0.5" in first.stats.advice


def test_the_arrays_of_a_schedule_grow(monkeypatch):
    monkeypatch.setattr(schedule, "FIRST_ROWS", 16)
    monkeypatch.setattr(schedule, "ROWS_AT_A_TIME", 10)
    monkeypatch.setattr(playback, "EVENTS_AT_A_TIME", 3)
    check_that_they_agree(*with_both(seconds=60.0))
    check_that_they_agree(*with_both(method=CATALOGUE["RingmasterASGD"], steps=90))


def test_batches_whose_gradients_would_take_too_much_memory_are_kept_as_slopes(monkeypatch):
    monkeypatch.setattr(execution, "MOST_BYTES_OF_GRADIENTS", 0)
    for name in ("least squares, batch 13", "absolute, sparse, batch 2", "hinge"):
        check_that_they_agree(*with_both(PROBLEMS[name], steps=80))


# Runs that diverge


@pytest.mark.parametrize("stepsize", [1.0, 3.0, 1e3, 1e200])
@pytest.mark.parametrize("output", [None, nw.UniformAverage()])
@pytest.mark.parametrize("rule", [nw.AsynchronousSGD, nw.MinibatchSGD])
def test_divergence_is_the_same_result(stepsize, output, rule, caplog):
    first, second = with_both(method=rule(nw.Constant(stepsize)), output=output, steps=400)
    assert second.stats.diverged
    check_that_they_agree(first, second, first.stats.engine)


def test_a_loss_that_is_hopeless_ends_a_compiled_run(caplog):
    run = nw.simulate(PROBLEM, nw.AsynchronousSGD(nw.Constant(0.2)), SPEEDS, steps=10_000, evaluate_every=5)
    assert run.stats.engine == "compiled"
    assert run.stats.diverged
    assert run.stats.steps < 1_000
    assert "Try a stepsize ten times smaller" in run.stats.advice
    assert "Try a stepsize ten times smaller" in caplog.text


# Who does not qualify


class OwnProblem:
    dimension = DIMENSION

    def initial(self):
        return np.zeros(DIMENSION)

    def gradient(self, point, sample):
        return point - 1.0

    def loss(self, point):
        return float(((point - 1.0) ** 2).sum())


@dataclass
class Looks(nw.Method):
    """A method that asks for something that only a run has."""

    stepsize: nw.Stepsize
    what: str

    def on_arrival(self, server, arrival):
        if self.what in ("gradient", "point", "gradient_norm"):
            assert getattr(arrival, self.what) is not None
        elif self.what == "vector":
            assert server.sum().vector is not None
        elif self.what == "direction":
            server.apply(arrival, 0.01, direction=np.ones(DIMENSION))
        else:
            assert getattr(server, self.what) is not None
        if self.what != "direction":
            server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)


@pytest.mark.parametrize("what", ["gradient", "point", "gradient_norm", "vector", "direction", "params", "update"])
def test_methods_that_look_at_what_no_plan_knows_fall_back(what):
    check_that_they_agree(*with_both(method=Looks(nw.Constant(0.01), what), steps=30), "reference")


@pytest.mark.parametrize(
    "options",
    [
        {"callbacks": [lambda control: None]},
        {"update": nw.Momentum(0.5)},
        {"problem": OwnProblem()},
        {"problem": nw.problems.Compressed(PROBLEM, nw.problems.TopK(3))},
        {"problem": nw.problems.NonconvexLogisticRegression(DENSE, LABELS)},
    ],
    ids=plain,
)
def test_what_cannot_be_compiled_runs_the_reference_way(options):
    check_that_they_agree(*with_both(steps=30, **options), "reference")


def test_an_output_of_ones_own_runs_the_reference_way():
    class Second(nw.Output):
        def result(self, last):
            return 2 * last

    check_that_they_agree(*with_both(steps=30, output=Second()), "reference")


class AgeOnly(nw.Stepsize):
    """A rule for numbers only."""

    def __call__(self, delay, num_workers, step):
        return 0.01 if delay < 5 else 0.005


class OtherAt(nw.Stepsize):
    """A rule whose answer for an arrival is another one."""

    def __call__(self, delay, num_workers, step):
        return np.full(np.shape(delay), 0.01)[()]

    def at(self, arrival, server):
        return 0.02


@pytest.mark.parametrize("rule", [AgeOnly(), OtherAt()])
def test_rules_that_cannot_be_scheduled_are_planned_by_the_method(rule):
    check_that_they_agree(*with_both(method=nw.AsynchronousSGD(rule), steps=60))


class Own(nw.AsynchronousSGD):
    def on_arrival(self, server, arrival):
        if arrival.delay < 3:
            server.apply(arrival, self.stepsize.at(arrival, server))
        server.assign(arrival.worker)


class OwnSpeeds(nw.speeds.Exponential):
    def timing(self, seed):
        return lambda worker, job, start: (1.0 + worker, start + 1.0 + worker)


class OwnGradient(nw.problems.LeastSquares):
    def gradient_into(self, point, sample, out):
        super().gradient_into(point, sample, out)
        out *= 2


class Proxy:
    def __init__(self, problem):
        self.problem = problem

    def __getattr__(self, name):
        return getattr(self.problem, name)

    def gradient_into(self, point, sample, out):
        self.problem.gradient_into(point, sample, out)
        out *= 2

    def gradient(self, point, sample):
        return 2 * self.problem.gradient(point, sample)


@pytest.mark.parametrize(
    ("changed", "engine"),
    [
        ({"method": Own(nw.Constant(0.01))}, "compiled"),
        ({"speeds": OwnSpeeds(1.0, workers=4)}, "compiled"),
        ({"speeds": nw.speeds.Communication(OwnSpeeds(1.0, workers=4), up=0.5)}, "compiled"),
        ({"problem": OwnGradient(DENSE, TARGETS)}, "reference"),
        ({"problem": Proxy(PROBLEM)}, "reference"),
    ],
    ids=["method", "speeds", "speeds inside", "problem", "proxy"],
)
def test_what_a_subclass_changes_counts(changed, engine):
    check_that_they_agree(*with_both(steps=60, **changed), engine)


@dataclass
class Odd(nw.Method):
    """A method that does something odd."""

    what: str

    def start(self, server):
        super().start(server)
        if self.what == "wakes at nan":
            server.wake(float("nan"))
        if self.what == "steps at the start":
            server.step(server.sum(), 0.1)

    def pending_stepsize(self, server, delay):
        return 0.01

    def on_arrival(self, server, arrival):
        size = 0.01
        if self.what == "catches everything":
            try:
                size = 0.01 / (1 + float(np.linalg.norm(arrival.gradient)))
            except Exception:
                size = 1.0
        server.apply(arrival, size)
        if self.what == "reads the outcome" and arrival.outcome == "applied":
            server.apply(arrival, 0.005)
        server.assign(arrival.worker)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("steps at the start", "the method makes a step before the first event"),
        ("catches everything", "the method reads gradients"),
    ],
)
def test_odd_methods_run_the_reference_way(what, reason):
    first, second = with_both(method=Odd(what), gradients=30)
    check_that_they_agree(first, second, "reference")
    assert first.stats.not_compiled == reason


def test_a_method_may_read_the_outcome_and_apply_a_gradient_twice():
    check_that_they_agree(*with_both(method=Odd("reads the outcome"), gradients=30))


def test_odd_methods_raise_what_they_did():
    with pytest.raises(ValueError, match="cannot wake at time nan"):
        nw.simulate(PROBLEM, Odd("wakes at nan"), SPEEDS, steps=5)


def test_duplicates_in_sparse_rows_are_added_up():
    entries = (np.arange(1.0, 9.0) / 7, np.array([0, 0, 3, 3, 1, 2, 4, 4]), np.array([0, 2, 4, 4, 8]))
    matrix = scipy.sparse.csr_array(entries, shape=(4, 5))
    problem = nw.problems.LeastSquares(matrix, [1.0, 2.0, 3.0, 4.0])
    check_that_they_agree(*with_both(problem, steps=200))
    assert matrix.nnz == 8, "what the user gave is left alone"


def test_gradients_that_would_take_too_much_memory_are_not_compiled(monkeypatch):
    monkeypatch.setattr(execution, "MOST_BYTES_IN_ALL", 100)
    check_that_they_agree(*with_both(PROBLEMS["quadratic"], steps=30), "reference")
    check_that_they_agree(*with_both(steps=30))


def test_a_method_that_diverges_early_is_not_planned_to_the_end(caplog, monkeypatch):
    planned = []
    original = Planner.plan

    def plan(self, bar, most_events, **options):
        planned.append(most_events)
        return original(self, bar, most_events, **options)

    monkeypatch.setattr(Planner, "plan", plan)
    run = nw.simulate(PROBLEM, nw.RennalaSGD(nw.Constant(100.0), batch=2), SPEEDS, steps=10**7)
    assert run.stats.diverged
    assert planned == [compiled.SHORT]


def test_errors_of_a_method_are_those_of_the_reference_way():
    class Wrong(nw.Method):
        def on_arrival(self, server, arrival):
            server.assign(99)

    with pytest.raises(ValueError, match="cannot assign to worker 99"):
        nw.simulate(PROBLEM, Wrong(), SPEEDS, steps=5)


def test_nobody_who_finishes_is_told(caplog):
    speeds = nw.speeds.Adversary([0], workers=2)
    first, second = with_both(method=nw.MinibatchSGD(nw.Constant(0.1)), speeds=speeds, steps=5)
    assert "no worker will ever finish" in first.stats.advice
    check_that_they_agree(first, second)


def test_the_way_is_checked():
    with pytest.raises(ValueError, match="engine must be None or 'reference', got 'fast'"):
        nw.simulate(PROBLEM, METHOD, SPEEDS, steps=5, engine="fast")


# Signals


def test_a_signal_during_the_plan_ends_the_run_there(monkeypatch, caplog):
    original, events = Planner.assign, []

    def assign(self, worker, at=None):
        events.append(worker)
        if len(events) == 50:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, worker, at)

    monkeypatch.setattr(Planner, "assign", assign)
    with pytest.raises(nw.Interrupted) as caught:
        nw.simulate(PROBLEM, CATALOGUE["RandomAssignment"], SPEEDS, steps=10**7)
    run = caught.value.run
    assert (run.stats.engine, run.stats.interrupted) == ("compiled", True)
    assert "SIGINT ended the run after" in run.stats.advice
    assert run.stats.steps == len(run.trace)
    reference = nw.simulate(PROBLEM, CATALOGUE["RandomAssignment"], SPEEDS, steps=run.stats.steps, engine="reference")
    assert np.array_equal(run.last, reference.last)


@pytest.mark.parametrize("output", [nw.LastIterate(), nw.UniformAverage()])
def test_a_signal_during_the_execution_ends_the_run_there(monkeypatch, caplog, output):
    original, ends = execution.Execution.run_to, []

    def run_to(self, end):
        original(self, end)
        ends.append(end)
        if len(ends) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(execution.Execution, "run_to", run_to)
    with pytest.raises(nw.Interrupted) as caught:
        nw.simulate(PROBLEM, METHOD, SPEEDS, steps=1_000, evaluate_every=100, output=output)
    run = caught.value.run
    assert (run.stats.engine, run.stats.interrupted, run.stats.steps) == ("compiled", True, 100)
    assert run.stats.advice == str(caught.value) == "SIGINT ended the run after 100 steps"
    monkeypatch.undo()
    reference = nw.simulate(PROBLEM, METHOD, SPEEDS, steps=100, engine="reference", output=output)
    assert np.array_equal(run.last, reference.last)
    np.testing.assert_allclose(run.params, reference.params, rtol=1e-12)
    assert np.array_equal(run.trace.arrivals["ticket"], reference.trace.arrivals["ticket"])


def test_after_a_signal_during_a_long_plan_only_a_short_one_is_executed(monkeypatch, caplog):
    original, plans = Blueprint.plan, []

    def plan(self, *arguments, **options):
        plans.append(options["most_events"])
        found = original(self, *arguments, **options)
        if len(plans) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(Blueprint, "plan", plan)
    monkeypatch.setattr(compiled, "SHORT", 60)
    with pytest.raises(nw.Interrupted) as caught:
        nw.simulate(PROBLEM, METHOD, SPEEDS, steps=1_000, evaluate_every=1_000)
    assert plans == [compiled.LONG, 60]
    assert caught.value.run.stats.steps == 60


def test_a_compiled_run_replays():
    for name in ("least squares", "logistic", "quadratic"):
        run = nw.simulate(PROBLEMS[name], METHOD, SPEEDS, steps=200, seed=5)
        assert run.stats.engine == "compiled"
        assert np.array_equal(nw.replay(run.trace, PROBLEMS[name], METHOD, seed=5).last, run.last)


def test_many_workers_take_little_memory():
    """A hundred thousand pending gradients of dimension 500 would take 400 MB; their slopes take 1 MB."""
    problem = nw.problems.LeastSquares.random(samples=50, dimension=500, seed=0)
    speeds = nw.speeds.LogNormal(1.0, sigma=1.0, workers=100_000)
    run = nw.simulate(problem, nw.AsynchronousSGD(nw.DelayAdaptive(1e-3)), speeds, steps=2_000, evaluate_every=2_000)
    reference = nw.simulate(
        problem,
        nw.AsynchronousSGD(nw.DelayAdaptive(1e-3)),
        speeds,
        steps=2_000,
        evaluate_every=2_000,
        engine="reference",
    )
    check_that_they_agree(run, reference)


def test_outputs_weigh_what_is_in_flight_and_leave_the_start_out():
    """From a start that is not zero, with stepsizes that depend on the delay, along sums."""
    initial = np.linspace(1.0, 2.0, DIMENSION)
    for method in (nw.FedBuff(nw.PolynomialDecay(0.01), buffer=3), nw.AsynchronousSGD(nw.PolynomialDecay(0.01))):
        for output in (nw.UniformAverage(), nw.StepsizeWeightedAverage()):
            check_that_they_agree(*with_both(method=method, output=output, initial=initial, steps=9))


def test_an_average_of_a_run_that_diverged_leaves_out_what_is_in_flight(caplog):
    method = nw.AsynchronousSGD(nw.Constant(0.2))
    first, second = with_both(method=method, output=nw.StepsizeWeightedAverage(), steps=10_000, evaluate_every=5)
    assert second.stats.diverged
    check_that_they_agree(first, second)


def test_queued_tickets_are_lost_with_their_worker():
    speeds = nw.speeds.Fixed([1.0, 50.0])
    faults = nw.speeds.Faults([(20.0, "leave", 1)])
    first, second = with_both(method=nw.RandomAssignment(nw.Constant(0.01)), speeds=speeds, faults=faults, gradients=20)
    assert second.stats.lost > 1
    check_that_they_agree(first, second)


@pytest.mark.parametrize(
    "output",
    [
        nw.UniformAverage(),
        nw.StepsizeWeightedAverage(),
        nw.StronglyConvexAverage(0.5),
        nw.RandomIterate(),
        nw.UniformIterate(),
    ],
    ids=lambda output: type(output).__name__,
)
def test_a_compiled_run_without_a_step_ends_at_the_initial_params(output, caplog):
    initial, speeds = np.array([1.0, 2.0, 3.0]), nw.speeds.Fixed([1.0, 2.0])
    run = nw.simulate(
        nw.problems.NoisyQuadratic(3),
        nw.AsynchronousSGD(0.1),
        speeds,
        seconds=0.5,
        output=output,
        initial=initial,
        progress=False,
    )
    assert (run.stats.engine, run.stats.steps) == ("compiled", 0)
    assert run.params.tolist() == run.last.tolist() == initial.tolist()
    assert "no step was made" in caplog.text
