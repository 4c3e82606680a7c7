"""Facts about CycleSGD, DecoupledDiLoCo, QuantileMinibatchSGD and methods that are combinations of others."""

import numpy as np
import pytest

import nowait as nw
from nowait.core import Assign, Cancel, TimerFired, Wake, WorkerLost
from nowait.testing import ScriptedWorkers, a_server, gradient_from

QUADRATIC = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=0.3)
EQUAL = nw.speeds.Fixed([1.0] * 6)


def deliver(server, worker, gradient=1.0, time=None):
    return server.handle(gradient_from(server, worker, gradient, time))


# Cycle SGD


def test_group_g_begins_with_g_tickets_for_each_of_its_workers():
    server = a_server(nw.CycleSGD(nw.Constant(0.5), group=2), num_workers=6)
    assert [len(server.in_flight.of(worker)) for worker in range(6)] == [1, 1, 2, 2, 3, 3]


def test_a_turn_is_a_step_along_the_sum_of_the_groups_gradients():
    server = a_server(nw.CycleSGD(nw.Constant(0.5), group=2), num_workers=4)
    assert deliver(server, 0, 1.0) == []
    commands = deliver(server, 1, 2.0)
    assert server.params.tolist() == [-1.5, -1.5]
    assert commands == [Assign(server.in_flight.first_of(worker)) for worker in (0, 1)]
    issued = [(ticket.worker, ticket.version) for worker in (0, 1) for ticket in server.in_flight.of(worker)]
    assert issued == [(0, 1), (0, 1), (1, 1), (1, 1)], "each gets two, and the second one is queued"


def test_a_group_waits_for_its_turn_and_then_shares_a_step():
    server = a_server(nw.CycleSGD(nw.Constant(1.0), group=1), num_workers=2)
    deliver(server, 1, 1.0)
    assert deliver(server, 1, 2.0) == [], "it is the turn of worker 0"
    assert server.steps == 0
    commands = deliver(server, 0, 4.0)
    assert (server.steps, server.params.tolist()) == (1, [-7.0, -7.0])
    assert [command.ticket.worker for command in commands] == [0, 1]
    assert sorted(ticket.worker for ticket in server.in_flight.values()) == [0, 0, 1, 1]


def test_equal_workers_never_wait_in_a_cycle():
    run = nw.simulate(QUADRATIC, nw.CycleSGD(nw.Constant(0.01), group=2), EQUAL, seconds=60)
    assert run.stats.gradients == 6 * 60
    assert run.stats.steps == 60, "one group of two delivers in every second"


def test_no_gradient_of_a_cycle_is_older_than_the_cycle():
    run = nw.simulate(QUADRATIC, nw.CycleSGD(nw.Constant(0.01), group=2), EQUAL, steps=60)
    assert run.trace.delay.max() == 3, "there are three groups"


def test_a_cycle_of_one_group_is_minibatch_sgd_with_the_sum_of_the_gradients():
    speeds = nw.speeds.Fixed([1.0, 2.0, 3.0, 10.0])
    cycle = nw.simulate(QUADRATIC, nw.CycleSGD(nw.Constant(0.025), group=9), speeds, steps=30)
    batch = nw.simulate(QUADRATIC, nw.MinibatchSGD(nw.Constant(0.1)), speeds, steps=30)
    np.testing.assert_allclose(cycle.params, batch.params, rtol=1e-12)
    assert cycle.stats.seconds == batch.stats.seconds


def test_what_a_worker_delivered_before_it_left_is_part_of_the_turn():
    workers = ScriptedWorkers(nw.CycleSGD(nw.Constant(1.0), group=2), num_workers=4)
    workers.finish(workers.server.in_flight.of(0)[0])
    assert workers.server.steps == 0
    workers.lose(1)
    assert workers.server.steps == 1


def test_a_worker_that_joins_fills_a_group_before_it_opens_a_new_one():
    workers = ScriptedWorkers(nw.CycleSGD(nw.Constant(0.1), group=2), num_workers=3)
    workers.join(7)
    assert [group.workers for group in workers.server.method.groups] == [[0, 1], [2, 7]]
    workers.join(8)
    assert [group.workers for group in workers.server.method.groups] == [[8], [0, 1], [2, 7]]
    assert workers.server.method.turn == 1, "the new group is the last one of this cycle"


# Decoupled DiLoCo


