"""Stepsize rules and updates."""

import dataclasses
import math

import numpy as np
import pytest

import nowait as nw
from nowait.core import Server, as_stepsize
from nowait.testing import CATALOGUE, a_server, gradient_from

STEPSIZES = [
    nw.Constant(0.3),
    nw.DelayAdaptive(0.3),
    nw.DelayAdaptive(0.3, cut=2.5),
    nw.DelayAdaptive(0.3, cut=math.inf),
    nw.ExponentialDelayAdaptive(0.3, cut=2.5, rate=0.1),
    nw.PolynomialDecay(0.3),
    nw.PolynomialDecay(0.3, power=0.5),
    nw.HingeDecay(0.3),
    nw.Threshold(0.3),
    nw.Threshold(0.3, concurrency=2, beyond=0.7),
    nw.AdaDelay(2.0, scale=0.5),
    nw.StepDecay(nw.DelayAdaptive(0.3), every=2),
    nw.Cosine(nw.DelayAdaptive(0.3), steps=3, floor=0.1),
]


@pytest.mark.parametrize("stepsize", STEPSIZES, ids=repr)
def test_a_stepsize_of_arrays_is_the_stepsize_of_each_entry(stepsize):
    delays, workers, steps = np.array([1, 2, 3, 50]), np.array([4, 4, 2, 7]), np.arange(1, 5)
    expected = [
        stepsize(*arguments) for arguments in zip(delays.tolist(), workers.tolist(), steps.tolist(), strict=True)
    ]
    np.testing.assert_allclose(stepsize(delays, workers, steps), expected, rtol=1e-15)
    assert all(type(value) is float for value in expected)


def test_the_delay_adaptive_rule_shrinks_beyond_the_number_of_workers():
    stepsize = nw.DelayAdaptive(0.5)
    assert [stepsize(delay, 4, 1) for delay in (1, 4, 5, 8, 400)] == [0.5, 0.5, 0.4, 0.25, 0.005]
    assert stepsize(101, 100, 1) == pytest.approx(0.5 * 100 / 101, rel=1e-15)


def test_polynomial_decay():
    assert [nw.PolynomialDecay(0.6)(delay, 9, 1) for delay in (1, 2, 3)] == pytest.approx([0.6, 0.3, 0.2])
    assert nw.PolynomialDecay(0.6, power=0.5)(9, 1, 1) == pytest.approx(0.2)


def test_the_hinge_holds_until_its_patience_ends():
    hinge = nw.HingeDecay(1.0, slope=10.0, patience=6.0)
    assert [hinge(delay, 1, 1) for delay in (1, 7, 8, 9, 12)] == pytest.approx([1.0, 1.0, 1 / 11, 1 / 21, 1 / 51])


def test_beyond_the_threshold_gradients_count_little_or_nothing():
    assert [nw.Threshold(0.5)(delay, 4, 1) for delay in (1, 5, 6, 50)] == [0.5, 0.5, 0.0, 0.0]
    assert [nw.Threshold(0.5, concurrency=2, beyond=1.0)(delay, 4, 1) for delay in (3, 5)] == [0.5, 0.125]


def test_adadelay():
    assert nw.AdaDelay(2.0, scale=0.5)(delay=4, num_workers=1, step=13) == 1 / (2.0 + 0.5 * 4.0)


def test_schedules_multiply_another_rule():
    fall = nw.StepDecay(nw.DelayAdaptive(0.8), every=10, factor=0.5)
    assert [fall(1, 4, step) for step in (1, 10, 11, 25)] == [0.8, 0.8, 0.4, 0.2]
    assert fall(8, 4, 11) == 0.2
    wave = nw.Cosine(nw.Constant(2.0), steps=100, floor=0.1)
    assert [wave(1, 1, step) for step in (1, 51, 101, 500)] == pytest.approx([2.0, 1.1, 0.2, 0.2])


