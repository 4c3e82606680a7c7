"""Auto: its estimates, its choices, and what becomes of them when workers are slow, hung, new or gone."""

import numpy as np
import pytest

import nowait as nw
from nowait.core import Server, TimerFired, Wake, WorkerJoined, WorkerLost
from nowait.methods.auto import ASYNCHRONOUS, Noise, costs_of, round_seconds
from nowait.testing import a_server, gradient_from

QUIET = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3)
NOISY = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=1.0)
EQUAL = nw.speeds.Fixed(1.0, workers=4)


def test_it_is_tuned_as_minibatches_with_its_momentum():
    assert nw.Auto(0.5, momentum=0.9).tuned_as() == (nw.MinibatchSGD(0.5), nw.Nesterov(0.9))
    assert nw.Auto(0.5, momentum=0.0).tuned_as() == (nw.MinibatchSGD(0.5), None)
    method = nw.MinibatchSGD(0.5)
    assert method.tuned_as() == (method, None)
    assert method.tuned_as()[0] is method, "others are tuned as they are"


# Estimates


def cheapest(times, noise):
    costs = costs_of(times, noise, caution=1.2, present=len(times))
    return min(costs, key=costs.get)


def test_with_steady_times_a_round_lasts_as_long_as_its_slowest_worker():
    times = np.repeat([[1.0], [2.0], [4.0], [8.0]], 8, axis=1)
    np.testing.assert_allclose(round_seconds(times, [1, 2, 3, 4])[-1], 8.0)
    assert np.all(np.diff(round_seconds(times, [1, 2, 3, 4])) > 0)


def test_rounds_with_random_times_are_those_of_a_simulation():
    """The mean time of a step of ``MSynchronousSGD`` with the same times, which repeat."""
    random = np.random.default_rng(0)
    times = np.exp(random.normal(size=(6, 8)))
    predicted = round_seconds(times, range(1, 7))
    for m in range(1, 7):
        speeds = nw.speeds.Recorded.of([list(row) for row in times])
        run = nw.simulate(QUIET, nw.MSynchronousSGD(0.01, m=m), speeds, steps=400)
        assert predicted[m - 1] == pytest.approx(run.stats.seconds / 400, rel=0.25), f"rounds of {m}"


def test_without_noise_the_fastest_workers_are_cheapest_and_with_noise_all_are():
    times = np.repeat([[1.0], [1.1], [1.2], [1.3]], 8, axis=1)
    assert cheapest(times, noise=0.0) == 2
    assert cheapest(times, noise=1e3) == 4


def test_with_noise_and_wide_speeds_asynchronous_steps_are_cheapest():
    times = np.repeat([[1.0], [2.0], [4.0], [8.0]], 8, axis=1)
    assert cheapest(times, noise=1e3) == ASYNCHRONOUS


def test_the_noise_is_estimated_from_norms():
    """Two rounds of four gradients at different points: the variance is that within the rounds."""
    random = np.random.default_rng(1)
    rounds = random.normal(size=(2, 4, 3)) + np.array([[[1.0, 2.0, 3.0]], [[3.0, -1.0, 1.0]]])
    server = a_server(nw.Auto(0.1), num_workers=8, dimension=3)
    noise, total = Noise(server.sum()), server.sum()
    for gradients in rounds:
        total.vector[:] = gradients.sum(axis=0)
        total.count = total.weight = 4
        for gradient in gradients:
            noise.add(float(np.linalg.norm(gradient)), 1.0)
        noise.end_sum(total, num_workers=8)
    variance = rounds.var(axis=1, ddof=1).mean(axis=0).sum()
    assert noise.variance == pytest.approx(variance)
    assert noise.mean_squared == pytest.approx((rounds.mean(axis=(0, 1)) ** 2).sum() - variance / 8)


# Steps


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equal_workers_it_makes_the_steps_of_minibatches(momentum):
    update = nw.Nesterov(momentum) if momentum else None
    run = nw.simulate(NOISY, nw.Auto(0.1, momentum), EQUAL, steps=3, seed=5)
    same = nw.simulate(NOISY, nw.MinibatchSGD(0.1), EQUAL, steps=3, seed=5, update=update)
    np.testing.assert_allclose(run.params, same.params, rtol=1e-12)


def test_an_update_besides_its_momentum_is_refused():
    with pytest.raises(ValueError, match="makes its own update"):
        nw.simulate(QUIET, nw.Auto(0.1), EQUAL, steps=3, update=nw.Adam())
    assert nw.simulate(QUIET, nw.Auto(0.1, momentum=0.0), EQUAL, steps=3, update=nw.Adam()).stats.steps == 3


