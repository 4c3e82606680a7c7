"""Auto: its estimates, its choices, and what becomes of them when workers are slow, hung, new or gone."""

from dataclasses import replace

import numpy as np
import pytest

import nowait as nw
from nowait.core import Server, TimerFired, Wake, WorkerJoined, WorkerLost
from nowait.core.notes import Note
from nowait.methods.auto import ASYNCHRONOUS, Noise, costs_of, round_seconds
from nowait.recording import TraceRecorder
from nowait.testing import ScriptedWorkers, a_server, gradient_from

QUIET = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3)
NOISY = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=1.0)
EQUAL = nw.speeds.Fixed(1.0, workers=4)


def test_it_is_tuned_as_minibatches_with_its_momentum():
    sgd, adam = nw.Sgd(), nw.Adam()
    assert nw.Auto(0.5, momentum=0.8).tuned_as(sgd) == (nw.MinibatchSGD(0.5), nw.Nesterov(0.8))
    assert nw.Auto(0.5).tuned_as(sgd) == (nw.MinibatchSGD(0.5), nw.Nesterov(0.9))
    assert nw.Auto(0.5, momentum=0.0).tuned_as(sgd) == (nw.MinibatchSGD(0.5), sgd)
    assert nw.Auto(0.5).tuned_as(adam) == (nw.MinibatchSGD(0.5), adam)
    method = nw.MinibatchSGD(0.5)
    assert method.tuned_as(sgd)[0] is method, "others are tuned as they are"


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
    assert cheapest(times, noise=0.0) == 1
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


def test_the_noise_of_rounds_of_one_gradient_is_measured_from_two_successive_ones():
    """Gradients 1 and 3 have the variance 2 and the mean 2."""
    server = a_server(nw.Auto(0.1), num_workers=1, dimension=1)
    for turn in range(8):
        server.handle(gradient_from(server, worker=0, time=1.0 + turn, gradient=[1.0, 3.0][turn % 2]))
    assert server.steps == 8
    assert server.method.noise.is_known
    assert server.method.noise.variance == pytest.approx(2.0)
    assert server.method.noise.mean_squared == pytest.approx(4.0 - 2.0 / 8)


def test_the_gradient_of_a_round_of_one_does_not_count_as_noise_of_asynchronous_steps():
    server = a_server(nw.Auto(0.1), num_workers=1, dimension=1)
    server.handle(gradient_from(server, worker=0, time=1.0, gradient=1e3))
    server.method.waits_for, server.method.until_choice = ASYNCHRONOUS, 100
    for turn in range(8):
        server.handle(gradient_from(server, worker=0, time=2.0 + turn, gradient=2.0))
    assert server.method.noise.is_known
    assert server.method.noise.variance == pytest.approx(0.0, abs=1e-9)


def test_before_the_first_estimate_is_complete_it_goes_on_with_what_is_known_of_the_noise():
    """With little noise and a straggler, it does not wait for many again after every round of few."""
    run = nw.simulate(QUIET, nw.Auto(0.05), nw.speeds.Fixed([*np.linspace(1.0, 2.0, 15), 100.0]), steps=6)
    waited = [note.waiting.waits_for for note in run.trace.notes]
    assert waited[0] == 16
    assert max(waited[1:]) <= 2


# Steps


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equal_workers_it_makes_the_steps_of_minibatches(momentum):
    update = nw.Nesterov(momentum) if momentum else None
    run = nw.simulate(NOISY, nw.Auto(0.1, momentum), EQUAL, steps=3, seed=5)
    same = nw.simulate(NOISY, nw.MinibatchSGD(0.1), EQUAL, steps=3, seed=5, update=update)
    np.testing.assert_allclose(run.params, same.params, rtol=1e-12)


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


# Updates


class Spy(nw.core.Update):
    """Plain steps that keep their stepsizes, with the momentum that they say they have."""

    def __init__(self, momentum_factor, averages_gradients):
        self.stepsizes, self._factor, self._averages = [], momentum_factor, averages_gradients

    @property
    def momentum_factor(self):
        return self._factor

    @property
    def averages_gradients(self):
        return self._averages

    def apply(self, params, direction, stepsize, out):
        self.stepsizes.append(stepsize)
        out[:] = params - stepsize * direction