@pytest.mark.parametrize(
    "make",
    [
        lambda: nw.PolynomialDecay(0.0),
        lambda: nw.PolynomialDecay(0.1, power=-1),
        lambda: nw.HingeDecay(0.1, slope=0),
        lambda: nw.Threshold(0.1, concurrency=0),
        lambda: nw.Threshold(0.1, beyond=-1),
        lambda: nw.AdaDelay(0.0, 1.0),
        lambda: nw.StepDecay("0.1", every=3),
        lambda: nw.StepDecay(nw.Constant(0.1), every=0),
        lambda: nw.Cosine(nw.Constant(0.1), steps=0),
        lambda: nw.Cosine(nw.Constant(0.1), steps=5, floor=1.0),
    ],
)
def test_bad_arguments_of_stepsizes(make):
    with pytest.raises((ValueError, TypeError), match=r"must be .* got"):
        make()


@pytest.mark.parametrize("rule", [nw.Constant, nw.DelayAdaptive])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, "0.1", None, True])
def test_a_stepsize_is_a_positive_number(rule, value):
    with pytest.raises(ValueError, match="stepsize must be a finite number above 0"):
        rule(value)


@pytest.mark.parametrize("number", [0.25, 1, np.float32(0.5), np.int64(2)], ids=repr)
def test_a_number_is_a_constant_stepsize_wherever_a_rule_is_taken(number):
    constant = nw.Constant(float(number))
    assert as_stepsize(number) == constant
    assert nw.StepDecay(number, every=2).rule == constant
    assert nw.Cosine(number, steps=2).rule == constant
    assert nw.FedBuff(0.1, discount=number).discount == constant
    for name, method in CATALOGUE.items():
        if hasattr(method, "stepsize"):
            assert dataclasses.replace(method, stepsize=number).stepsize == constant, name


def test_a_rule_is_taken_as_it_is():
    rule = nw.DelayAdaptive(0.1)
    assert as_stepsize(rule) is rule
    assert nw.AsynchronousSGD(rule).stepsize is rule


@pytest.mark.parametrize("value", ["0.1", None, [0.1], True, np.array([0.1, 0.2])], ids=repr)
def test_a_stepsize_that_is_neither_a_number_nor_a_rule(value):
    with pytest.raises(TypeError, match=r"^stepsize must be a number or a stepsize rule such as"):
        nw.AsynchronousSGD(value)


def test_a_number_that_is_no_stepsize_and_a_class_in_place_of_a_rule():
    with pytest.raises(ValueError, match=r"stepsize must be a finite number above 0, got -1:"):
        nw.AsynchronousSGD(-1)
    with pytest.raises(TypeError, match=r"stepsize must be an object, got the class Constant: write Constant\(...\)"):
        nw.AsynchronousSGD(nw.Constant)
    with pytest.raises(TypeError, match="discount must be a number or a stepsize rule"):
        nw.FedBuff(0.1, discount="0.5")


@pytest.mark.parametrize("rule", [one for one in STEPSIZES if hasattr(one, "gamma")], ids=repr)
def test_every_rule_calls_its_size_gamma(rule):
    assert rule.gamma == 0.3
    assert rule.with_size(0.7) == dataclasses.replace(rule, gamma=0.7)
    assert {type(one) for one in STEPSIZES if not hasattr(one, "gamma")} == {nw.AdaDelay, nw.StepDecay, nw.Cosine}


def test_a_cut_is_positive():
    with pytest.raises(ValueError, match="cut must be a finite number above 0, got 0"):
        nw.DelayAdaptive(0.1, cut=0)


# Updates, against their formulas written out


GRADIENTS = [np.array([1.0, -2.0, 0.5]), np.array([0.0, 3.0, -1.0]), np.array([-4.0, 0.1, 2.0])]


def params_after(update, stepsize=0.1):
    server = a_server(nw.AsynchronousSGD(nw.Constant(stepsize)), num_workers=1, dimension=3, update=update)
    for gradient in GRADIENTS:
        server.handle(gradient_from(server, worker=0, gradient=gradient))
    return server.params


def test_sgd():
    assert np.array_equal(params_after(nw.Sgd()), -0.1 * GRADIENTS[0] - 0.1 * GRADIENTS[1] - 0.1 * GRADIENTS[2])


def test_momentum():
    momentum, params = np.zeros(3), np.zeros(3)
    for gradient in GRADIENTS:
        momentum = 0.8 * momentum + gradient
        params = params - 0.1 * momentum
    np.testing.assert_allclose(params_after(nw.Momentum(0.8)), params, rtol=1e-14)


