"""Sweeps: the losses of single runs, the rule for the best stepsize, and the advice about the grid."""

import dataclasses
import math

import numpy as np
import pytest

import nowait as nw
from names import plain
from nowait.engines.simulator import sweep as sweeps
from nowait.engines.simulator.blueprint import Blueprint

PROBLEM = nw.problems.LeastSquares.random(samples=200, dimension=10, noise=0.01, seed=0)
SPEEDS = nw.speeds.LogNormal([0.3, 1.0, 1.0, 2.0, 7.0], sigma=0.5)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(1.0))
SIZES, SEEDS = [0.01, 0.1, 1.0, 10.0], [0, 5, 9]


def check_against_single_runs(result, problem, make, speeds=SPEEDS, **budget):
    for row, size in enumerate(result.stepsizes):
        for column, seed in enumerate(result.seeds.tolist()):
            run = nw.simulate(problem, make(float(size)), speeds, seed=seed, **budget)
            assert result.diverged[row, column] == run.stats.diverged
            if run.stats.diverged:
                assert result.final[row, column] == math.inf
                continue
            length = len(run.history.step)
            np.testing.assert_allclose(result.curves[row, column, :length], run.history.loss, rtol=1e-9)
            assert np.isnan(result.curves[row, column, length:]).all()
            assert result.step[row, column, :length].tolist() == run.history.step.tolist()
            assert result.gradients[row, column, :length].tolist() == run.history.gradients.tolist()
            assert result.time[row, column, :length].tolist() == run.history.time.tolist()
            assert math.isclose(result.final[row, column], run.history.loss[-1], rel_tol=1e-9)
            assert math.isclose(result.lowest[row, column], run.history.loss.min(), rel_tol=1e-9)


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        (METHOD, "compiled"),
        (nw.AsynchronousSGD(nw.StepDecay(nw.HingeDecay(1.0), every=100)), "compiled"),
        (nw.RennalaSGD(nw.Constant(1.0), batch=3), "compiled"),
        (nw.FedBuff(nw.Constant(1.0), buffer=3), "compiled"),
        (nw.ClippedASGD(nw.Constant(1.0), max_norm=0.1), "reference"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sweep_has_the_losses_of_single_runs(method, engine, caplog):
    result = nw.sweep(PROBLEM, method, SPEEDS, stepsizes=SIZES, seeds=SEEDS, gradients=300, evaluate_every=20)
    assert result.engine == engine
    make = lambda size: dataclasses.replace(method, stepsize=method.stepsize.with_size(size))  # noqa: E731
    check_against_single_runs(result, PROBLEM, make, gradients=300, evaluate_every=20)
    assert result.curves.shape[:2] == (4, 3)


@pytest.mark.parametrize("budget", [{"steps": 170}, {"seconds": 60.0}, {"gradients": 100, "seconds": 60.0}], ids=plain)
@pytest.mark.parametrize("threads", [1, 3])
def test_budgets_and_threads(budget, threads, caplog):
    make = lambda size: nw.RingmasterASGD(nw.Constant(size), max_delay=6)  # noqa: E731
    options = {
        "stepsizes": SIZES,
        "seeds": SEEDS,
        "evaluate_every": 11,
        "faults": nw.speeds.Faults([(5.0, "leave", 1)]),
    }
    result = nw.sweep(PROBLEM, make, SPEEDS, threads=threads, **options, **budget)
    check_against_single_runs(result, PROBLEM, make, evaluate_every=11, faults=options["faults"], **budget)


@pytest.mark.parametrize(
    "problem",
    [
        nw.problems.NoisyQuadratic(dimension=6, sigma=0.1),
        nw.problems.LogisticRegression(
            PROBLEM.features, PROBLEM.targets > np.median(PROBLEM.targets), batch_size=3, l2=0.1
        ).split(5),
        nw.problems.Compressed(PROBLEM, nw.problems.TopK(3)),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_other_problems(problem, caplog):
    options = {"steps": 100, "evaluate_every": 25}
    result = nw.sweep(problem, METHOD, SPEEDS, stepsizes=[0.01, 0.1], seeds=[1], **options)
    check_against_single_runs(result, problem, lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size)), **options)


class Saturating(nw.Stepsize):
    """Its size is no factor."""

    def __init__(self, size):
        self.size = size

    def __call__(self, delay, num_workers, step):
        return self.size / (1.0 + self.size) + 0.0 * np.asarray(delay)


def test_rules_whose_size_is_no_factor_have_a_plan_for_every_size(caplog):
    make = lambda size: nw.AsynchronousSGD(Saturating(size))  # noqa: E731
    result = nw.sweep(PROBLEM, make, SPEEDS, stepsizes=[0.1, 0.5, 2.0], seeds=[1, 2], steps=100, evaluate_every=10)
    assert result.engine == "compiled"
    check_against_single_runs(result, PROBLEM, make, steps=100, evaluate_every=10)


@dataclasses.dataclass
class SecondStep(nw.Method):
    """Each gradient is applied, and a sum of ten of them once more."""

    stepsize: nw.Stepsize
    second: float
    weight: float = 1.0

    def start(self, server):
        self.total = server.sum()
        super().start(server)

    def on_arrival(self, server, arrival):
        server.apply(arrival, self.stepsize.gamma)
        self.total.add(arrival, self.weight)
        if self.total.count == 10:
            server.step(self.total, self.second, 0.1)
            self.total.clear()
        server.assign(arrival.worker)


@dataclasses.dataclass
class CappedLater(nw.Method):
    """Its stepsize is capped after 2,500 steps."""

    stepsize: nw.Stepsize

    def on_arrival(self, server, arrival):
        size = self.stepsize.gamma
        server.apply(arrival, size if server.steps < 2_500 else min(size, 0.01))
        server.assign(arrival.worker)


def in_the_middle(size):
    return nw.RennalaSGD(nw.Constant(size), batch=5) if 0.005 < size < 0.05 else nw.AsynchronousSGD(nw.Constant(size))


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda size: SecondStep(nw.Constant(size), second=0.05), 300),
        (lambda size: SecondStep(nw.Constant(size), second=size, weight=size), 300),
        (lambda size: SecondStep(nw.Constant(size), second=2 * size, weight=3.0), 300),
        (lambda size: CappedLater(nw.Constant(size)), 3_000),
        (in_the_middle, 300),
        ({0.001: METHOD, 0.01: METHOD, 0.1: METHOD}.get, 100),
    ],
    ids=[
        "constant second step",
        "weights",
        "all scaled",
        "capped later",
        "in the middle",
        "sizes that were given alone",
    ],
)
def test_plans_are_shared_only_if_a_factor_is_all_they_differ_in(make, steps, caplog):
    result = nw.sweep(PROBLEM, make, SPEEDS, stepsizes=[0.001, 0.01, 0.1], steps=steps, evaluate_every=50)
    assert result.engine == "compiled"
    check_against_single_runs(result, PROBLEM, make, steps=steps, evaluate_every=50)