def server_with(update, num_workers):
    server = Server(nw.Auto(0.5), np.zeros(2), num_workers, update=update)
    server.start()
    return server


@pytest.mark.parametrize("update", [nw.Adam(), nw.Momentum(0.5), nw.Muon()])
def test_with_an_update_and_equal_workers_it_makes_the_steps_of_minibatches_with_it(update):
    run = nw.simulate(NOISY, nw.Auto(0.01), EQUAL, steps=9, seed=5, update=update)
    same = nw.simulate(NOISY, nw.MinibatchSGD(0.01), EQUAL, steps=9, seed=5, update=update)
    np.testing.assert_allclose(run.params, same.params, rtol=1e-12)


def test_momentum_and_an_update_are_refused_together():
    with pytest.raises(ValueError, match=r"Auto has momentum 0.9 of its own, and Adam\(.* leave out the momentum"):
        nw.simulate(QUIET, nw.Auto(0.1, momentum=0.9), EQUAL, steps=3, update=nw.Adam())
    with pytest.raises(ValueError, match="Auto has momentum"):
        nw.simulate(QUIET, nw.Auto(0.1, momentum=0.9), EQUAL, steps=3, update=nw.Momentum(0.0))
    assert nw.simulate(QUIET, nw.Auto(0.1, momentum=0.0), EQUAL, steps=3, update=nw.Adam()).stats.steps == 3


def test_an_update_that_scales_gradients_is_refused():
    """Adam would undo the scaling, and make steps of the full length with every gradient."""
    with pytest.raises(ValueError, match="scales gradients instead of steps: leave out"):
        nw.simulate(QUIET, nw.Auto(0.1), EQUAL, steps=3, update=nw.ScaleGradient(nw.Adam()))


@pytest.mark.parametrize(("averages", "expected"), [(True, 0.5 / (2 * 4**0.5)), (False, 0.5 / (1.2 * 4))])
def test_asynchronous_steps_are_longer_with_updates_that_average_gradients(averages, expected):
    update = Spy(0.0, averages)
    server = server_with(update, num_workers=4)
    server.method.waits_for, server.method.until_choice = ASYNCHRONOUS, 100
    for turn in range(16):
        server.handle(gradient_from(server, worker=turn % 4, time=1.0 + turn))
    np.testing.assert_allclose(update.stepsizes, [expected] * 16)


@pytest.mark.parametrize(("averages", "power"), [(True, 0.5), (False, 1.0)])
def test_a_round_of_fewer_gradients_makes_a_shorter_step(averages, power):
    """By (1 + B/M)/(1 + B/k), or by its square root: two of four gradients, with B = 2·σ²/‖∇F‖²."""
    update = Spy(0.0, averages)
    server = server_with(update, num_workers=4)
    server.method.waits_for = 2
    server.method.noise.variance, server.method.noise.mean_squared, server.method.noise.num_groups = 3.0, 1.0, 1
    for worker in (0, 1):
        server.handle(gradient_from(server, worker, time=1.0 + worker))
    assert update.stepsizes == [pytest.approx(0.5 * ((1 + 6 / 4) / (1 + 6 / 2)) ** power)]


@pytest.mark.parametrize(
    ("update", "may"),
    [(nw.Momentum(0.9), False), (nw.Muon(), False), (nw.LMO("sign"), False), (nw.Adam(), True), (nw.AMSGrad(), True)],
)
def test_asynchronous_steps_are_not_made_with_momentum_that_is_a_sum(update, may):
    problem = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.3, sigma=30.0)
    speeds = nw.speeds.Fixed([1.0, 2.0, 4.0, 8.0, 16.0])
    run = nw.simulate(problem, nw.Auto(0.01), speeds, gradients=400, update=update)
    assert (ASYNCHRONOUS in [note.waiting.waits_for for note in run.trace.notes]) is may


