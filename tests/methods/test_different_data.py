"""Methods whose steps weigh all workers' data equally, and the warning about all others."""

import logging
import math
from dataclasses import dataclass

import numpy as np
import pytest

import nowait as nw
from nowait.api.different_data import usual_seconds
from nowait.core.stepsizes import ignores_delay
from nowait.testing.catalogue import CATALOGUE

WORKERS = 5
SECONDS = [1.0, 1.3, 1.9, 2.0, 6.0]
SPEEDS = nw.speeds.Fixed(SECONDS)
PROBLEM = nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.5).split(WORKERS, zeta=1.0)
SMALL = {"steps": 3, "progress": False}
AS_CONSTANT = {
    "RandomAssignment, constant": nw.RandomAssignment(nw.Constant(0.05)),
    "ShuffledAssignment, constant": nw.ShuffledAssignment(nw.Constant(0.05)),
    "MSynchronousSGD, all": nw.MSynchronousSGD(nw.Constant(0.1), m=WORKERS),
}
METHODS = {name: method for name, method in CATALOGUE.items() if not method.needs_shared_data} | AS_CONSTANT


def squared_gradient(method, speeds=SPEEDS):
    run = nw.simulate(PROBLEM, method, speeds, seconds=4_000.0, seed=0, progress=False)
    return float((PROBLEM.full_gradient(run.params) ** 2).sum())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_whether_it_weighs_all_workers_equally(name):
    """With ζ = 1, without noise: biased methods stop above 0.01; the others have only the noise of their order."""
    method = METHODS[name]
    smaller = nw.RandomAssignment(nw.Constant(0.002)) if isinstance(method, nw.RandomAssignment) else method
    equally = method.weighs_workers_equally(WORKERS)
    assert (squared_gradient(smaller if equally else method) < 0.01) is equally


@pytest.mark.parametrize("name", [name for name, method in CATALOGUE.items() if method.needs_shared_data])
def test_methods_that_need_shared_data_refuse_split_data(name):
    with pytest.raises(ValueError, match=r"every worker has data of its own, and Auto would leave .* nw.GradientTable"):
        nw.simulate(PROBLEM, CATALOGUE[name], SPEEDS, **SMALL)


def test_the_stepsize_decides_where_slow_workers_are_only_asked_as_often():
    for method in (nw.RandomAssignment, nw.ShuffledAssignment, nw.RescaledASGD):
        assert method(nw.Constant(0.1)).weighs_workers_equally(4)
        assert method(nw.Scheduled(nw.Constant(0.1), nw.schedules.cosine(100))).weighs_workers_equally(4)
        assert not method(nw.DelayAdaptive(0.1)).weighs_workers_equally(4)
    assert ignores_delay(nw.DelayAdaptive(0.1, cut=math.inf), 4)


def test_attempts_in_time_decide_for_mind_flayer():
    def mind_flayer(probability):
        return nw.MindFlayerSGD(nw.Constant(0.1), timeout_seconds=2.0, trials=[1, 2], probability=probability)

    assert mind_flayer([0.8, 0.4]).weighs_workers_equally(2)
    assert not mind_flayer([0.8, 0.8]).weighs_workers_equally(2)
    assert not mind_flayer(None).weighs_workers_equally(2)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, logger="nowait")
    return lambda: [
        record.getMessage() for record in caplog.records if "weigh all workers equally" in record.getMessage()
    ]


def stops_at(warning):
    return float(warning.partition("stops at about ")[2].partition(" ")[0])


@pytest.mark.parametrize("rule", [nw.Constant(0.01), nw.DelayAdaptive(0.01)])
def test_a_simulation_on_split_data_says_where_asynchronous_sgd_stops(warnings, rule):
    method = nw.AsynchronousSGD(rule)
    floor = squared_gradient(method)
    (warning,) = warnings()
    assert warning.startswith(
        "every worker has data of its own, and AsynchronousSGD does not weigh all workers equally"
    )
    assert stops_at(warning) == pytest.approx(floor, rel=0.1)
    assert "(ζ² = 1; ‖∇F‖² is " in warning


def test_rows_assigned_at_random_are_different_data_too(warnings):
    rows = nw.problems.LeastSquares.random(samples=400, dimension=10, noise=0.1, batch_size=400, seed=0)
    split = rows.split(WORKERS, by="iid")
    method = nw.AsynchronousSGD(nw.Constant(0.05))
    run = nw.simulate(split, method, SPEEDS, steps=20_000, progress=False)
    reached = float((split.full_gradient(run.params) ** 2).sum())
    (warning,) = warnings()
    assert reached / 4 < stops_at(warning) < 4 * reached


def test_other_methods_are_compared_with_asynchronous_sgd(warnings):
    nw.simulate(PROBLEM, nw.RennalaSGD(0.1, batch=4), SPEEDS, **SMALL)
    assert "‖∇F‖² of asynchronous SGD stops at about " in warnings()[0]


def test_no_warning_without_a_bias(warnings):
    biased = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
    nw.simulate(PROBLEM, nw.GradientTable(0.01), SPEEDS, **SMALL)
    nw.simulate(PROBLEM, biased, nw.speeds.Exponential([2.0] * WORKERS), **SMALL)
    nw.simulate(nw.problems.NoisyQuadratic(dimension=3), biased, SPEEDS, **SMALL)
    nw.plan(PROBLEM, seconds_per_gradient=SECONDS, gradients=100, seeds=1, progress=False)
    assert warnings() == []


class WithoutExactGradients:
    """A split problem that has sampled gradients only."""

    num_shards, dimension = WORKERS, PROBLEM.dimension

    def initial(self):
        return PROBLEM.initial()

    def gradient(self, point, sample):
        return PROBLEM.gradient(point, sample)

    def loss(self, point):
        return PROBLEM.loss(point)