def test_a_schedule_counts_as_many_gradients_as_workers_as_a_step():
    seen = []

    def schedule(step):
        seen.append(int(step))
        return 1.0

    nw.simulate(NOISY, nw.Auto(nw.Scheduled(nw.Constant(0.1), schedule)), EQUAL, gradients=40, evaluate_every=10**9)
    assert max(seen) == 40 // 4


def test_a_schedule_is_as_far_as_that_of_minibatches():
    """Its last steps are not those of stepsize 0."""
    stepsize = nw.Scheduled(nw.Constant(0.1), nw.schedules.linear(5))
    run = nw.simulate(NOISY, nw.Auto(stepsize, 0.0), EQUAL, steps=3)
    same = nw.simulate(NOISY, nw.MinibatchSGD(stepsize), EQUAL, steps=3)
    np.testing.assert_allclose(run.params, same.params, rtol=1e-12)


def test_asynchronous_steps_move_momentum_and_statistics_as_the_page_says():
    server = a_server(nw.Auto(0.5, 0.9), num_workers=2, dimension=1)
    server.method.waits_for, server.method.until_choice = ASYNCHRONOUS, 100
    counts, step = [], server.step

    def counted(total, *arguments):
        counts.append(total.count)
        step(total, *arguments)

    server.step = counted
    params = velocity = total = 0.0
    for turn in range(12):
        gradient = float(2 + turn % 3)
        server.handle(gradient_from(server, worker=turn % 2, time=1.0 + turn, gradient=gradient))
        params, total = params - 0.5 / (1.2 * 2) * gradient, total + gradient
        if turn % 4 == 3:
            velocity = 0.9 * velocity + total / (1.2 * 2)
            params, total = params - 0.5 * 0.9 * velocity, 0.0
        assert server.params[0] == pytest.approx(params)
    assert counts == [1, 1, 1]


# Choices


def final_choice(problem, speeds, **limits):
    method = nw.Auto(0.05)
    run = nw.simulate(problem, method, speeds, **limits)
    return method.waits_for, run


def test_it_does_not_wait_for_a_straggler():
    waits_for, run = final_choice(QUIET, nw.speeds.Fixed([1.0, 1.0, 1.0, 1e4]), steps=50)
    assert 2 <= waits_for <= 3
    assert run.stats.seconds < 200


def test_with_much_noise_and_spread_speeds_it_ends_with_asynchronous_steps():
    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=30.0)
    waits_for, _ = final_choice(problem, nw.speeds.Fixed([1.0, 2.0, 4.0, 8.0, 16.0]), gradients=400)
    assert waits_for == ASYNCHRONOUS


def test_with_much_noise_and_equal_speeds_it_waits_for_all():
    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=30.0)
    assert final_choice(problem, EQUAL, gradients=400)[0] == 4


@pytest.mark.parametrize("num_workers", [2, 3])
def test_a_worker_that_never_delivers_is_left_out_by_a_timer(num_workers):
    """All others have delivered, so that no arrival would let the method choose again."""
    server = a_server(nw.Auto(0.1), num_workers=num_workers)
    wakes = []
    for worker in range(num_workers - 1):
        wakes += server.handle(gradient_from(server, worker, time=1.0))
    while server.steps == 0:
        [wake] = [command for command in wakes if isinstance(command, Wake)]
        wakes = server.handle(TimerFired(wake.at))
    assert server.now < 100.0


def test_a_leaver_does_not_cost_the_round():
    server = a_server(nw.Auto(0.1), num_workers=2)
    server.handle(gradient_from(server, worker=0, time=1.0))
    server.handle(WorkerLost(1, 1.5))
    assert server.steps == 1
    assert {ticket.worker for ticket in server.in_flight.values()} == {0}


def test_a_worker_that_was_slow_for_a_while_is_waited_for_again():
    def rate(worker, time):
        return 0.01 if worker == 3 and 20 <= time < 200 else 1.0

    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=30.0)
    waits_for, run = final_choice(problem, nw.speeds.TimeVarying(rate, workers=4), seconds=400)
    assert waits_for == 4
    assert run.stats.steps > 300


def test_choices_tell_what_it_waited_for_in_the_latest_run():
    method = nw.Auto(0.05)
    nw.simulate(QUIET, method, nw.speeds.Fixed([1.0, 1.0, 1.0, 1e4]), steps=50)
    assert method.choices[0].waits_for == 4
    assert method.choices[-1].waits_for == method.waits_for < 4
    assert 0.0 < method.choices[1].time < 10.0
    nw.simulate(NOISY, method, EQUAL, steps=2)
    assert [choice.waits_for for choice in method.choices] == [4]