def test_plain_sgd_gets_momentum_and_another_update_does_not(caplog):
    assert nw.Auto(0.1).momentum_with(nw.Sgd()) == 0.9
    assert nw.Auto(0.1).momentum_with(nw.Adam()) == 0.0
    with caplog.at_level("INFO", "nowait"):
        nw.simulate(QUIET, nw.Auto(0.1), EQUAL, steps=1)
        assert not caplog.messages
        nw.simulate(QUIET, nw.Auto(0.1), EQUAL, steps=1, update=nw.Adam())
    assert caplog.messages == [f"Auto adds no momentum of its own to the steps of {nw.Adam()!r}"]


def test_a_run_with_adam_is_resumed_with_its_moments(tmp_path):
    folder = tmp_path / "run"
    nw.train(QUIET, nw.Auto(0.01), workers=2, steps=4, update=nw.Adam(), folder=folder, progress=False)
    run = nw.resume(folder, steps=8, problem=QUIET, progress=False)
    assert run.config["method"]["momentum"] is None
    assert run.config["update"]["type"] == "Adam"
    assert run.stats.steps == 8


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


def test_rounds_keep_their_pace_while_workers_leave_and_join_and_no_gradient_is_dropped():
    """Two of four equal workers are absent for half of the time; a round waits for one that joins at most once."""
    changes = [(2.03 + 2 * turn, ("leave", "join")[turn % 2], worker) for turn in range(9) for worker in (2, 3)]
    speeds = nw.speeds.Fixed(0.1, workers=4)
    run = nw.simulate(NOISY, nw.Auto(0.05), speeds, seconds=20, faults=nw.speeds.Faults(changes))
    assert 0.98 * 200 <= run.stats.steps <= 200
    assert run.stats.dropped == 0
    assert run.stats.gradients >= 0.98 * 3 * 200


def test_choices_are_notes_of_the_trace_with_the_numbers_behind_them():
    method = nw.Auto(0.05)
    run = nw.simulate(QUIET, method, nw.speeds.Fixed([1.0, 1.0, 1.0, 1e4]), steps=50)
    first, *_, last = run.trace.notes
    assert first == Note(0, 0.0, "waits for", {"waits_for": 4.0, "workers": 4.0})
    assert last.numbers["waits_for"] == method.waits_for < 4
    assert (last.numbers["slowest"], last.numbers["cost"] < last.numbers["cost_of_all"]) == (3.0, True)
    assert nw.simulate(NOISY, method, EQUAL, steps=2).trace.notes == (first,)


def test_joins_and_leaves_are_noted_in_rounds():
    leave = nw.speeds.Faults([(5.0, "leave", 1), (9.0, "join", 6)])
    run = nw.simulate(NOISY, nw.Auto(0.05), EQUAL, steps=20, faults=leave)
    assert [str(note) for note in run.trace.notes] == [
        "waits for all 4: times and noise are not known yet",
        "waits for all 3: worker 1 left",
        "waits for all 4: worker 6 joined",
    ]


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
            server.method.waits_for = 3  # it would choose 1
            commands = server.handle(gradient_from(server, worker, time=time))
            near += [command.at for command in commands if isinstance(command, Wake)]
    assert far > 2_000.0
    assert min(near) < 1_010.0


# Resuming


def a_resumed_pair(method, events, num_workers):
    """Workers of a server, and those of one that was resumed from its checkpoint with a new object of the method."""
    workers = ScriptedWorkers(method, num_workers, log=TraceRecorder(list(range(num_workers)))).after(events)
    return workers, workers.resumed_with(replace(method))


def test_a_resumed_run_goes_on_with_its_choice_its_estimates_and_its_momentum():
    first, second = a_resumed_pair(nw.Auto(0.1), events=60, num_workers=3)
    before, after = first.server.method, second.server.method
    assert before.velocity.norm > 0
    for name in ("waits_for", "progress", "rounds", "round_seconds", "until_choice"):
        assert getattr(after, name) == getattr(before, name)
    assert after.noise.state() == before.noise.state()
    assert after.times.state() == before.times.state()
    np.testing.assert_array_equal(after.velocity.vector, before.velocity.vector)