def test_plans_of_different_lengths_have_times_of_their_own(caplog):
    make = lambda size: nw.RennalaSGD(nw.Constant(size), batch=int(100 * size))  # noqa: E731
    result = nw.sweep(PROBLEM, make, SPEEDS, stepsizes=[0.01, 0.1, 0.5], gradients=500, evaluate_every=10)
    check_against_single_runs(result, PROBLEM, make, gradients=500, evaluate_every=10)


@pytest.fixture
def plans(monkeypatch):
    """The limits of all plans made by compiled code; None for the plan of a whole run."""
    limits = []
    original = Blueprint.scheduled_plan

    def plan(self, *arguments, **options):
        limits.append(options.get("most_events"))
        return original(self, *arguments, **options)

    monkeypatch.setattr(Blueprint, "scheduled_plan", plan)
    return limits


def test_one_plan_serves_all_stepsizes(plans):
    nw.sweep(PROBLEM, METHOD, SPEEDS, stepsizes=np.geomspace(0.01, 1, 20), seeds=range(2), steps=5_000)
    assert plans.count(None) == 2, "one for each seed"
    assert len(plans) == 3, "one more along which stepsizes are compared"


def test_one_plan_serves_all_seeds_if_nothing_is_random(plans, caplog):
    speeds = nw.speeds.Communication(nw.speeds.Fixed([1.0, 2.0, 5.0]), down=0.5)
    options = {"steps": 600, "evaluate_every": 100}
    result = nw.sweep(PROBLEM, METHOD, speeds, stepsizes=[0.1, 0.2], seeds=range(4), **options)
    assert plans.count(None) == 1
    make = lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size))  # noqa: E731
    check_against_single_runs(result, PROBLEM, make, speeds=speeds, **options)