def test_a_quorum_makes_a_step_and_nobody_waits():
    server = a_server(nw.DecoupledDiLoCo(nw.Constant(0.5), quorum=2), num_workers=3, update=nw.Sgd())
    [early] = deliver(server, 0, 2.0)
    assert (early.ticket.worker, early.ticket.version) == (0, 0)
    [late] = deliver(server, 2, 4.0)
    assert (late.ticket.worker, late.ticket.version) == (2, 1)
    assert server.params.tolist() == [-1.5, -1.5]


def test_two_results_of_one_worker_are_no_quorum():
    server = a_server(nw.DecoupledDiLoCo(nw.Constant(0.5), quorum=2), num_workers=3, update=nw.Sgd())
    deliver(server, 0, 2.0)
    deliver(server, 0, 4.0)
    assert server.steps == 0
    deliver(server, 1, 6.0)
    assert (server.steps, server.params.tolist()) == (1, [-2.0, -2.0])


def test_results_within_the_grace_window_are_merged_too():
    method = nw.DecoupledDiLoCo(nw.Constant(1.0), quorum=1, grace_seconds=2.0)
    server = a_server(method, num_workers=3, update=nw.Sgd())
    wake, assign = deliver(server, 0, 3.0, time=1.0)
    assert (wake, type(assign)) == (Wake(3.0), Assign)
    deliver(server, 1, 5.0, time=2.0)
    assert server.steps == 0
    deliver(server, 0, 1.0, time=3.0)
    assert server.params.tolist() == [-3.0, -3.0]


def test_the_window_ends_when_everybody_has_delivered():
    method = nw.DecoupledDiLoCo(nw.Constant(1.0), quorum=1, grace_seconds=2.0)
    server = a_server(method, num_workers=2, update=nw.Sgd())
    deliver(server, 0, 3.0, time=1.0)
    deliver(server, 1, 5.0, time=1.5)
    assert (server.steps, server.params.tolist()) == (1, [-4.0, -4.0])


def test_the_grace_window_lets_the_slower_half_in():
    speeds = nw.speeds.Fixed([1.0, 1.0, 1.2, 1.2])
    merged = {}
    for grace in (0.0, 0.5):
        method = nw.DecoupledDiLoCo(nw.Constant(0.1), quorum=2, grace_seconds=grace)
        run = nw.simulate(QUADRATIC, method, speeds, steps=10)
        merged[grace] = run.stats.gradients / run.stats.steps
    assert merged[0.0] < 2.5
    assert merged[0.5] > 3.5


def test_decoupled_diloco_uses_nesterovs_momentum_by_default():
    method = nw.DecoupledDiLoCo(nw.Constant(0.1), quorum=2)
    speeds = nw.speeds.Fixed([1.0, 1.3, 9.0])
    runs = [nw.simulate(QUADRATIC, method, speeds, steps=20, update=update) for update in (None, nw.Nesterov(0.9))]
    assert np.array_equal(runs[0].params, runs[1].params)


def test_a_window_that_has_begun_ends_in_a_merge_whoever_leaves():
    method = nw.DecoupledDiLoCo(nw.Constant(1.0), quorum=2, grace_seconds=1.0)
    server = a_server(method, num_workers=4, update=nw.Sgd())
    deliver(server, 0, 2.0, time=1.0)
    deliver(server, 1, 4.0, time=2.0)
    server.handle(WorkerLost(0, 2.5))
    assert server.steps == 0
    server.handle(TimerFired(3.0))
    assert (server.steps, server.params.tolist()) == (1, [-3.0, -3.0])


def test_results_held_when_the_last_worker_leaves_wait_for_the_next_one():
    workers = ScriptedWorkers(nw.DecoupledDiLoCo(nw.DelayAdaptive(1.0), quorum=2), num_workers=2)
    workers.finish(workers.server.in_flight.of(0)[0])
    workers.lose(0)
    workers.lose(1)
    assert (workers.server.steps, workers.server.method.total.count) == (0, 1)
    workers.join(3)
    assert workers.server.steps == 0
    workers.next_arrival()
    assert workers.server.steps == 1


def test_a_quorum_of_more_workers_than_live_is_one_of_all():
    faults = nw.speeds.Faults([(2.5, "leave", 2)])
    method = nw.DecoupledDiLoCo(nw.Constant(0.1), quorum=3)
    run = nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1.0, 1.0, 1.0]), seconds=10, faults=faults)
    assert run.stats.steps == 10


# m-Synchronous SGD that cancels


def test_m_synchronous_with_cancel_restarts_everybody_at_the_new_params():
    server = a_server(nw.MSynchronousSGD(nw.Constant(0.5), m=2, cancel=True), num_workers=3)
    deliver(server, 2, 3.0)
    commands = deliver(server, 0, 5.0)
    assert [command.ticket.worker for command in commands if isinstance(command, Assign)] == [0, 1, 2]
    assert [command.worker for command in commands if isinstance(command, Cancel)] == [1]
    assert server.counts.cancelled == 1


