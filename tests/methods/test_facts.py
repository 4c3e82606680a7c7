"""Characteristic behaviour of each method."""

import numpy as np
import pytest

import nowait as nw
from nowait.core import Assign, Cancel
from nowait.testing import ScriptedWorkers, a_server, gradient_from

UNEVEN = nw.speeds.Exponential([0.1, 0.5, 1.0, 2.0, 12.0])
QUADRATIC = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=0.3)


# Minibatch SGD


def test_minibatch_waits_for_everybody_and_steps_along_the_mean():
    server = a_server(nw.MinibatchSGD(nw.Constant(0.5)), num_workers=3)
    assert server.handle(gradient_from(server, worker=2, gradient=3.0)) == []
    assert server.handle(gradient_from(server, worker=0, gradient=6.0)) == []
    commands = server.handle(gradient_from(server, worker=1, gradient=0.0))
    assert server.params.tolist() == [-1.5, -1.5]
    assert [command.ticket.worker for command in commands] == [0, 1, 2]
    assert {command.ticket.version for command in commands} == {1}


def test_a_minibatch_takes_as_long_as_its_slowest_worker():
    run = nw.simulate(QUADRATIC, nw.MinibatchSGD(nw.Constant(0.1)), nw.speeds.Fixed([1.0, 2.0, 10.0]), steps=7)
    assert run.stats.seconds == 70.0
    assert run.stats.gradients == 21
    assert (run.trace.delay == 1).all()


def test_a_minibatch_does_not_wait_for_a_worker_that_left():
    faults = nw.speeds.Faults([(25.0, "leave", 2)])
    method = nw.MinibatchSGD(nw.Constant(0.1))
    run = nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1.0, 2.0, 10.0]), steps=5, faults=faults)
    assert run.stats.seconds == 29.0
    assert run.stats.lost == 1
    assert run.trace.weight[run.trace.step == 3].tolist() == [1 / 2, 1 / 2]


def test_gradients_held_when_the_last_worker_leaves_wait_for_the_next_one():
    workers = ScriptedWorkers(nw.MinibatchSGD(nw.DelayAdaptive(0.5)), num_workers=2)
    workers.finish(workers.server.in_flight.of(0)[0])
    workers.lose(0)
    workers.lose(1)
    assert workers.server.steps == 0
    workers.join(1)
    workers.next_arrival()
    assert workers.server.params.tolist() == [0.5, 0.5]


# m-Synchronous SGD


def test_m_synchronous_steps_along_the_mean_of_the_first_gradients_and_lets_the_others_finish():
    server = a_server(nw.MSynchronousSGD(nw.Constant(0.5), m=2), num_workers=3)
    assert server.handle(gradient_from(server, worker=2, gradient=3.0)) == []
    commands = server.handle(gradient_from(server, worker=0, gradient=5.0))
    assert server.params.tolist() == [-2.0, -2.0]
    assert [(command.ticket.worker, command.ticket.version) for command in commands] == [(0, 1), (2, 1)]
    [late] = server.handle(gradient_from(server, worker=1, gradient=9.0))
    assert (late.ticket.worker, late.ticket.version) == (1, 1)
    assert (server.steps, server.counts.dropped, server.counts.cancelled) == (1, 1, 0)


def test_m_synchronous_does_not_wait_for_the_slowest_worker():
    method = nw.MSynchronousSGD(nw.Constant(0.1), m=3)
    run = nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1.0, 1.0, 1.0, 10.0]), steps=45)
    assert run.stats.seconds == 45.0
    assert run.stats.dropped == 4
    assert run.stats.gradients == 3 * 45 + 4


def test_no_worker_has_two_gradients_in_one_step_of_m_synchronous():
    run = nw.simulate(QUADRATIC, nw.MSynchronousSGD(nw.Constant(0.1), m=3), UNEVEN, steps=60)
    used = run.trace.outcome == "held"
    assert (run.trace.delay[used] == 1).all()
    pairs = list(zip(run.trace.step[used & (run.trace.step > 0)], run.trace.worker[used], strict=False))
    assert len(set(pairs)) == len(pairs) == 180


def test_m_synchronous_that_waits_for_everybody_is_minibatch_sgd():
    faults = nw.speeds.Faults([(3.0, "leave", 2), (9.0, "join", 2), (12.0, "join", 7)])
    runs = [
        nw.simulate(QUADRATIC, method, UNEVEN, steps=30, faults=faults)
        for method in (nw.MSynchronousSGD(nw.Constant(0.1), m=9), nw.MinibatchSGD(nw.Constant(0.1)))
    ]
    assert np.array_equal(runs[0].params, runs[1].params)
    assert runs[0].stats.seconds == runs[1].stats.seconds