def test_fixed_speeds_may_depend_on_the_seed(plans, caplog):
    @dataclasses.dataclass
    class DrawnOnce(nw.speeds.Speeds):
        num_workers: int = 2

        def formula(self, seed):
            return nw.speeds.Fixed([1.0, 1.3 + seed]).formula(seed)

        def timing(self, seed):
            return nw.speeds.Fixed([1.0, 1.3 + seed]).timing(seed)

    options = {"steps": 600, "evaluate_every": 100}
    result = nw.sweep(PROBLEM, METHOD, DrawnOnce(), stepsizes=[0.1, 0.2], seeds=range(3), **options)
    assert plans.count(None) == 3
    make = lambda size: nw.AsynchronousSGD(nw.DelayAdaptive(size))  # noqa: E731
    check_against_single_runs(result, PROBLEM, make, speeds=DrawnOnce(), **options)


@pytest.mark.parametrize(
    ("stepsizes", "seeds", "cores", "events", "blocks", "groups"),
    [
        (32, 16, 16, 1_000, [32], [1] * 16),
        (512, 1, 16, 1_000, [32] * 16, [1]),
        (1, 512, 16, 1_000, [1], [32] * 16),
        (1, 513, 16, 1_000, [1], [17] * 17 + [16] * 14),
        (4, 64, 16, 1_000, [4], [4] * 16),
        (1, 512, 16, 1 << 18, [1], [4] * 128),
        (1, 512, 16, 1 << 30, [1], [1] * 512),
        (4, 3, 16, 1_000, [1] * 4, [1] * 3),
        (5, 8, 2, 1_000, [5], [4, 4]),
        (40, 26, 16, 1_000, [20, 20], [1] * 26),
    ],
)
def test_how_runs_are_shared_out(stepsizes, seeds, cores, events, blocks, groups):
    shares = sweeps.shares_of(np.ones(stepsizes), list(range(seeds)), cores, events)
    assert [len(block) for block in shares[0]] == blocks
    assert [len(group) for group in shares[1]] == groups
    assert sorted(seed for group in shares[1] for seed in group) == list(range(seeds))


def test_seeds_executed_together_have_the_losses_of_single_runs(monkeypatch, caplog):
    """Their plans have different numbers of evaluations, and some runs diverge."""
    evaluated = []
    original = sweeps.losses_at
    monkeypatch.setattr(
        sweeps, "losses_at", lambda parts, points: evaluated.append(len(points)) or original(parts, points)
    )
    make = lambda size: nw.RingmasterASGD(nw.Constant(size), max_delay=4)  # noqa: E731
    options = {"gradients": 120, "evaluate_every": 7}
    result = nw.sweep(PROBLEM, make, SPEEDS, stepsizes=[0.1, 60.0], seeds=range(6), threads=1, **options)
    assert max(evaluated) > 2
    assert result.diverged.any()
    assert len({int(np.isfinite(row).sum()) for row in result.step[0]}) > 1
    check_against_single_runs(result, PROBLEM, make, **options)


def test_a_function_may_return_the_same_method_every_time(caplog):
    method = nw.RennalaSGD(nw.Constant(0.5), batch=3)
    result = nw.sweep(PROBLEM, lambda size: method, SPEEDS, stepsizes=[0.5, 1.0], seeds=range(6), steps=50, threads=4)
    assert np.array_equal(result.final[0], result.final[1])
    check_against_single_runs(result, PROBLEM, lambda size: method, steps=50, evaluate_every=2)


def test_an_interrupted_sweep_ends_at_once(monkeypatch):
    """The first evaluation is interrupted; the remaining runs are not started."""
    evaluated = []

    def interrupt(problem, points):
        evaluated.append(len(points))
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "losses_at", interrupt)
    with pytest.raises(KeyboardInterrupt):
        nw.sweep(PROBLEM, METHOD, SPEEDS, stepsizes=SIZES, seeds=range(200), steps=500, threads=2)
    assert len(evaluated) < 20


# The best stepsize


def a_sweep(final, diverged=None):
    final = np.array(final, dtype=float)
    curves = np.stack([np.ones_like(final), final], axis=2)
    sizes, seeds = np.geomspace(0.1, 10, len(final)), np.arange(final.shape[1])
    moments = np.tile([0.0, 1.0], (*final.shape, 1))
    diverged = np.isinf(final) if diverged is None else np.array(diverged)
    return nw.Sweep(sizes, seeds, curves, moments, moments, moments, diverged, "compiled")


def test_the_best_has_the_lowest_median_and_never_diverged():
    result = a_sweep([[0.9, 0.9, 0.9], [0.1, 0.5, 0.6], [0.3, 0.3, 0.9], [0.01, 0.01, math.inf], [0.7, 0.7, 0.7]])
    assert result.best_place == 2, "its median is 0.3; the mean of the one before is lower"
    assert result.best == result.stepsizes[2]
    assert result.advice == ""
    assert repr(result) == "Sweep(5 stepsizes, 3 seeds, best 1)"