def test_nesterov():
    momentum, params = np.zeros(3), np.zeros(3)
    for gradient in GRADIENTS:
        momentum = 0.8 * momentum + gradient
        params = params - 0.1 * (gradient + 0.8 * momentum)
    np.testing.assert_allclose(params_after(nw.Nesterov(0.8)), params, rtol=1e-14)


def test_adam():
    mean, square, params = np.zeros(3), np.zeros(3), np.zeros(3)
    for step, gradient in enumerate(GRADIENTS, start=1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        params = params - 0.1 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    np.testing.assert_allclose(params_after(nw.Adam(beta2=0.99)), params, rtol=1e-12)


def test_amsgrad():
    mean, square, largest, params = np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3)
    for gradient in GRADIENTS:
        mean, square = 0.9 * mean + 0.1 * gradient, 0.8 * square + 0.2 * gradient**2
        largest = np.maximum(largest, square)
        params = params - 0.1 * mean / (np.sqrt(largest) + 1e-8)
    np.testing.assert_allclose(params_after(nw.AMSGrad(beta2=0.8)), params, rtol=1e-12)


@pytest.mark.parametrize(
    "update", [nw.Momentum(0.0), nw.Nesterov(0.0), nw.Proximal(nw.updates.L1(0.0)), nw.Proximal(nw.updates.Ball(1e9))]
)
def test_without_their_extras_updates_are_sgd(update):
    np.testing.assert_allclose(params_after(update), params_after(nw.Sgd()), rtol=1e-14)


def test_proximal_maps():
    values = np.array([3.0, -0.5, 0.2])
    assert nw.updates.L1(2.0)(values, 0.25).tolist() == [2.5, 0.0, 0.0]
    assert nw.updates.Box(-0.4, 1.0)(values, 0.1).tolist() == [1.0, -0.4, 0.2]
    assert np.linalg.norm(nw.updates.Ball(2.0)(values, 0.1)) == pytest.approx(2.0)
    assert np.array_equal(nw.updates.Ball(5.0)(values, 0.1), values)


def test_l1_makes_params_sparse_and_a_box_keeps_them_inside():
    problem = nw.problems.NoisyQuadratic(dimension=20, L=1.0, mu=0.01)
    speeds, method = nw.speeds.Fixed([1.0, 3.0]), nw.AsynchronousSGD(nw.Constant(0.2))
    sparse = nw.simulate(problem, method, speeds, steps=2_000, update=nw.Proximal(nw.updates.L1(0.05))).params
    assert 0 < (sparse == 0).sum() < 20
    boxed = nw.simulate(problem, method, speeds, steps=200, update=nw.Proximal(nw.updates.Box(0.0, 0.1))).params
    assert boxed.max() == 0.1


@pytest.mark.parametrize("update", [nw.Momentum(), nw.Nesterov(), nw.Adam(), nw.AMSGrad()], ids=repr)
def test_state_is_made_anew_for_every_run(update):
    assert np.array_equal(params_after(update), params_after(update))


@pytest.mark.parametrize(
    "update", [nw.Sgd(), nw.Momentum(), nw.Nesterov(), nw.Adam(), nw.AMSGrad(), nw.Proximal(nw.updates.L1(0.1))]
)
def test_params_keep_their_dtype(update):
    server = Server(nw.AsynchronousSGD(nw.Constant(0.1)), np.zeros(3, dtype=np.float32), 1, update=update)
    server.start()
    server.handle(gradient_from(server, worker=0, gradient=np.ones(3, dtype=np.float32)))
    assert server.params.dtype == np.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nw.Momentum(1.0), "beta must be at least 0 and below 1, got 1.0"),
        (lambda: nw.Adam(beta2=-0.1), "beta2 must be at least 0 and below 1"),
        (lambda: nw.Adam(epsilon=0), "epsilon must be a finite number above 0"),
        (lambda: nw.Proximal(3), "penalty must be a function"),
        (lambda: nw.updates.Box(1.0, 0.0), "the box is empty"),
        (lambda: nw.updates.Ball(0.0), "radius must be a finite number above 0"),
    ],
)
def test_bad_arguments_of_updates(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