def test_m_synchronous_goes_on_with_fewer_workers_than_it_waits_for():
    faults = nw.speeds.Faults([(25.0, "leave", 2), (26.5, "leave", 0)])
    method = nw.MSynchronousSGD(nw.Constant(0.1), m=3)
    run = nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1.0, 2.0, 10.0]), steps=5, faults=faults)
    assert run.stats.seconds == 29.0


# Stale-synchronous SGD


def test_a_worker_that_is_too_far_ahead_waits_for_the_slowest():
    server = a_server(nw.StaleSynchronousSGD(nw.Constant(0.5), slack=1), num_workers=3)
    [again] = server.handle(gradient_from(server, worker=0, gradient=2.0))
    assert (again.ticket.worker, again.ticket.version) == (0, 1), "the gradient was applied at once"
    assert server.handle(gradient_from(server, worker=0)) == [], "it is two gradients ahead of both others"
    [own] = server.handle(gradient_from(server, worker=1))
    assert own.ticket.worker == 1, "worker 2 is still the slowest"
    released = server.handle(gradient_from(server, worker=2))
    assert [command.ticket.worker for command in released] == [0, 2]
    assert {command.ticket.version for command in released} == {4}, "those that waited get the current params"


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_stale_synchronous_bounds_delays_and_gives_everybody_the_same_number_of_gradients(slack):
    run = nw.simulate(QUADRATIC, nw.StaleSynchronousSGD(nw.Constant(0.02), slack), UNEVEN, steps=600)
    counts = np.bincount(run.trace.worker, minlength=5)
    assert counts.max() - counts.min() <= slack + 1
    assert run.trace.delay.max() <= (2 * slack + 1) * 4 + 1
    assert (run.trace.outcome == "applied").all()


def test_without_slack_every_worker_delivers_once_per_round():
    run = nw.simulate(QUADRATIC, nw.StaleSynchronousSGD(nw.Constant(0.02), 0), UNEVEN, steps=60)
    assert (np.sort(run.trace.worker.reshape(-1, 5)) == np.arange(5)).all()
    assert run.trace.delay.reshape(-1, 5).max(axis=0).tolist() == [1, 2, 3, 4, 5]


def test_with_much_slack_nobody_waits():
    runs = [
        nw.simulate(QUADRATIC, method, UNEVEN, steps=200)
        for method in (nw.StaleSynchronousSGD(nw.Constant(0.02), 10**6), nw.AsynchronousSGD(nw.Constant(0.02)))
    ]
    assert np.array_equal(runs[0].params, runs[1].params)
    assert runs[0].stats.seconds == runs[1].stats.seconds


def test_nobody_waits_for_a_worker_that_left_or_for_the_past_of_one_that_joined():
    workers = ScriptedWorkers(nw.StaleSynchronousSGD(nw.Constant(0.02), slack=0), num_workers=3)
    for worker in (0, 1):
        workers.finish(workers.server.in_flight.of(worker)[0])
    assert len(workers.server.in_flight) == 1
    workers.lose(1)
    workers.lose(2)
    assert [ticket.worker for ticket in workers.server.in_flight.values()] == [0]
    workers.join(7)
    assert sorted(ticket.worker for ticket in workers.server.in_flight.values()) == [0, 7]
    workers.finish(workers.server.in_flight.of(0)[0])
    assert [ticket.worker for ticket in workers.server.in_flight.values()] == [7], "they are in the same round"


# Rennala SGD


def test_rennala_steps_after_a_batch_of_fresh_gradients_and_restarts_everybody():
    server = a_server(nw.RennalaSGD(nw.Constant(1.0), batch=2), num_workers=3)
    server.handle(gradient_from(server, worker=0, gradient=1.0))
    commands = server.handle(gradient_from(server, worker=0, gradient=3.0))
    assert server.params.tolist() == [-2.0, -2.0]
    assert [type(command) for command in commands] == [Assign, Cancel, Assign, Cancel, Assign]
    assert {ticket.version for ticket in server.in_flight.values()} == {1}


def test_rennala_without_cancelling_drops_what_is_stale():
    server = a_server(nw.RennalaSGD(nw.Constant(1.0), batch=1, cancel=False), num_workers=2)
    server.handle(gradient_from(server, worker=0))
    server.handle(gradient_from(server, worker=1))
    assert (server.steps, server.counts.dropped, server.counts.cancelled) == (1, 1, 0)