def test_a_run_that_came_back_from_infinity_counts_as_diverged():
    diverged = [[False], [True], [False]]
    assert a_sweep([[0.5], [0.1], [0.6]], diverged).best_place == 0


@pytest.mark.parametrize(
    ("final", "words"),
    [
        ([[0.1], [0.2], [0.3]], "the best stepsize, 0.1, is the smallest of the grid: a wider grid may do better"),
        ([[0.3], [0.2], [0.1]], "the best stepsize, 10, is the largest of the grid"),
        ([[0.3], [0.1], [math.inf]], ""),
        ([[math.inf], [math.inf]], "every stepsize diverged for some seed: try stepsizes below 0.1"),
        ([[0.3]], ""),
    ],
)
def test_what_is_said_about_the_grid(final, words):
    advice = a_sweep(final).advice
    assert advice.startswith(words)
    assert bool(advice) == bool(words)


def test_there_is_no_best_if_all_diverged():
    with pytest.raises(ValueError, match=r"every stepsize diverged for some seed: try stepsizes below 0\.1"):
        a_sweep([[math.inf], [math.inf]]).best  # noqa: B018


def test_advice_is_logged_once_and_divergence_is_not_told_run_by_run(caplog):
    nw.sweep(PROBLEM, METHOD, SPEEDS, stepsizes=[1.0, 100.0, 1000.0], seeds=range(3), steps=500)
    assert [record.message for record in caplog.records] == [
        "the best stepsize, 1, is the smallest of the grid: a wider grid may do better"
    ]
    caplog.clear()
    clipped = nw.ClippedASGD(nw.Constant(1.0), max_norm=1e300)
    nw.sweep(PROBLEM, clipped, SPEEDS, stepsizes=[0.1, 1.0, 1000.0], seeds=[0], steps=300)
    assert not any("diverged after" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stepsizes": []}, ValueError, "stepsizes is empty"),
        ({"stepsizes": [0.1, -1.0]}, ValueError, r"stepsizes\[1\] must be a finite number above 0, got -1.0"),
        ({"stepsizes": [0.1, 0.1]}, ValueError, "stepsizes has one of them twice"),
        ({"stepsizes": 0.1}, TypeError, "stepsizes must be a list of numbers, got 0.1"),
        ({"stepsizes": "0.1"}, TypeError, "stepsizes must be a list of numbers, got '0.1'"),
        ({"stepsizes": [[0.1], 0.2]}, ValueError, r"stepsizes\[0\] must be a finite number above 0"),
        ({"seeds": [0, True]}, ValueError, "seed must be an integer of at least 0, got True"),
        ({"seeds": [0, 0]}, ValueError, "seeds has one of them twice"),
        ({"seeds": [1 << 63]}, ValueError, r"seed must be below 2\*\*63"),
        (
            {"stepsizes": [0.1, 0.2], "method": lambda size: METHOD if size < 0.15 else None},
            TypeError,
            "method must be",
        ),
        ({"seeds": []}, ValueError, "seeds is empty"),
        ({"seeds": [-1]}, ValueError, "seed must be an integer of at least 0"),
        ({"threads": 0}, ValueError, "threads must be an integer of at least 1"),
        ({"device": "gpu"}, ValueError, "device must be 'cpu', 'cuda' or 'cuda:' and the number of a GPU, got 'gpu'"),
        ({"method": nw.PIAG(0.9)}, TypeError, "PIAG has no stepsize to sweep over"),
        ({"method": nw.AsynchronousSGD}, TypeError, "method must be a method or a function"),
        ({"method": nw.AsynchronousSGD(nw.AdaDelay(1.0, 1.0))}, TypeError, "AdaDelay has no single size"),
        ({"method": lambda size: size}, TypeError, "method must be a nowait Method"),
        ({"speeds": 3}, TypeError, "speeds must be a nowait Speeds"),
        ({"problem": 3}, TypeError, "problem must have"),
        ({"steps": None}, ValueError, "a run needs an end"),
    ],
    ids=plain,
)
def test_bad_arguments(options, error, message):
    given = {"problem": PROBLEM, "method": METHOD, "speeds": SPEEDS, "stepsizes": [0.1], "steps": 10} | options
    with pytest.raises(error, match=message):
        nw.sweep(given.pop("problem"), given.pop("method"), given.pop("speeds"), **given)