# What must not stop a run, and means over items


def test_workers_that_hang_while_the_next_gradient_is_late_are_left_out():
    """The first gradient of a round comes after the time at which the round is overdue, and no other one comes."""

    def rate(worker, time):
        return 1.0 if time <= 20 else 0.2 if worker == 0 else 0.0

    _, run = final_choice(QUIET, nw.speeds.TimeVarying(rate, workers=4), seconds=600)
    assert run.stats.steps > 80


def test_a_worker_that_hangs_is_left_out_though_the_others_took_no_time():
    server = a_server(nw.Auto(0.1), num_workers=3)
    server.handle(gradient_from(server, worker=0, time=0.0))
    wakes = server.handle(gradient_from(server, worker=1, time=1.0))
    for _ in range(5):
        if server.steps == 0:
            [wake] = [command for command in wakes if isinstance(command, Wake)]
            wakes = server.handle(TimerFired(wake.at))
    assert server.steps > 0


@pytest.mark.parametrize("sigma", [0.0, 30.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_all_workers_may_leave(sigma, momentum):
    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=sigma)
    leave = [(50.0, "leave", 0), (51.0, "leave", 1), (52.0, "leave", 2)]
    method, output = nw.Auto(0.05, momentum), nw.outputs.UniformAverage()
    speeds = nw.speeds.Fixed([1.0, 2.0, 8.0])
    run = nw.simulate(problem, method, speeds, gradients=600, faults=nw.speeds.Faults(leave), output=output)
    assert run.stats.seconds == 52.0
    join = [(60.0, "join", 1), (300.0, "join", 0)]
    run = nw.simulate(problem, method, speeds, gradients=600, faults=nw.speeds.Faults(leave + join), output=output)
    assert run.stats.gradients == 600


def test_when_all_leave_asynchronous_steps_stay_so_and_rounds_wait_for_one_again():
    server = a_server(nw.Auto(0.1), num_workers=2)
    for waits_for in (ASYNCHRONOUS, 2):
        server.method.waits_for = waits_for
        for worker in (0, 1):
            server.handle(WorkerLost(worker, server.now))
        assert server.method.pending_stepsize(server, 1) > 0
        server.handle(WorkerJoined(0, server.now))
        assert server.method.waits_for == min(waits_for, 1)
        server.handle(WorkerJoined(1, server.now))
        assert server.method.waits_for == waits_for


@pytest.mark.parametrize("size", [3e-162, 1e-161, 1e160, 1e300])
def test_norms_whose_squares_overflow_or_vanish_raise_nothing(size):
    for other in (-1.0, 2.0):
        server = a_server(nw.Auto(1e-300), num_workers=2, dimension=1)
        for step in range(1, 30):
            for worker in (0, 1):
                gradient = np.array([size * other**worker])
                server.handle(gradient_from(server, worker, time=float(step), gradient=gradient))


def test_asynchronous_steps_and_the_noise_are_relative_to_the_mean_number_of_items():
    """Whichever worker is worker 0, whose gradients have weight 1."""
    results = []
    for items in ({0: 10, 1: 30, 2: 60}, {0: 60, 1: 10, 2: 30}):
        server = Server(nw.Auto(0.1), np.zeros(2), 3)
        server.items_of = items.get
        server.start()
        of_items = {count: worker for worker, count in items.items()}
        for turn in range(3 * 40):
            if turn == 3 * 20:
                server.method.waits_for = ASYNCHRONOUS
            count = [30, 10, 60][turn % 3]
            gradient = server.params + np.array([1.0 + count, turn % 2])
            server.handle(gradient_from(server, of_items[count], time=1.0 + turn, gradient=gradient))
        results.append((*server.params, server.method._noise_scale()))
    np.testing.assert_allclose(*results, rtol=1e-9)


def test_a_timer_of_a_long_round_does_not_keep_later_rounds_waiting():
    """The first round is late, so its timer is far away; then workers hang in a short one."""
    server = a_server(nw.Auto(0.1), num_workers=3)
    commands = server.handle(gradient_from(server, worker=0, time=1_000.0))
    [far] = [command.at for command in commands if isinstance(command, Wake)]
    near = []
    for time in (1_000.0, 1_001.0, 1_002.0):
        for worker in (1, 2, 0):
            commands = server.handle(gradient_from(server, worker, time=time))
            near += [command.at for command in commands if isinstance(command, Wake)]
    assert far > 2_000.0
    assert min(near) < 1_010.0