@pytest.mark.parametrize("cancel", [True, False])
def test_every_gradient_rennala_uses_is_fresh_and_every_batch_is_whole(cancel):
    run = nw.simulate(QUADRATIC, nw.RennalaSGD(nw.Constant(0.1), batch=6, cancel=cancel), UNEVEN, steps=40)
    used = run.trace.outcome == "held"
    assert (run.trace.delay[used] == 1).all()
    _, counts = np.unique(run.trace.step[used & (run.trace.step > 0)], return_counts=True)
    assert (counts == 6).all()
    assert (run.stats.cancelled > 0) == cancel
    assert (run.stats.dropped > 0) == (not cancel)


# Ringmaster ASGD


def test_ringmaster_applies_up_to_the_limit_and_drops_beyond():
    run = nw.simulate(QUADRATIC, nw.RingmasterASGD(nw.Constant(0.1), max_delay=6), UNEVEN, steps=400)
    assert run.trace.delay[run.trace.outcome == "applied"].max() == 6
    assert run.trace.delay[run.trace.outcome == "dropped"].min() == 7


def test_ringmaster_with_cancelling_never_has_an_older_ticket_in_flight():
    workers = ScriptedWorkers(nw.RingmasterASGD(nw.Constant(0.1), max_delay=3, cancel_stale=True), num_workers=7)
    for _ in range(300):
        workers.next_arrival()
        server = workers.server
        assert all(server.steps + 1 - ticket.version <= 3 for ticket in server.in_flight.values())
    assert server.counts.cancelled > 0
    assert server.counts.dropped == 0


def test_ringmaster_with_cancelling_keeps_every_worker_busy():
    method = nw.RingmasterASGD(nw.Constant(0.1), max_delay=3, cancel_stale=True)
    run = nw.simulate(QUADRATIC, method, nw.speeds.Fixed([1.0, 1.0, 50.0]), steps=200)
    assert run.trace.delay.max() <= 3
    assert run.stats.work_share[2] == 0


# Gradient table


def test_the_table_steps_along_the_mean_of_everybodys_latest_gradient():
    server = a_server(nw.GradientTable(nw.Constant(1.0)), num_workers=2)
    server.handle(gradient_from(server, worker=0, gradient=4.0))
    assert server.steps == 0
    server.handle(gradient_from(server, worker=0, gradient=2.0))
    assert server.steps == 0
    server.handle(gradient_from(server, worker=1, gradient=6.0))
    assert server.params.tolist() == [-4.0, -4.0]
    server.handle(gradient_from(server, worker=0, gradient=0.0))
    assert server.params.tolist() == [-7.0, -7.0]


def test_a_leaver_takes_its_entry_out_of_the_table():
    workers = ScriptedWorkers(nw.GradientTable(nw.Constant(0.1)), num_workers=3).after(12)
    workers.lose(1)
    workers.after(9)
    table = workers.server.method.table
    assert set(table.entries) == {0, 2}
    np.testing.assert_allclose(table.total.vector, sum(entry.vector for entry in table.entries.values()), rtol=1e-13)


def test_rounding_errors_do_not_pile_up_in_the_total():
    """After gradients of size 1e16, every worker sends 1, and the mean is 1."""
    server = a_server(nw.GradientTable(nw.Constant(1.0)), num_workers=3)
    for size in (1e16, 0.3, 7e15, 1.0, 1.0, 1.0):
        for worker in range(3):
            server.handle(gradient_from(server, worker, gradient=size + worker * (size > 2)))
    np.testing.assert_allclose(server.method.table.total.vector, 3.0, rtol=1e-15)


def test_the_table_logs_the_first_step_of_every_gradient():
    run = nw.simulate(QUADRATIC, nw.GradientTable(nw.Constant(0.05)), UNEVEN, steps=60)
    steps = run.trace.step
    assert (np.diff(steps[-60:]) == 1).all(), "every arrival makes a step, and it is its own"
    assert steps[-1] == 60


# Ringleader ASGD


@pytest.mark.parametrize("num_workers", [2, 3, 6])
def test_no_delay_of_ringleader_exceeds_two_rounds_and_each_round_makes_one_step_per_worker(num_workers):
    speeds = nw.speeds.Exponential(np.geomspace(0.1, 10.0, num_workers))
    run = nw.simulate(QUADRATIC, nw.RingleaderASGD(nw.Constant(0.02)), speeds, steps=60 * num_workers)
    assert run.trace.delay.max() - 1 <= 2 * num_workers - 2
    makers = np.array([run.trace.worker[run.trace.step == step][-1] for step in range(1, run.stats.steps + 1)])
    for steps in makers.reshape(-1, num_workers):
        assert sorted(steps) == list(range(num_workers))