def test_without_exact_gradients_nothing_is_computed_and_the_warning_says_how(warnings):
    nw.simulate(WithoutExactGradients(), nw.AsynchronousSGD(0.05), SPEEDS, **SMALL)
    assert "‖∇F‖² can stop at ζ², which nw.theory.estimate(problem, workers=5) estimates" in warnings()[0]


@dataclass
class FromNothing(nw.Stepsize):
    """A rule that begins at 0. It cannot be hashed."""

    def __call__(self, delay, num_workers, step):
        return 0.01 * (step > 1) + 0.0 * delay


def test_no_rule_and_no_problem_is_refused_because_of_the_warning(warnings):
    nw.simulate(PROBLEM, nw.AsynchronousSGD(FromNothing()), SPEEDS, **SMALL)
    expected = nw.theory.heterogeneity_floor(SECONDS, PROBLEM.shifts, nw.Constant(0.01))
    assert stops_at(warnings()[0]) == pytest.approx(expected, rel=0.05)

    class Broken(WithoutExactGradients):
        def gradient_of_worker(self, point, worker):
            return np.full(self.dimension, np.nan)

    nw.simulate(Broken(), nw.AsynchronousSGD(0.05), SPEEDS, **SMALL)
    assert "which nw.theory.estimate(problem, workers=5) estimates" in warnings()[1]


def test_training_on_split_data_warns_with_zeta_or_with_the_speeds_that_are_known(warnings):
    method = nw.AsynchronousSGD(nw.Constant(0.01))
    nw.train(PROBLEM, method, workers=2, steps=4, progress=False)
    nw.train(PROBLEM, method, workers=2, slowdown={1: 3.0}, steps=4, progress=False)
    nw.train(PROBLEM, nw.GradientTable(0.01), workers=2, steps=4, progress=False)
    unknown, known = warnings()
    assert "‖∇F‖² can stop at ζ² = " in unknown
    shifts = PROBLEM.shifts[:2]
    expected = nw.theory.heterogeneity_floor([1.0, 3.0], shifts - shifts.mean(axis=0), nw.Constant(0.01))
    assert stops_at(known) == pytest.approx(expected, rel=0.05)


def test_plans_and_races_name_all_methods_that_are_biased(warnings):
    own = {"mine": lambda size: nw.AsynchronousSGD(nw.Constant(size)), "table": nw.GradientTable(0.01)}
    nw.plan(PROBLEM, seconds_per_gradient=SECONDS, methods=own, gradients=100, seeds=1, progress=False)
    nw.race(PROBLEM, engine="simulate", speeds=SPEEDS, gradients=100, progress=False)
    plan, race = warnings()
    assert plan.startswith("every worker has data of its own, and mine does not weigh all workers equally")
    names = "Asynchronous SGD, delay-adaptive and First m, momentum do not weigh all workers equally"
    assert names in race
    assert "stops at about 0." in race


def test_sweeps_and_tuning_warn_once_whatever_they_try(warnings):
    """Once for all stepsizes and trials, with the prediction of a run."""
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
    nw.simulate(PROBLEM, method, SPEEDS, **SMALL)
    nw.sweep(PROBLEM, method, SPEEDS, stepsizes=[0.05, 0.01], seeds=2, **SMALL)
    nw.sweep(PROBLEM, lambda size: nw.GradientTable(size / 2), SPEEDS, stepsizes=[0.01], **SMALL)
    nw.tune(PROBLEM, method, speeds=SPEEDS, trials=3, steps=20, progress=False)
    nw.tune(PROBLEM, method, engine="processes", workers=2, slowdown={1: 3.0}, trials=1, steps=4, progress=False)
    simulated, swept, tuned, real = [text for text in warnings() if "data of its own" in text]
    assert simulated == swept == tuned
    shifts = PROBLEM.shifts[:2]
    expected = nw.theory.heterogeneity_floor([1.0, 3.0], shifts - shifts.mean(axis=0), nw.DelayAdaptive(0.05))
    assert stops_at(real) == pytest.approx(expected, rel=0.05)


def test_a_warning_that_is_not_shown_costs_nothing(monkeypatch, caplog):
    caplog.set_level(logging.ERROR, logger="nowait")
    monkeypatch.setattr(nw.problems.NoisyQuadratic, "gradient_of_worker", lambda *_: pytest.fail("it was computed"))
    nw.simulate(PROBLEM, nw.AsynchronousSGD(0.05), SPEEDS, **SMALL)


@pytest.mark.parametrize(
    "speeds",
    [
        nw.speeds.Fixed([1.0, 3.0]),
        nw.speeds.Exponential([1.0, 3.0]),
        nw.speeds.LogNormal([1.0, 3.0], sigma=0.5),
        nw.speeds.HalfNormal([1.0, 3.0], scale=0.5),
        nw.speeds.Pareto([1.0, 3.0], 4.0),
        nw.speeds.Recorded.of([[1.0, 2.0], [3.0]]),
        nw.speeds.Communication(nw.speeds.Fixed([1.0, 3.0]), down=0.5, up=0.25),
    ],
    ids=repr,
)
def test_the_usual_seconds_of_workers_are_the_means_of_their_times(speeds):
    timing = speeds.timing(seed=0)
    means = [np.mean([timing(worker, job, 0.0)[1] for job in range(20_000)]) for worker in range(2)]
    assert usual_seconds(speeds) == pytest.approx(means, rel=0.05)


def test_speeds_without_a_mean_have_no_usual_seconds():
    assert usual_seconds(nw.speeds.Pareto(1.0, 1.0, workers=2)) is None
