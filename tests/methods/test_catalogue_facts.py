"""Characteristic behaviour of the methods that were published after the paper."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.core import WorkerLost
from nowait.core.randomness import Stream
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
        issued = workers.server.num_tickets
        workers.next_arrival()
        assert workers.server.num_tickets == issued + 1
        dealt.append(workers.server.in_flight[issued].worker)
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
    """Asynchronous SGD converges to another point (tests/methods/test_facts.py)."""
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


# Delayed Nesterov


def test_delayed_nesterov_with_every_arrival_is_nesterovs_momentum():
    one = nw.speeds.Fixed([1.0])
    delayed = nw.simulate(QUADRATIC, nw.DelayedNesterov(nw.Constant(0.05), every=1, beta=0.8), one, steps=100)
    update = nw.Nesterov(0.8)
    nesterov = nw.simulate(QUADRATIC, nw.AsynchronousSGD(nw.Constant(0.05)), one, steps=100, update=update)
    np.testing.assert_allclose(delayed.params, nesterov.params, rtol=1e-10)


def test_momentum_moves_params_with_every_third_arrival_only():
    server = a_server(nw.DelayedNesterov(nw.Constant(1.0), every=3, beta=0.5), num_workers=1)
    moves = []
    for gradient in (3.0, 6.0, 9.0, 0.0, 0.0, 0.0):
        before = server.params[0]
        server.handle(gradient_from(server, worker=0, gradient=gradient))
        moves.append(before - server.params[0])
    assert moves == pytest.approx([1.0, 2.0, 3.0 + 0.5 * 6.0, 0.0, 0.0, 0.5 * (0.5 * 6.0)])


# MindFlayer SGD


class Coin(nw.speeds.Speeds):
    """A gradient takes one second or never finishes, with equal probability."""

    num_workers = 4

    def timing(self, seed):
        stream = Stream(seed, "speed")

        def timing(worker, job, start):
            seconds = 1.0 if stream.uniform(worker, job) < 0.5 else math.inf
            return seconds, start + seconds

        return timing


def test_mindflayer_goes_on_where_rennala_stalls(caplog):
    exact = nw.problems.NoisyQuadratic(dimension=3)
    stalled = nw.simulate(exact, nw.RennalaSGD(nw.Constant(0.2), batch=4), Coin(), steps=300)
    assert stalled.stats.steps < 20
    assert "no worker will ever finish" in stalled.stats.advice
    run = nw.simulate(exact, nw.MindFlayerSGD(nw.Constant(0.2), timeout_seconds=1.5, trials=2), Coin(), steps=300)
    assert run.stats.steps == 300
    assert run.history.loss[-1] < 1e-6


def test_the_divisor_of_mindflayer_is_unbiased():
    """The weights of a step add up to 1 on average, whichever workers were in time."""
    method = nw.MindFlayerSGD(nw.Constant(0.01), timeout_seconds=1.0, trials=3, probability=1 - 0.1**0.7)
    run = nw.simulate(QUADRATIC, method, nw.speeds.Pareto(0.1, shape=0.7, workers=5), steps=2_000)
    sums = np.bincount(run.trace.step, weights=run.trace.weight)[1:]
    assert sums.std() > 0.05
    assert sums.mean() == pytest.approx(1.0, abs=0.01)
    assert run.trace.compute_seconds.max() <= 1.0


def test_a_try_that_ends_with_its_time_is_in_time():
    method = nw.MindFlayerSGD(nw.Constant(0.1), timeout_seconds=[2.0, 1.0], trials=[1, 3])
    run = nw.simulate(QUADRATIC, method, nw.speeds.Fixed([2.0, 1.0]), steps=3)
    assert run.stats.cancelled == 0
    assert run.stats.gradients == 12
    assert run.stats.seconds == 9.0


def test_a_worker_without_trials_rests_unless_nobody_else_is_left():
    workers = ScriptedWorkers(nw.MindFlayerSGD(nw.Constant(0.1), 9.0, trials=[2, 0]), num_workers=2).after(10)
    assert {ticket.worker for ticket in workers.server.in_flight.values()} == {0}
    workers.lose(0)
    assert {ticket.worker for ticket in workers.server.in_flight.values()} == {1}


def test_a_round_whose_only_worker_left_steps_with_what_it_sent():
    server = a_server(nw.MindFlayerSGD(nw.Constant(1.0), 9.0, trials=[2, 0]), num_workers=2)
    server.handle(gradient_from(server, worker=0, gradient=2.0))
    server.handle(WorkerLost(0, server.now))
    assert (server.steps, server.params[0]) == (1, -2.0)
    server.handle(gradient_from(server, worker=1, gradient=3.0))
    assert server.params[0] == -5.0


def test_gradients_of_a_worker_that_left_count_in_the_divisor():
    server = a_server(nw.MindFlayerSGD(nw.Constant(1.0), 9.0, trials=[10, 1], probability=1.0), num_workers=2)
    for _ in range(9):
        server.handle(gradient_from(server, worker=0, gradient=1.0))
    server.handle(WorkerLost(0, server.now))
    server.handle(gradient_from(server, worker=1, gradient=1.0))
    assert server.params[0] == pytest.approx(-1.0)


def test_the_share_in_time_is_learned():
    method = nw.MindFlayerSGD(nw.Constant(0.01), timeout_seconds=1.0, trials=3)
    run = nw.simulate(QUADRATIC, method, nw.speeds.Pareto(0.1, shape=0.7, workers=5), steps=1_000)
    sums = np.bincount(run.trace.step, weights=run.trace.weight)[1:]
    assert sums[200:].mean() == pytest.approx(1.0, abs=0.02)


# CA²FL


def test_ca2fl_steps_along_the_calibrated_mean():
    server = a_server(nw.CA2FL(nw.Constant(1.0), buffer=2), num_workers=2)
    for worker, gradient in [(0, 2.0), (1, 4.0)]:
        server.handle(gradient_from(server, worker, gradient=gradient))
    assert server.params[0] == -3.0, "an empty cache: the mean of the buffer"
    for gradient in (8.0, 10.0):
        server.handle(gradient_from(server, worker=0, gradient=gradient))
    calibrated = (2.0 + 4.0) / 2 + ((8.0 - 2.0) + (10.0 - 2.0)) / 2
    assert server.params[0] == pytest.approx(-3.0 - calibrated)
    assert {worker: entry.vector[0] for worker, entry in server.method.cache.items()} == {0: 10.0, 1: 4.0}


def test_ca2fl_goes_to_the_true_point_of_heterogeneous_data(heterogeneous):
    run = nw.simulate(heterogeneous, nw.CA2FL(nw.Constant(0.02), buffer=3), nw.speeds.Fixed(SPEEDS), steps=4_000)
    np.testing.assert_allclose(run.params, heterogeneous.minimum()[0], atol=1e-3)
    buffered = nw.simulate(heterogeneous, nw.FedBuff(nw.Constant(0.02), buffer=3), nw.speeds.Fixed(SPEEDS), steps=4_000)
    assert np.linalg.norm(buffered.params - heterogeneous.minimum()[0]) > 0.1, "FedBuff does not"


# FADAS


def test_a_stale_buffer_makes_a_smaller_step_but_never_a_longer_one():
    run = nw.simulate(QUADRATIC, nw.FADAS(nw.Constant(0.2), buffer=2, max_delay=3), UNEVEN, steps=200)
    for step in range(1, 201):
        rows = run.trace.step == step
        oldest = run.trace.delay[rows].max() - 1
        expected = 0.2 if oldest <= 3 else min(0.2, 1 / oldest)
        assert set(run.trace.stepsize[rows]) == {expected}
    assert run.trace.stepsize.min() < 0.2


# AdaptiveRevision


def test_without_delays_adaptive_revision_is_adagrad():
    squares, params = np.ones(2), np.zeros(2)
    server = a_server(nw.AdaptiveRevision(nw.Constant(0.3)), num_workers=1)
    for gradient in (np.array([1.0, -2.0]), np.array([3.0, 0.5]), np.array([-1.0, 4.0])):
        squares = squares + gradient**2
        params = params - 0.3 * gradient / np.sqrt(squares)
        server.handle(gradient_from(server, worker=0, gradient=gradient))
    np.testing.assert_allclose(server.params, params, rtol=1e-12)


def test_adaptive_revision_revises_the_steps_that_came_between():
    server = a_server(nw.AdaptiveRevision(nw.Constant(1.0)), num_workers=2)
    server.handle(gradient_from(server, worker=0, gradient=2.0))
    first = 2.0 / np.sqrt(5.0)
    assert server.params[0] == pytest.approx(-first)
    server.handle(gradient_from(server, worker=1, gradient=3.0))
    square = 5.0 + 9.0 + 2 * 3.0 * 2.0
    revised = 3.0 / np.sqrt(square) - (1 / np.sqrt(5.0) - 1 / np.sqrt(square)) * 2.0
    assert server.params[0] == pytest.approx(-first - revised)


# PIAG


def windows_of(run):
    """Return the stepsize of each step, and the sum of stepsizes from the oldest point in the table to that step."""
    stepsizes = [0.0]
    table, sums = {}, []
    for worker, version, step, stepsize in zip(
        run.trace.worker, run.trace.version, run.trace.step, run.trace.stepsize, strict=True
    ):
        table[worker] = version
        if step == 0 or step < len(stepsizes):
            continue
        stepsizes.append(stepsize)
        sums.append(sum(stepsizes[min(table.values()) + 1 :]))
    return np.array(stepsizes[1:]), np.array(sums)


@pytest.mark.parametrize("rule", [nw.stepsizes.ShareOfTheRest(0.9), nw.stepsizes.EqualParts()])
def test_the_window_sums_of_piag_never_exceed_the_budget(rule):
    run = nw.simulate(QUADRATIC, nw.PIAG(0.8, rule), UNEVEN, gradients=3_000)
    stepsizes, sums = windows_of(run)
    assert len(stepsizes) == run.stats.steps > 2_000
    assert sums.max() <= 0.8 * (1 + 1e-9)
    assert sums.max() > 0.8 * 0.9, "and the budget is used"
    assert stepsizes.max() > 5 * np.median(stepsizes), "stepsizes follow the delays"


def test_equal_parts_stay_equal_in_a_long_run():
    """With steady delays every window uses exactly the budget: rounding must not exceed it."""
    method = nw.PIAG(0.9, nw.stepsizes.EqualParts())
    problem = nw.problems.NoisyQuadratic(dimension=1, L=1.0, mu=1.0)
    run = nw.simulate(problem, method, nw.speeds.Fixed([1.0] * 3), steps=40_000, evaluate_every=40_000)
    assert (run.trace.stepsize[100:] > 0).all()


def test_the_first_rule_takes_a_share_of_the_rest_the_second_an_equal_part():
    assert nw.stepsizes.ShareOfTheRest(0.5).stepsize(budget=1.0, spent=0.2, age=3) == 0.4
    assert nw.stepsizes.ShareOfTheRest(0.5).stepsize(budget=1.0, spent=1.2, age=3) == 0.0
    assert nw.stepsizes.EqualParts().stepsize(budget=1.0, spent=0.75, age=3) == 0.25
    assert nw.stepsizes.EqualParts().stepsize(budget=1.0, spent=0.76, age=3) == 0.0


def test_piag_goes_to_the_true_point_of_heterogeneous_data(heterogeneous):
    run = nw.simulate(heterogeneous, nw.PIAG(0.9), nw.speeds.Fixed(SPEEDS), steps=2_000)
    np.testing.assert_allclose(run.params, heterogeneous.minimum()[0], atol=1e-6)


def test_the_entry_of_a_leaver_holds_no_budget():
    """Worker 2 sent one gradient and left; its old point would use up the budget of all later windows."""
    workers = ScriptedWorkers(nw.PIAG(0.9), num_workers=3)
    for worker in range(3):
        workers.finish(workers.server.in_flight.of(worker)[0])
    workers.lose(2)
    before = workers.server.params.copy()
    for _ in range(30):
        workers.next_arrival()
    assert np.linalg.norm(workers.server.params - 1.0) < np.linalg.norm(before - 1.0) / 100


def test_piag_finds_a_sparse_point_with_the_proximal_step():
    """½‖x − x*‖² + 0.3·‖x‖₁ has the soft threshold of x* as its minimum."""
    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=1.0, distance=1.0)
    run = nw.simulate(problem, nw.PIAG(0.9), UNEVEN, steps=2_000, update=nw.Proximal(nw.updates.L1(0.3)))
    np.testing.assert_allclose(run.params, [0.2] * 4, atol=1e-6)


# ATA


def test_ata_learns_to_deal_so_that_a_round_ends_soonest():
    """The best allocation of 12 gradients to workers of 1, 2, 6 and 100 s takes 8 s: there is room for 8 + 4 + 1."""
    method = nw.ATA(nw.Constant(0.01), batch=12, spread=0.0)
    run = nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1.0, 2.0, 6.0, 100.0]), steps=50)
    ends = np.array([run.trace.time[run.trace.step == step].max() for step in range(1, 51)])
    assert np.diff(ends)[1:].tolist() == [8.0] * 48
    jobs = np.bincount(run.trace.worker[run.trace.step == 50], minlength=4)
    assert jobs.sum() == 12
    assert jobs[3] == 0
    assert np.bincount(run.trace.worker)[3] == 3, "worker 3 was tried in the first round only"


def test_ata_tries_a_worker_again_while_its_time_is_uncertain():
    speeds = nw.speeds.Fixed([1.0, 30.0])
    cautious = nw.simulate(QUADRATIC, nw.ATA(nw.Constant(0.01), batch=12, spread=2.0), speeds, steps=40)
    assert np.bincount(cautious.trace.worker)[1] > 100
    learned = nw.simulate(QUADRATIC, nw.ATA(nw.Constant(0.01), batch=12), speeds, steps=40)
    assert np.bincount(learned.trace.worker)[1] < 20, "the default learns soon"


def test_ata_gives_a_worker_that_joins_one_job_not_the_batch():
    faults = nw.speeds.Faults([(200.0, "join", 3)])
    method = nw.ATA(nw.Constant(0.05), batch=30)
    run = nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1, 1, 1, 100.0]), seconds=1_000, faults=faults)
    steps = run.trace.step[run.trace.worker == 3]
    assert np.count_nonzero(steps == steps[steps > 0].min()) == 1


def test_ata_counts_time_on_the_network():
    speeds = nw.speeds.Communication(nw.speeds.Fixed([1.0, 1.0]), up=[0.0, 100.0])
    run = nw.simulate(QUADRATIC, nw.ATA(nw.Constant(0.01), batch=8), speeds, steps=60)
    assert run.stats.work_share[1] < 0.1


def test_ata_computes_nothing_in_vain():
    run = nw.simulate(QUADRATIC, nw.ATA(nw.Constant(0.01), batch=8), UNEVEN, steps=100)
    assert run.stats.gradients == 800
    assert run.stats.cancelled == run.stats.dropped == 0
    assert (run.trace.delay == 1).all()


def test_a_round_that_lost_jobs_steps_along_the_mean_of_the_others():
    server = a_server(nw.ATA(nw.Constant(1.0), batch=4), num_workers=2)
    server.handle(gradient_from(server, worker=0, gradient=2.0))
    server.handle(gradient_from(server, worker=0, gradient=4.0))
    server.handle(WorkerLost(1, server.now))
    assert server.params[0] == -3.0


def test_unseen_workers_get_one_job_each_first():
    server = a_server(nw.ATA(nw.Constant(1.0), batch=3), num_workers=4)
    assert sorted(ticket.worker for ticket in server.in_flight.values()) == [0, 1, 2]
    for worker, gradient in enumerate((1.0, 2.0, 6.0)):
        server.handle(gradient_from(server, worker, gradient=gradient, time=1.0 + worker))
    assert server.params[0] == -3.0
    assert server.in_flight.of(3)


# FedAT


def test_fedat_weighs_the_tiers_by_each_others_rounds():
    server = a_server(nw.FedAT(nw.Constant(0.5), tiers=2), num_workers=4)

    def deliver(time, **gradients):
        for worker, gradient in gradients.items():
            server.handle(gradient_from(server, int(worker[1:]), gradient=gradient, time=time))
        return server.params[0]

    deliver(1.0, w3=1.0)
    deliver(2.0, w1=1.0)
    deliver(9.0, w0=1.0)
    assert server.steps == 0, "the first round is one of all workers"
    assert deliver(10.0, w2=1.0) == -0.5
    first = (1 * (-0.5 - 0.5 * 3) + 2 * -0.5) / 3
    assert deliver(11.0, w1=2.0, w3=4.0) == pytest.approx(first), "2 rounds to 1: the slow tier weighs two thirds"
    second = (1 * (first - 0.5 * 2) + 3 * -0.5) / 4
    assert deliver(12.0, w1=2.0, w3=2.0) == pytest.approx(second)
    assert server.steps == 3
    assert deliver(13.0, w0=1.0, w2=1.0) == pytest.approx((2 * (first - 0.5 * 2) + 3 * (-0.5 - 0.5)) / 5)
    assert [tier.workers for tier in server.method.groups] == [[3, 1], [0, 2]]


def test_a_worker_that_comes_back_returns_to_its_tier():
    workers = ScriptedWorkers(nw.FedAT(nw.Constant(0.1), tiers=3), num_workers=6).after(12)
    tiers = [set(tier.workers) for tier in workers.server.method.groups]
    for worker in range(6):
        workers.lose(worker)
        workers.after(2)
        workers.join(worker)
    assert [set(tier.workers) for tier in workers.server.method.groups] == tiers
    workers.join(9)
    assert 9 in workers.server.method.groups[-1].workers


def test_tiers_of_different_size_weigh_by_it():
    """Five workers of the same speed in two tiers: all have the same weight."""
    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.5).split(5, by="sorted", zeta=1.0)
    run = nw.simulate(problem, nw.FedAT(nw.Constant(0.1), tiers=2), nw.speeds.Fixed([1.0] * 5), steps=1_000)
    np.testing.assert_allclose(run.params, problem.minimum()[0], atol=0.02)


@pytest.mark.parametrize(
    "method",
    [
        nw.FedAT(nw.Constant(0.1)),
        nw.AdaptiveRevision(nw.Constant(0.1)),
        nw.DelayedNesterov(nw.Constant(0.1), every=2),
    ],
)
def test_methods_that_make_their_own_update_refuse_another(method):
    with pytest.raises(ValueError, match="makes its own update: Momentum on top of it"):
        nw.simulate(QUADRATIC, method, UNEVEN, steps=10, update=nw.Momentum(0.9))


def test_fedat_with_one_tier_is_minibatch_sgd():
    one_tier = nw.simulate(QUADRATIC, nw.FedAT(nw.Constant(0.2), tiers=1), UNEVEN, steps=60)
    minibatch = nw.simulate(QUADRATIC, nw.MinibatchSGD(nw.Constant(0.2)), UNEVEN, steps=60)
    np.testing.assert_allclose(one_tier.params, minibatch.params, rtol=1e-10)


def test_fedat_weighs_the_slow_tier_as_much_as_heterogeneous_data_need(heterogeneous):
    """With local models at 1, 2 and 8 s asynchronous SGD is biased to the fast worker, FedAT to the slow one."""
    fedat = nw.simulate(heterogeneous, nw.FedAT(nw.Constant(0.2), tiers=3), nw.speeds.Fixed(SPEEDS), steps=2_000)
    slow_point = heterogeneous.solution - heterogeneous.shifts[2] / heterogeneous.eigenvalues
    fast_point = heterogeneous.solution - heterogeneous.shifts[0] / heterogeneous.eigenvalues
    assert np.linalg.norm(fedat.params - slow_point) < np.linalg.norm(fedat.params - fast_point)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nw.ATA(nw.Constant(0.1), batch=0), "batch must be an integer of at least 1"),
        (lambda: nw.ATA(nw.Constant(0.1), batch=2, spread=-1), "spread must be a finite number of at least 0"),
        (lambda: nw.FedAT(nw.Constant(0.1), tiers=0), "tiers must be an integer of at least 1"),
        (lambda: nw.PIAG(0.0), "budget must be a finite number above 0"),
        (lambda: nw.PIAG(1.0, rule=0.9), "rule must be a nowait WindowRule"),
        (lambda: nw.stepsizes.ShareOfTheRest(1.1), "share must be at most 1"),
        (lambda: nw.DelayedNesterov(nw.Constant(0.1), every=0), "every must be an integer of at least 1"),
        (lambda: nw.DelayedNesterov(nw.Constant(0.1), every=2, beta=1.0), "beta must be at least 0 and below 1"),
        (lambda: nw.MindFlayerSGD(nw.Constant(0.1), 0.0, 1), "timeout_seconds must be a finite number above 0"),
        (lambda: nw.MindFlayerSGD(nw.Constant(0.1), 1.0, [1, -1]), "trials must be an integer of at least 0, got -1"),
        (lambda: nw.MindFlayerSGD(nw.Constant(0.1), [], 1), "timeout_seconds is empty"),
        (lambda: nw.MindFlayerSGD(nw.Constant(0.1), 1.0, [0, 0]), "trials must not all be 0"),
        (
            lambda: nw.MindFlayerSGD(nw.Constant(0.1), 1.0, 2, probability=0.0),
            "probability must be a finite number above",
        ),
        (lambda: nw.MindFlayerSGD(nw.Constant(0.1), 1.0, 2, probability=[0.5, 2.0]), "probability must be at most 1"),
        (lambda: nw.CA2FL(nw.Constant(0.1), buffer=0), "buffer must be an integer of at least 1"),
        (lambda: nw.FADAS(nw.Constant(0.1), max_delay=-1), "max_delay must be an integer of at least 0"),
        (lambda: nw.AdaptiveRevision(nw.Constant(0.1), first_square=0), "first_square must be a finite number above 0"),
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
        (lambda: nw.FedBuff(nw.Constant(0.1), discount="0.5"), "discount must be a number or a stepsize rule"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