def test_a_resumed_run_makes_no_choice_before_it_has_to_and_notes_that_it_goes_on():
    recorder, server = TraceRecorder([0, 1]), a_server(nw.Auto(0.1), num_workers=2)
    server.method.waits_for = ASYNCHRONOUS
    state = server.state()
    again = Server(nw.Auto(0.1), state.params, state.workers, log=recorder)
    again.resume(state)
    assert [str(note) for note in recorder.trace().notes] == [
        "steps with every gradient: as before the run was resumed"
    ]
    assert again.method.waits_for == ASYNCHRONOUS


def test_the_times_of_workers_that_are_gone_are_forgotten_at_a_resume():
    workers = ScriptedWorkers(nw.Auto(0.1), num_workers=3).after(20)
    state = workers.server.state()
    assert {worker for worker, *_ in state.method["times"]} == {0, 1, 2}
    again = Server(nw.Auto(0.1), state.params, [0, 2, 5])
    again.resume(replace(state, workers=[0, 2, 5]))
    assert {worker for worker, *_ in again.method.times.state()["times"]} == {0, 2}


@pytest.mark.parametrize("waits_for", [2, ASYNCHRONOUS])
def test_a_run_may_be_resumed_while_it_has_no_worker(waits_for):
    """All of them are being replaced; it does not turn to asynchronous steps because of that."""
    first = a_server(nw.Auto(0.1), num_workers=2)
    first.method.waits_for = waits_for
    state = replace(first.state(), workers=[])
    server = Server(nw.Auto(0.1), state.params, [])
    server.resume(state)
    for worker in (0, 1):
        server.handle(WorkerJoined(worker, 1.0))
    assert server.method.waits_for == waits_for


@pytest.mark.parametrize(
    "method", [nw.Auto(0.1), nw.OrderedMomentum(0.1, bucket=3), nw.DelayedNesterov(0.1, every=3)], ids=repr
)
def test_with_one_worker_a_resumed_run_is_the_run_as_if_it_had_not_stopped(method):
    """Only the ticket in flight is lost, and it is issued again at the same params."""
    _, resumed = a_resumed_pair(method, events=10, num_workers=1)
    whole = ScriptedWorkers(replace(method), num_workers=1).after(25)
    np.testing.assert_array_equal(resumed.after(15).server.params, whole.server.params)


@pytest.mark.parametrize(
    ("method", "other"),
    [
        (nw.DelayedNesterov(0.1, every=10), nw.DelayedNesterov(0.1, every=2)),
        (nw.OrderedMomentum(0.1, bucket=10), nw.OrderedMomentum(0.1, bucket=2)),
    ],
    ids=repr,
)
def test_momentum_goes_on_with_another_interval(method, other):
    _, resumed = a_resumed_pair(method, events=7, num_workers=1)
    going_on = resumed.resumed_with(other).after(8)
    assert going_on.server.method.momentum.norm > 0
    assert getattr(going_on.server.method, "size", 2) == 2
    assert getattr(going_on.server.method, "recent", going_on.server.sum()).count < 2


@pytest.mark.parametrize("name", ["method", "mine of sum"])
def test_a_state_with_a_name_of_the_checkpoint_is_refused(name):
    class Own(nw.MinibatchSGD):
        def state(self):
            return {name: 1.0}

    with pytest.raises(ValueError, match=f"Own.state\\(\\) has an entry '{name}', a name that checkpoints use"):
        a_server(Own(0.1), num_workers=1).state()


def test_the_gradient_of_a_round_of_one_is_not_in_the_noise_of_the_present_round():
    server = a_server(nw.Auto(0.1), num_workers=3, dimension=1)
    server.method.waits_for = 1
    server.handle(gradient_from(server, worker=0, time=1.0, gradient=100.0))
    server.method.waits_for = 3
    for worker in (0, 1):
        server.handle(gradient_from(server, worker, time=2.0, gradient=5.0))
        server.method.waits_for = 3
    assert server.method._noise_scale() == 0.0


def test_another_kind_of_method_starts_again_instead_of_what_the_checkpoint_has():
    _, resumed = a_resumed_pair(nw.Auto(0.1), events=10, num_workers=2)
    other = resumed.resumed_with(nw.DelayedNesterov(0.1, every=2))
    assert other.server.method.momentum.norm == 0.0
    other.after(4)
