"""Equivalences: runs of different methods or engines that must be identical."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.core import sampler

LEAST_SQUARES = nw.problems.LeastSquares.random(samples=60, dimension=7, noise=0.1, batch_size=3, seed=1)
UNEVEN = nw.speeds.Exponential([0.2, 1.0, 1.5, 8.0])
EQUAL = nw.speeds.Fixed(1.0, workers=4)


def run(method, speeds=UNEVEN, problem=LEAST_SQUARES, steps=120, **options):
    return nw.simulate(problem, method, speeds, steps=steps, seed=5, **options)


def plain_sgd(problem, stepsize, steps, seed):
    """Run SGD without the library's server."""
    params = problem.initial()
    for step in range(steps):
        params = params - stepsize * problem.gradient(params, sampler(seed).sample(0, step))
    return params


@pytest.mark.parametrize(
    "method",
    [
        nw.AsynchronousSGD(nw.Constant(0.3)),
        nw.AsynchronousSGD(nw.DelayAdaptive(0.3)),
        nw.MinibatchSGD(nw.Constant(0.3)),
        nw.RingmasterASGD(nw.Constant(0.3), max_delay=1),
        nw.RingmasterASGD(nw.Constant(0.3), max_delay=1, cancel_stale=True),
        nw.RennalaSGD(nw.Constant(0.3), batch=1),
        nw.RennalaSGD(nw.Constant(0.3), batch=1, cancel=False),
        nw.GradientTable(nw.Constant(0.3)),
        nw.RingleaderASGD(nw.Constant(0.3)),
        nw.RandomAssignment(nw.Constant(0.3)),
    ],
    ids=lambda method: type(method).__name__,
)
def test_one_worker_is_plain_sgd_bit_for_bit(method):
    expected = plain_sgd(LEAST_SQUARES, 0.3, steps=100, seed=5)
    assert np.array_equal(run(method, nw.speeds.Exponential([1.0]), steps=100).params, expected)


def test_one_worker_is_plain_sgd_bit_for_bit_in_float32():
    data = LEAST_SQUARES.features.astype(np.float32), LEAST_SQUARES.targets.astype(np.float32)
    problem = nw.problems.LeastSquares(*data, batch_size=3)
    params = run(nw.AsynchronousSGD(nw.Constant(0.3)), nw.speeds.Fixed([1.0]), problem).params
    assert params.dtype == np.float32
    assert np.array_equal(params, plain_sgd(problem, np.float32(0.3), steps=120, seed=5))


def test_ringmaster_without_a_limit_is_asynchronous_sgd():
    unlimited = run(nw.RingmasterASGD(nw.DelayAdaptive(0.2), max_delay=10**9))
    assert np.array_equal(unlimited.params, run(nw.AsynchronousSGD(nw.DelayAdaptive(0.2))).params)


def test_rennala_with_a_batch_of_everybody_at_equal_speeds_is_minibatch_sgd():
    """With exact gradients: cancelled tickets use up job numbers, so samples would differ."""
    exact = nw.problems.NoisyQuadratic(dimension=6, L=1.0, mu=0.1)
    rennala = run(nw.RennalaSGD(nw.Constant(0.5), batch=4), EQUAL, exact, steps=30)
    minibatch = run(nw.MinibatchSGD(nw.Constant(0.5)), EQUAL, exact, steps=30)
    assert np.array_equal(rennala.params, minibatch.params)
    assert rennala.stats.seconds == minibatch.stats.seconds == 30.0


def test_delay_adaptive_without_a_cut_is_constant():
    uncut = run(nw.AsynchronousSGD(nw.DelayAdaptive(0.2, cut=math.inf)))
    assert np.array_equal(uncut.params, run(nw.AsynchronousSGD(nw.Constant(0.2))).params)


def test_delay_adaptive_is_not_constant_when_delays_are_long():
    adaptive = run(nw.AsynchronousSGD(nw.DelayAdaptive(0.2)))
    assert not np.array_equal(adaptive.params, run(nw.AsynchronousSGD(nw.Constant(0.2))).params)


def test_asynchronous_sgd_at_equal_speeds_goes_round_robin():
    trace = run(nw.AsynchronousSGD(nw.Constant(0.2)), EQUAL, steps=12).trace
    assert trace.worker.tolist() == [0, 1, 2, 3] * 3
    assert trace.delay.tolist() == [1, 2, 3, 4] + [4] * 8


def test_two_methods_meet_the_same_samples_and_speeds():
    first = run(nw.AsynchronousSGD(nw.Constant(0.01))).trace
    second = run(nw.AsynchronousSGD(nw.Constant(0.3))).trace
    assert np.array_equal(first.time, second.time)
    assert np.array_equal(first.worker, second.worker)


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    method = nw.AsynchronousSGD(nw.DelayAdaptive(0.2))
    first, second = run(method), run(method)
    assert np.array_equal(first.params, second.params)
    assert np.array_equal(first.trace.arrivals, second.trace.arrivals)
    other = nw.simulate(LEAST_SQUARES, method, UNEVEN, steps=120, seed=6)
    assert not np.array_equal(first.params, other.params)
