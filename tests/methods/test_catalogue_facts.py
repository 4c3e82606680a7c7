"""What is characteristic of the methods that came after the paper."""

import numpy as np
import pytest

import nowait as nw
from nowait.testing import ScriptedWorkers, a_server, gradient_from

QUADRATIC = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=0.3)
UNEVEN = nw.speeds.Exponential([0.1, 0.5, 1.0, 2.0, 12.0])
SPEEDS = np.array([1.0, 2.0, 8.0])


@pytest.fixture(scope="module")
def heterogeneous():
    """Three workers, ζ = 1, exact gradients."""
    return nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.5).split(3, by="sorted", zeta=1.0)


# Malenia SGD


def test_malenia_steps_when_the_harmonic_mean_of_the_counts_is_large_enough():
    """n = 2, batch 6: the harmonic mean of the counts must reach 3."""
    server = a_server(nw.MaleniaSGD(nw.Constant(1.0), batch=6), num_workers=2)
    for worker, gradient in [(0, 1.0), (0, 1.0), (0, 4.0), (0, 2.0), (1, 3.0)]:
        server.handle(gradient_from(server, worker, gradient=gradient))
    server.handle(gradient_from(server, worker=1, gradient=5.0))
    assert server.steps == 0, "counts 4 and 2 have the harmonic mean 8/3"
    server.handle(gradient_from(server, worker=0, gradient=2.0))
    server.handle(gradient_from(server, worker=0, gradient=2.0))
    assert server.steps == 1, "counts 6 and 2 have the harmonic mean 3"
    assert server.params.tolist() == pytest.approx([-(2.0 + 4.0) / 2] * 2), "the mean of the workers' own means"
    assert {ticket.version for ticket in server.in_flight.values()} == {1}


def test_malenia_does_not_step_before_everybody_has_delivered():
    server = a_server(nw.MaleniaSGD(nw.Constant(1.0), batch=1), num_workers=2)
    for _ in range(20):
        server.handle(gradient_from(server, worker=0))
    assert server.steps == 0


def test_malenia_goes_to_the_true_point_of_heterogeneous_data(heterogeneous):
    run = nw.simulate(heterogeneous, nw.MaleniaSGD(nw.Constant(0.3), batch=6), nw.speeds.Fixed(SPEEDS), steps=200)
    np.testing.assert_allclose(run.params, heterogeneous.minimum()[0], atol=1e-6)


# Shuffled assignment


def test_in_every_pass_everybody_is_dealt_one_ticket():
    workers = ScriptedWorkers(nw.ShuffledAssignment(nw.Constant(0.1)), num_workers=5)
    dealt = []
    for _ in range(50):
        workers.next_arrival()
        [assign] = workers.commands
        dealt.append(assign.ticket.worker)
    for deal in np.reshape(dealt, (-1, 5)):
        assert sorted(deal) == [0, 1, 2, 3, 4]
    assert len({tuple(deal) for deal in np.reshape(dealt, (-1, 5))}) > 1, "every pass has an order of its own"


def test_shuffled_assignment_goes_near_the_true_point_of_heterogeneous_data(heterogeneous):
    method = nw.ShuffledAssignment(nw.Constant(0.002))
    run = nw.simulate(heterogeneous, method, nw.speeds.Fixed(SPEEDS), steps=9_000)
    np.testing.assert_allclose(run.params, heterogeneous.minimum()[0], atol=0.02)


# Picky SGD


def test_picky_drops_a_gradient_from_afar_however_young_it_is():
    server = a_server(nw.PickySGD(nw.Constant(1.0), radius=1.0), num_workers=3)
    server.handle(gradient_from(server, worker=0, gradient=0.7))
    assert server.counts.dropped == 0
    server.handle(gradient_from(server, worker=1, gradient=0.1))
    assert (server.steps, server.counts.dropped) == (2, 0), "√2·0.7 = 0.99 is near"
    server.handle(gradient_from(server, worker=2))
    assert (server.steps, server.counts.dropped) == (2, 1), "√2·0.8 = 1.13 is not"


# Clipped ASGD


def test_no_step_of_clipped_asgd_is_longer_than_it_may_be(record):
    method = nw.ClippedASGD(nw.Constant(0.1), max_norm=0.2)
    nw.simulate(QUADRATIC, method, UNEVEN, steps=300, callbacks=[record])
    lengths = np.linalg.norm(np.diff(record.iterates, axis=0), axis=1)
    assert lengths.max() <= 0.1 * 0.2 * (1 + 1e-12)
    assert lengths.min() < 0.1 * 0.2 * 0.9, "short gradients stay as they are"


def test_clipping_keeps_the_direction():
    server = a_server(nw.ClippedASGD(nw.Constant(1.0), max_norm=1.0), num_workers=1)
    server.handle(gradient_from(server, worker=0, gradient=np.array([3.0, -4.0])))
    assert server.params.tolist() == pytest.approx([-0.6, 0.8])


# Delay-compensated SGD