def test_cancel_is_true_or_false():
    with pytest.raises(TypeError, match="cancel must be"):
        nw.MSynchronousSGD(0.1, 2, cancel="no")


# Quantile mini-batches


def test_the_batch_is_the_quantile_of_the_delays_in_arrivals():
    """Nine workers of speed 1 and one of speed 1,000: nine arrivals pass between two of the same fast worker."""
    run = nw.simulate(
        QUADRATIC, nw.QuantileMinibatchSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0] * 9 + [1e3]), seconds=300
    )
    held = run.trace.step[run.trace.step > 50]
    assert set(np.bincount(held)[51:-1]) == {9}


def test_the_batch_follows_workers_that_leave():
    faults = nw.speeds.Faults([(600.0, "leave", worker) for worker in (5, 6, 7)])
    method = nw.QuantileMinibatchSGD(nw.Constant(0.1))
    nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1.0] * 8), seconds=2_000, faults=faults)
    assert method.batch == 5


def test_a_quantile_minibatch_uses_fresh_gradients_only():
    speeds = nw.speeds.Exponential([0.1, 0.5, 1.0, 2.0, 12.0])
    run = nw.simulate(QUADRATIC, nw.QuantileMinibatchSGD(nw.Constant(0.1), quantile=0.8), speeds, steps=100)
    assert (run.trace.delay[run.trace.step > 0] == 1).all()
    assert run.stats.dropped > 0
    assert run.stats.cancelled == 0


def test_the_longest_delay_does_not_matter_to_the_batch():
    batches = []
    for slow in (50.0, 5_000.0):
        method = nw.QuantileMinibatchSGD(nw.Constant(0.1))
        nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1.0, 1.1, 1.2, slow]), seconds=1_000)
        batches.append(method.batch)
    assert batches[0] == batches[1] <= 4


# Combinations that have a name of their own in the literature


def test_ringmaster_over_local_steps_is_the_async_local_sgd_of_birch():
    """With one local step of γ it is Ringmaster with the stepsize γ."""
    speeds = nw.speeds.Exponential([0.1, 0.5, 1.0, 12.0])
    local = nw.problems.LocalSteps(QUADRATIC, steps=1, stepsize=0.05)
    runs = [
        nw.simulate(local, nw.RingmasterASGD(nw.Constant(1.0), max_delay=4), speeds, steps=200),
        nw.simulate(QUADRATIC, nw.RingmasterASGD(nw.Constant(0.05), max_delay=4), speeds, steps=200),
    ]
    np.testing.assert_allclose(runs[0].params, runs[1].params, rtol=1e-10)
    assert runs[0].stats.dropped == runs[1].stats.dropped > 0


def test_normalised_steps_bear_noise_without_a_variance():
    """RingmasterLMO with the Euclidean ball: asynchronous normalised SGD with momentum."""
    problem = HeavyTails()
    speeds = nw.speeds.Fixed([1.0, 1.1, 1.2, 5.0])
    plain = nw.simulate(problem, nw.AsynchronousSGD(nw.Constant(0.05)), speeds, steps=2_000)
    normalised = nw.RingmasterLMO(nw.Constant(0.02), "euclidean", max_delay=8, beta=0.9)
    run = nw.simulate(problem, normalised, speeds, steps=2_000)
    assert run.history.loss[-1] < 0.5
    assert run.history.loss.max() < 2 * run.history.loss[0]
    assert plain.history.loss.max() > 20 * plain.history.loss[0]


class HeavyTails:
    """F(x) = ‖x‖²/2 with the noise of a Pareto distribution of index 1.2: it has a mean, but no variance."""

    dimension = 4

    def initial(self):
        return np.ones(4)

    def loss(self, point):
        return float(point @ point) / 2

    def gradient(self, point, sample):
        rng = sample.rng()
        return point + rng.choice([-1.0, 1.0], size=4) * (rng.pareto(1.2, size=4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nw.CycleSGD(0.1, group=0), "group must be an integer of at least 1"),
        (lambda: nw.DecoupledDiLoCo(0.1, quorum=0), "quorum must be an integer of at least 1"),
        (lambda: nw.DecoupledDiLoCo(0.1, quorum=2, grace_seconds=-1.0), "grace_seconds"),
        (lambda: nw.QuantileMinibatchSGD(0.1, quantile=0.0), "quantile must be"),
        (lambda: nw.QuantileMinibatchSGD(0.1, quantile=1.5), "at most 1"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