def test_ringleader_reaches_its_largest_delay():
    """δ = 2n − 2 is attained: the bound is the right one."""
    order = [0, 1, 2, 1, 2, 0, 0, 1, 2]
    run = nw.simulate(QUADRATIC, nw.RingleaderASGD(nw.Constant(0.02)), nw.speeds.Adversary(order), steps=60)
    assert run.trace.delay.max() - 1 == 4


def test_ringleader_discards_nothing():
    run = nw.simulate(QUADRATIC, nw.RingleaderASGD(nw.Constant(0.02)), UNEVEN, steps=200)
    assert set(run.trace.outcome) == {"held"}
    not_used_yet = run.trace.step == 0
    assert not_used_yet[: len(not_used_yet) // 2].sum() == 0


def test_a_worker_outside_its_turn_stays_at_its_own_point():
    server = a_server(nw.RingleaderASGD(nw.Constant(0.1)), num_workers=3)
    for worker in (0, 1, 2, 0):
        server.handle(gradient_from(server, worker))
    assert server.steps == 2
    [assign] = server.handle(gradient_from(server, worker=2))
    assert (assign.ticket.worker, assign.ticket.version) == (2, 1)
    [assign] = server.handle(gradient_from(server, worker=1))
    assert (server.steps, assign.ticket.version) == (3, 3)


def test_ringleader_waits_at_its_own_points_until_everybody_has_delivered():
    server = a_server(nw.RingleaderASGD(nw.Constant(0.1)), num_workers=2)
    for worker in (0, 0, 0):
        [assign] = server.handle(gradient_from(server, worker, gradient=3.0))
        assert (server.steps, assign.ticket.version) == (0, 0)
    server.handle(gradient_from(server, worker=1, gradient=1.0))
    assert server.params.tolist() == pytest.approx([-0.2, -0.2]), "each worker's own mean weighs the same"


# Random assignment


def test_a_busy_worker_queues_the_ticket_with_the_params_of_then():
    run = nw.simulate(QUADRATIC, nw.RandomAssignment(nw.Constant(0.05)), nw.speeds.Fixed([1.0, 1.0, 30.0]), steps=300)
    slow = run.trace.worker == 2
    started, ended = run.trace.started[slow], run.trace.time[slow]
    assert (started[1:] >= ended[:-1]).all(), "a worker computes one ticket at a time"
    assert (run.trace.compute_seconds[slow] == 30.0).all()
    waiting = run.trace.started - np.concatenate([[0.0], run.trace.time])[run.trace.version]
    assert waiting[slow].max() > 30.0, "some tickets waited for the slow worker"


def test_random_assignment_gives_every_worker_the_same_share():
    run = nw.simulate(QUADRATIC, nw.RandomAssignment(nw.Constant(0.01)), nw.speeds.Fixed([1.0, 2.0, 6.0]), steps=6_000)
    assert np.abs(run.stats.work_share - 1 / 3).max() < 0.03


# Heterogeneous data


@pytest.fixture(scope="module")
def heterogeneous():
    """Three workers, ζ = 1, exact gradients, speeds 1 : 2 : 8."""
    return nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.5).split(3, by="sorted", zeta=1.0)


SPEEDS = np.array([1.0, 2.0, 8.0])


def test_asynchronous_sgd_goes_to_the_frequency_weighted_point(heterogeneous):
    run = nw.simulate(
        heterogeneous,
        nw.AsynchronousSGD(nw.Constant(0.002)),
        nw.speeds.Fixed(SPEEDS),
        steps=20_000,
        output=nw.UniformAverage(),
        initial=heterogeneous.minimum()[0],
    )
    frequencies = (1 / SPEEDS) / (1 / SPEEDS).sum()
    weighted = heterogeneous.minimum()[0] - (frequencies @ heterogeneous.shifts) / heterogeneous.eigenvalues
    late = run.last
    np.testing.assert_allclose(late, weighted, atol=0.01)
    assert np.linalg.norm(late - heterogeneous.minimum()[0]) > 0.3


@pytest.mark.parametrize(
    "method",
    [nw.GradientTable(nw.Constant(0.05)), nw.RingleaderASGD(nw.Constant(0.05)), nw.MinibatchSGD(nw.Constant(0.3))],
    ids=lambda method: type(method).__name__,
)
def test_methods_for_heterogeneous_data_go_to_the_true_point(heterogeneous, method):
    run = nw.simulate(heterogeneous, method, nw.speeds.Fixed(SPEEDS), steps=3_000)
    np.testing.assert_allclose(run.params, heterogeneous.minimum()[0], atol=1e-6)


