"""Guarantees for runs that were made: they cover the error, are close on hard instances, and say what they need."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nowait as nw
from nowait.theory import Constants, Uncertain, certificate
from nowait.theory.certificate import rule_of
from nowait.theory.flights import Flights
from theory.test_bounds import alternating

QUADRATIC = nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.1, sigma=0.1, distance=2.0)
SPEEDS = nw.speeds.Fixed([1.0, 1.0, 1.0, 30.0])


class Exact:
    """A problem without noise, given by F and ∇F of one variable, and the start."""

    dimension = 1

    def __init__(self, loss, gradient, start):
        self._loss, self._gradient, self._start = loss, gradient, start

    def initial(self):
        return np.array([self._start])

    def gradient(self, point, sample):
        return self._gradient(point, sample.worker)

    def loss(self, point):
        return float(self._loss(point).sum())


def huber(slope):
    def loss(point):
        size = np.abs(point)
        return np.where(size <= slope, size**2 / 2, slope * (size - slope / 2))

    return Exact(loss, lambda point, worker: np.clip(point, -slope, slope), 1.0)


def run_of(problem, order, workers, rule, output):
    speeds = nw.speeds.Adversary(order, workers=workers)
    method = nw.AsynchronousSGD(rule)
    return nw.simulate(problem, method, speeds, steps=len(order), output=output, evaluate_every=len(order))


def weighted(run, square):
    """Return the mean of ``square(x_k)`` with the weights γ̂_k: the expectation of a random iterate."""
    flights = Flights(run.trace, rule_of(run.config))
    points = []
    problem = run.problem
    held, point = dict.fromkeys(run.trace.initial_workers.tolist(), problem.initial()), problem.initial()
    for worker, stepsize in zip(run.trace.worker.tolist(), run.trace.stepsize.tolist(), strict=True):
        point = point - stepsize * problem._gradient(held[worker], worker)
        held[worker] = point
        points.append(point)
    assert point == pytest.approx(run.last)
    return float(flights.hats @ square(np.array(points)).ravel() / flights.hats.sum())


ORDERS = st.tuples(st.integers(2, 4), st.lists(st.integers(0, 3), min_size=12, max_size=40))
SIZES = st.floats(0.02, 0.6)


def drawn_rule(workers, size, adaptive):
    return nw.DelayAdaptive(size / workers) if adaptive else nw.Constant(size / workers / 4)


@settings(max_examples=60, deadline=None)
@given(ORDERS, SIZES, st.booleans(), st.floats(0.005, 2.0))
def test_convex_runs_are_covered(drawn, size, adaptive, slope):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    run = run_of(huber(slope), order, workers, drawn_rule(workers, size, adaptive), nw.StepsizeWeightedAverage())
    found = certificate(run, Constants(L=1.0, B=1.0, sigma=0.0))
    assert found.setting == "convex"
    assert run.problem.loss(run.params) <= float(found.guarantee) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(ORDERS, SIZES, st.booleans(), st.floats(0.05, 1.0))
def test_strongly_convex_runs_are_covered(drawn, size, adaptive, mu):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    problem = Exact(lambda point: mu * point**2 / 2, lambda point, worker: mu * point, 1.0)
    run = run_of(problem, order, workers, drawn_rule(workers, size, adaptive), nw.StronglyConvexAverage(mu / 2))
    found = certificate(run, Constants(L=1.0, mu=mu, B=1.0, sigma=0.0))
    assert found.setting == "strongly-convex"
    assert found.is_for_the_answer
    assert problem.loss(run.params) <= float(found.guarantee) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(ORDERS, SIZES, st.booleans(), st.floats(0.3, 3.0), st.floats(0.3, 3.0))
def test_nonconvex_runs_are_covered(drawn, size, adaptive, frequency, start):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    problem = Exact(
        lambda point: (1 - np.cos(frequency * point)) / frequency**2,
        lambda point, worker: np.sin(frequency * point) / frequency,
        start,
    )
    run = run_of(problem, order, workers, drawn_rule(workers, size, adaptive), nw.RandomIterate())
    measured = weighted(run, lambda points: (np.sin(frequency * points) / frequency) ** 2)
    constants = Constants(L=1.0, sigma=0.0, Delta=max(problem.loss(problem.initial()), 1e-12), G=1 / frequency)
    for setting in ("nonconvex", "nonconvex-lipschitz"):
        assert measured <= float(certificate(run, constants, setting=setting).guarantee) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(ORDERS, SIZES, st.booleans(), st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4))
def test_heterogeneous_runs_are_covered(drawn, size, adaptive, shifts):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    bias = np.array(shifts[:workers]) - np.mean(shifts[:workers])
    problem = Exact(lambda point: point**2 / 2, lambda point, worker: point + bias[worker], 1.0)
    run = run_of(problem, order, workers, drawn_rule(workers, size, adaptive), nw.RandomIterate())
    zeta = max(float(np.abs(bias).max()), 1e-9)
    found = certificate(run, Constants(L=1.0, sigma=0.0, Delta=0.5, zeta=zeta))
    assert found.setting == "heterogeneous"
    assert weighted(run, lambda points: points**2) <= float(found.guarantee) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(ORDERS, st.floats(0.01, 2.0), st.booleans())
def test_lipschitz_runs_are_covered(drawn, size, adaptive):
    workers, order = drawn[0], [worker % drawn[0] for worker in drawn[1]]
    problem = Exact(np.abs, lambda point, worker: np.sign(point), 1.0)
    output = nw.StepsizeWeightedAverage() if adaptive else nw.UniformAverage()
    run = run_of(problem, order, workers, drawn_rule(workers, size, adaptive), output)
    found = certificate(run, Constants(G=1.0, B=1.0))
    assert (found.setting, found.holds) == ("convex-lipschitz", True)
    assert found.is_for_the_answer
    assert problem.loss(run.params) <= float(found.guarantee) * (1 + 1e-9)


def test_it_is_within_a_few_percent_of_the_error_of_a_hard_instance():
    workers, steps = 4, 2_000
    order, rule = alternating(workers, steps), nw.DelayAdaptive(1 / 16)
    total = certificate(
        run_of(huber(1.0), order, workers, rule, nw.StepsizeWeightedAverage()), Constants(L=1.0, B=1.0, sigma=0.0)
    ).stepsize_sum
    run = run_of(huber(1 / total), order, workers, rule, nw.StepsizeWeightedAverage())
    found = certificate(run, Constants(L=1.0, B=1.0, sigma=0.0))
    assert 1.0 <= float(found.guarantee) / run.problem.loss(run.params) < 1.03


@pytest.mark.parametrize("setting", ["convex", "strongly-convex", "nonconvex"])
def test_the_delays_of_a_run_promise_more_than_the_worst_delays(setting):
    constants = QUADRATIC.constants()
    p = nw.theory.prescribe(setting, constants, workers=4, steps=3_000)
    run = nw.simulate(QUADRATIC, nw.AsynchronousSGD(p.stepsize), SPEEDS, steps=p.steps, output=p.output)
    found = certificate(run, constants, setting=setting, measured=0.5)
    assert found.holds
    assert float(found.guarantee) < float(p.guarantee.sharpened)
    assert found.guarantee.start == p.guarantee.start
    assert "measured   0.5" in str(found)


def test_stepsizes_that_are_too_large_have_no_guarantee():
    run = nw.simulate(QUADRATIC, nw.AsynchronousSGD(0.5), SPEEDS, steps=300)
    found = certificate(run, QUADRATIC.constants(), setting="convex")
    assert not found.holds
    assert math.isinf(float(found.guarantee))
    assert "guarantee  none: a condition is violated" in str(found)
    assert "> (violated) 1" in str(found)
    assert "but the run had LastIterate" in str(found)


def test_a_loaded_run_is_certified_without_its_problem(tmp_path):
    p = nw.theory.prescribe("convex", QUADRATIC.constants(), workers=4, steps=500)
    run = nw.simulate(QUADRATIC, nw.AsynchronousSGD(p.stepsize), SPEEDS, steps=500, output=p.output)
    run.save(tmp_path / "run")
    loaded = nw.load(tmp_path / "run")
    assert str(certificate(loaded, QUADRATIC.constants())) == str(certificate(run, QUADRATIC.constants()))


def test_a_run_of_real_workers_is_certified():
    rule = nw.DelayAdaptive(0.05)
    run = nw.train(QUADRATIC, nw.AsynchronousSGD(rule), workers=2, steps=200, output=nw.StepsizeWeightedAverage())
    assert certificate(run, QUADRATIC.constants(), setting="convex").holds


def test_an_unknown_rule_must_be_passed():
    rule = nw.PolynomialDecay(0.02)
    run = nw.simulate(QUADRATIC, nw.AsynchronousSGD(rule), SPEEDS, steps=50)
    with pytest.raises(ValueError, match=r"the stepsize rule of the run is not known .*: pass it as stepsize="):
        certificate(run, QUADRATIC.constants())
    assert certificate(run, QUADRATIC.constants(), setting="convex", stepsize=rule).steps == 50


@pytest.mark.parametrize("method", [nw.MinibatchSGD(0.001), nw.ClippedASGD(0.001, max_norm=0.001)])
def test_other_methods_have_no_certificate(method):
    run = nw.simulate(QUADRATIC, method, SPEEDS, steps=5, output=nw.UniformAverage())
    with pytest.raises(ValueError, match=f"AsynchronousSGD only, got a run of {type(method).__name__}"):
        certificate(run, QUADRATIC.constants())


def test_other_updates_have_no_certificate():
    method, output = nw.AsynchronousSGD(0.001), nw.UniformAverage()
    run = nw.simulate(QUADRATIC, method, SPEEDS, steps=5, output=output, update=nw.Adam())
    with pytest.raises(ValueError, match="plain steps along the gradients only, got update=Adam"):
        certificate(run, QUADRATIC.constants())


def test_a_rule_that_the_run_did_not_have_is_rejected():
    run = nw.simulate(QUADRATIC, nw.AsynchronousSGD(nw.DelayAdaptive(0.02)), SPEEDS, steps=500)
    with pytest.raises(ValueError, match=r"did not have the stepsizes of Constant\(gamma=0.02\)"):
        certificate(run, QUADRATIC.constants(), stepsize=nw.Constant(0.02))


def test_workers_with_different_data_are_covered_by_one_setting_only():
    run = nw.simulate(QUADRATIC, nw.AsynchronousSGD(0.001), SPEEDS, steps=50)
    apart = dataclasses.replace(QUADRATIC.constants(), zeta=3.0)
    with pytest.raises(ValueError, match="zeta is 3: the workers' data differ"):
        certificate(run, apart, setting="convex")
    assert certificate(run, apart).setting == "heterogeneous"


def test_estimates_are_constants_too():
    method, output = nw.AsynchronousSGD(nw.DelayAdaptive(0.02)), nw.StronglyConvexAverage(0.05)
    run = nw.simulate(QUADRATIC, method, SPEEDS, steps=500, output=output)
    found = nw.theory.estimate(QUADRATIC)
    assert certificate(run, found).setting == "convex", "an estimate has no mu"
    undetected = dataclasses.replace(found, zeta=Uncertain(0.1, 0.09, "by sampling"))
    assert certificate(run, undetected).setting == "convex", "a zeta within its error counts as 0"


def test_an_average_with_other_weights_is_not_the_one_that_is_covered():
    method, output = nw.AsynchronousSGD(nw.DelayAdaptive(0.02)), nw.StronglyConvexAverage(5.0)
    found = certificate(nw.simulate(QUADRATIC, method, SPEEDS, steps=500, output=output), QUADRATIC.constants())
    assert not found.is_for_the_answer
    assert "but the run had StronglyConvexAverage(5) in place of StronglyConvexAverage(0.05)" in str(found)


def test_a_uniform_iterate_is_covered_if_the_stepsize_is_constant():
    run = nw.simulate(QUADRATIC, nw.AsynchronousSGD(0.001), SPEEDS, steps=50, output=nw.UniformIterate())
    found = certificate(run, QUADRATIC.constants())
    assert (found.setting, found.is_for_the_answer) == ("nonconvex", True)


def test_missing_constants_are_named():
    run = nw.simulate(QUADRATIC, nw.AsynchronousSGD(0.01), SPEEDS, steps=50)
    with pytest.raises(ValueError, match=r"'convex' needs sigma"):
        certificate(run, dataclasses.replace(QUADRATIC.constants(), sigma=None), setting="convex")