def test_the_correction_is_the_diagonal_of_squares_times_the_way_gone():
    server = a_server(nw.DelayCompensatedSGD(nw.Constant(1.0), strength=0.5), num_workers=2)
    server.handle(gradient_from(server, worker=0, gradient=np.array([1.0, -2.0])))
    assert server.params.tolist() == [-1.0, 2.0], "a fresh gradient needs no correction"
    server.handle(gradient_from(server, worker=1, gradient=np.array([2.0, 1.0])))
    assert server.params.tolist() == [-1.0 - (2.0 + 0.5 * 4.0 * -1.0), 2.0 - (1.0 + 0.5 * 1.0 * 2.0)]


def test_the_adaptive_strength_follows_the_squares():
    server = a_server(nw.DelayCompensatedSGD(nw.Constant(1.0), nw.AdaptiveStrength(2.0, decay=0.5)), num_workers=2)
    server.handle(gradient_from(server, worker=0, gradient=np.array([1.0, -2.0])))
    server.handle(gradient_from(server, worker=1, gradient=np.array([2.0, 1.0])))
    squares = np.array([0.5 * 0.5 + 0.5 * 4.0, 0.5 * 2.0 + 0.5 * 1.0])
    strength = 2.0 / np.sqrt(squares + 1e-7)
    expected = np.array([-1.0, 2.0]) - (np.array([2.0, 1.0]) + strength * np.array([4.0, 1.0]) * np.array([-1.0, 2.0]))
    np.testing.assert_allclose(server.params, expected, rtol=1e-12)


def test_without_strength_delay_compensation_is_asynchronous_sgd():
    compensated = nw.simulate(QUADRATIC, nw.DelayCompensatedSGD(nw.Constant(0.1), strength=0.0), UNEVEN, steps=100)
    plain = nw.simulate(QUADRATIC, nw.AsynchronousSGD(nw.Constant(0.1)), UNEVEN, steps=100)
    assert np.array_equal(compensated.params, plain.params)


# Rescaled ASGD


def test_rescaled_asgd_goes_near_the_true_point_of_heterogeneous_data(heterogeneous):
    """Asynchronous SGD goes elsewhere (tests/methods/test_facts.py)."""
    method = nw.RescaledASGD(nw.Constant(0.001))
    run = nw.simulate(heterogeneous, method, nw.speeds.Fixed(SPEEDS), steps=20_000)
    np.testing.assert_allclose(run.params, heterogeneous.minimum()[0], atol=0.02)


def test_every_workers_steps_add_up_to_the_same_length():
    run = nw.simulate(QUADRATIC, nw.RescaledASGD(nw.Constant(0.01)), nw.speeds.Fixed(SPEEDS), steps=2_000)
    settled = slice(100, None)
    worker, stepsize = run.trace.worker[settled], run.trace.stepsize[settled]
    totals = [stepsize[worker == number].sum() for number in range(3)]
    np.testing.assert_allclose(totals, np.mean(totals), rtol=0.02)


# FedBuff


def test_fedbuff_with_a_buffer_of_one_is_asynchronous_sgd_with_its_discount():
    buffered = nw.simulate(QUADRATIC, nw.FedBuff(nw.Constant(0.1), buffer=1), UNEVEN, steps=200)
    discounted = nw.simulate(QUADRATIC, nw.AsynchronousSGD(nw.PolynomialDecay(0.1, power=0.5)), UNEVEN, steps=200)
    np.testing.assert_allclose(buffered.params, discounted.params, rtol=1e-12)


def test_fedbuff_steps_along_the_discounted_mean_of_a_full_buffer():
    run = nw.simulate(QUADRATIC, nw.FedBuff(nw.Constant(0.1), buffer=4), UNEVEN, steps=50)
    steps, counts = np.unique(run.trace.step[run.trace.step > 0], return_counts=True)
    assert (counts == 4).all()
    assert len(steps) == 50
    np.testing.assert_allclose(run.trace.weight, run.trace.delay**-0.5 / 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nw.MaleniaSGD(nw.Constant(0.1), batch=0), "batch must be an integer of at least 1"),
        (lambda: nw.PickySGD(nw.Constant(0.1), radius=0), "radius must be a finite number above 0"),
        (lambda: nw.ClippedASGD(nw.Constant(0.1), max_norm=-1), "max_norm must be a finite number above 0"),
        (
            lambda: nw.DelayCompensatedSGD(nw.Constant(0.1), strength=-1),
            "strength must be a finite number of at least 0",
        ),
        (lambda: nw.AdaptiveStrength(decay=1.0), "decay must be at least 0 and below 1"),
        (lambda: nw.RescaledASGD(nw.Constant(0.1), memory=1.0), "memory must be at least 0 and below 1"),
        (lambda: nw.FedBuff(nw.Constant(0.1), buffer=0), "buffer must be an integer of at least 1"),
        (lambda: nw.FedBuff(nw.Constant(0.1), discount=0.5), "discount must be a nowait Stepsize"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