# Bad arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nw.RennalaSGD(nw.Constant(0.1), batch=0), "batch must be an integer of at least 1, got 0"),
        (lambda: nw.RennalaSGD(nw.Constant(0.1), batch=2.5), "batch must be an integer of at least 1, got 2.5"),
        (lambda: nw.RingmasterASGD(nw.Constant(0.1), max_delay=0), "so every gradient would be dropped"),
        (
            lambda: nw.AsynchronousSGD("0.1"),
            r"stepsize must be a number or a stepsize rule such as nw.DelayAdaptive\(0.01\), got '0.1'",
        ),
        (lambda: nw.AsynchronousSGD(nw.Constant), "stepsize must be an object, got the class Constant"),
    ],
)
def test_bad_arguments_of_methods(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


# Ringmaster LMO


def test_ringmaster_lmo_makes_steps_of_the_length_of_the_stepsize_along_gradients_that_are_not_too_old():
    run = nw.simulate(QUADRATIC, nw.RingmasterLMO(0.05, "euclidean", max_delay=3, beta=0.5), UNEVEN, steps=100)
    used = run.trace.outcome == "applied"
    assert (run.trace.delay[used] <= 3).all()
    assert run.stats.dropped > 0
    assert (run.trace.delay[~used] > 3).all()
    params = []
    nw.simulate(
        QUADRATIC,
        nw.RingmasterLMO(0.05, "euclidean", max_delay=3, beta=0.5),
        UNEVEN,
        steps=20,
        callbacks=[lambda control: params.append(np.array(control.params))],
    )
    np.testing.assert_allclose(np.linalg.norm(np.diff(params, axis=0), axis=1), 0.05, rtol=1e-12)


def test_the_schedule_of_ringmaster_lmo_has_no_parameter_but_the_stepsize():
    run = nw.simulate(QUADRATIC, nw.RingmasterLMO(0.3, "euclidean"), UNEVEN, steps=400)
    used = run.trace.outcome == "applied"
    k = run.trace.step[used]
    assert (run.trace.delay[used] <= np.floor(np.sqrt(k))).all()
    np.testing.assert_allclose(run.trace.stepsize[used], 0.3 * k**-0.75, rtol=1e-14)
    assert run.history.loss[-1] < 0.1 * run.history.loss[0]


def test_a_sweep_of_ringmaster_lmo_has_its_update():
    method = nw.RingmasterLMO(1.0, "euclidean")
    sweep = nw.sweep(QUADRATIC, method, UNEVEN, stepsizes=[0.3], steps=50, progress=False)
    run = nw.simulate(QUADRATIC, nw.RingmasterLMO(0.3, "euclidean"), UNEVEN, steps=50)
    assert sweep.curves.ravel()[-1] == run.history.loss[-1]


# Ordered momentum


def test_ordered_momentum_of_one_worker_is_heavy_ball():
    speeds = nw.speeds.Fixed([1.0])
    ordered = nw.simulate(QUADRATIC, nw.OrderedMomentum(0.05, beta=0.8), speeds, steps=60)
    plain = nw.simulate(QUADRATIC, nw.AsynchronousSGD(0.05), speeds, steps=60, update=nw.Momentum(0.8))
    np.testing.assert_allclose(ordered.params, plain.params, rtol=1e-12)


@pytest.mark.parametrize("bucket", [None, 1, 3])
def test_ordered_momentum_has_the_params_of_gradients_that_came_in_the_order_of_their_buckets(bucket):
    seen, beta, workers = [], 0.7, 5
    method = nw.OrderedMomentum(0.03, beta, bucket)
    original = method.on_arrival

    def on_arrival(server, arrival):
        seen.append((arrival.ticket.version, np.array(arrival.gradient)))
        original(server, arrival)

    method.on_arrival = on_arrival
    run = nw.simulate(QUADRATIC, method, UNEVEN, steps=80)
    size = bucket or workers
    last = -(-79 // size)
    moved = np.zeros(4)
    for version, gradient in seen[:80]:
        late = last + (-version // size)
        moved += 0.03 * sum(beta**power for power in range(late + 1)) * gradient
    np.testing.assert_allclose(run.last, QUADRATIC.initial() - moved, rtol=1e-10)
    assert run.trace.delay.max() > 2 * size


def test_ordered_momentum_forgets_which_gradients_it_has(monkeypatch):
    """A long run must not need more and more memory."""
    method = nw.OrderedMomentum(0.01, beta=0.5)
    nw.simulate(QUADRATIC, method, UNEVEN, steps=400, callbacks=[lambda control: None])
    assert len(method.momentum._coefficients) <= 10
