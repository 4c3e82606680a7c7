"""The simulator: budgets, evaluations, callbacks, faults, divergence."""

import logging
import math
import os
import signal

import numpy as np
import pytest

import nowait as nw
from nowait.core import Method
from nowait.fleet.wire.records import ReportKind
from nowait.fleet.worker.compute import Computation

PROBLEM = nw.problems.NoisyQuadratic(dimension=4, L=1.0, mu=0.2, sigma=0.1)
METHOD = nw.AsynchronousSGD(nw.DelayAdaptive(0.1))
SPEEDS = nw.speeds.Fixed([1.0, 1.0, 10.0])


def simulate(**options):
    arguments = {"problem": PROBLEM, "method": METHOD, "speeds": SPEEDS} | options
    return nw.simulate(**arguments)


# Budgets and evaluations


def test_the_issue_of_the_paper_in_small():
    """Two workers of speed 1 and one of speed 10: 21 gradients in 10 seconds, one of them of the slow worker."""
    run = simulate(seconds=100.0)
    assert run.stats.gradients == run.stats.steps == 210
    assert run.stats.seconds == 100.0
    assert run.stats.steps_per_second == 2.1
    np.testing.assert_allclose(run.stats.work_share, [100 / 210, 100 / 210, 10 / 210])
    assert run.stats.engine == "compiled"


def test_whichever_budget_comes_first_ends_the_run():
    assert simulate(steps=10, gradients=20, seconds=1000.0).stats.steps == 10
    assert simulate(steps=100, gradients=20, seconds=1000.0).stats.gradients == 20
    assert simulate(steps=100, gradients=200, seconds=3.5).stats.seconds == 3.5


def test_gradients_count_the_valid_ones_used_or_not():
    run = simulate(method=nw.RingmasterASGD(nw.Constant(0.1), max_delay=2), gradients=60)
    assert run.stats.gradients == 60 == len(run.trace)
    assert run.stats.steps + run.stats.dropped == 60
    assert run.stats.dropped > 0


def test_a_target_loss_ends_the_run():
    run = simulate(target_loss=0.05, evaluate_every=1)
    assert run.history.loss[-1] <= 0.05 < run.history.loss[-2]


def test_losses_are_evaluated_at_the_start_at_every_multiple_and_at_the_end():
    history = simulate(steps=25, evaluate_every=10).history
    assert history.step.tolist() == [0, 10, 20, 25]
    assert history.gradients.tolist() == [0, 10, 20, 25]
    assert history.time[0] == 0.0
    assert history.loss[0] == PROBLEM.loss(PROBLEM.initial())


def test_without_a_word_about_a_hundred_evaluations_are_made():
    assert len(simulate(steps=1_000).history) == 101
    assert 95 <= len(simulate(gradients=1_000).history) <= 102
    assert 80 <= len(simulate(seconds=500.0).history) <= 102


@pytest.mark.parametrize(
    "budget", [{"seconds": 100.0}, {"gradients": 100}, {"steps": 10}, {"seconds": 100.0, "steps": 99}]
)
def test_losses_carry_the_time_of_the_step_they_belong_to(budget):
    """Minibatch steps come every 10 seconds; arrivals in between change nothing."""
    speeds = nw.speeds.Fixed([float(seconds) for seconds in range(1, 11)])
    history = simulate(method=nw.MinibatchSGD(nw.Constant(0.5)), speeds=speeds, **budget).history
    assert history.step.tolist() == list(range(len(history)))
    assert history.time.tolist() == [10.0 * step for step in range(len(history))]
    assert history.gradients.tolist() == [10 * step for step in range(len(history))]


def test_a_target_is_seen_however_many_steps_are_allowed():
    run = simulate(steps=10**9, seconds=5_000.0, target_loss=0.05)
    assert run.stats.seconds < 500.0


def test_the_last_loss_is_that_of_the_last_params():
    run = simulate(seconds=33.3)
    assert run.history.loss[-1] == PROBLEM.loss(run.last)
    assert run.history.step[-1] == run.stats.steps


def test_a_run_may_start_elsewhere():
    start = np.arange(4.0)
    assert simulate(steps=1, initial=start).history.loss[0] == PROBLEM.loss(start)


# Callbacks


def test_a_function_is_called_after_every_step_and_may_stop_the_run():
    seen = []

    def stop_at_seven(control):
        seen.append(control.steps)
        if control.steps == 7:
            control.stop()

    assert simulate(steps=100, callbacks=[stop_at_seven]).stats.steps == 7
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_callback_objects_hear_of_everything():
    heard = []

    class Listener(nw.Callback):
        def on_evaluate(self, control):
            heard.append(("evaluate", control.steps, control.loss))

        def on_worker_join(self, control, worker):
            heard.append(("join", worker, control.time))

        def on_worker_lost(self, control, worker):
            heard.append(("lost", worker, control.num_workers))

        def on_gradient_dropped(self, control, worker):
            heard.append(("dropped", worker))

    run = simulate(
        method=nw.RingmasterASGD(nw.Constant(0.1), max_delay=6),
        steps=30,
        evaluate_every=30,
        callbacks=[Listener()],
        faults=nw.speeds.Faults([(2.5, "leave", 0), (4.5, "join", 0)]),
    )
    assert heard[0] == ("evaluate", 0, run.history.loss[0])
    assert ("lost", 0, 2) in heard
    assert ("join", 0, 4.5) in heard
    assert ("dropped", 2) in heard
    assert heard[-1] == ("evaluate", 30, run.history.loss[-1])


def test_workers_join_and_leave_through_control():
    def change(control):
        if control.steps == 5:
            control.add_workers(2)
            control.remove_worker(0)
        assert control.workers == tuple(sorted(control.workers)) or control.steps > 5
        if control.steps == 8:
            assert set(control.workers) == {1, 2, 3, 4}

    run = simulate(steps=200, callbacks=[change])
    assert run.stats.lost == 1
    assert (run.trace.worker[6:] != 0).all()
    assert set(run.trace.worker) == {0, 1, 2, 3, 4}
    assert run.trace.live_workers[[0, -1]].tolist() == [3, 4]
    assert np.array_equal(nw.replay(run.trace, PROBLEM, METHOD).params, run.params)


def test_removing_a_worker_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="cannot remove worker 9: the live workers are"):
        simulate(steps=10, callbacks=[lambda control: control.remove_worker(9)])
    with pytest.raises(ValueError, match="count must be an integer of at least 1"):
        simulate(steps=10, callbacks=[lambda control: control.add_workers(0)])


def test_a_callback_sees_params_but_cannot_write_them():
    def write(control):
        control.params[0] = 1.0

    with pytest.raises(ValueError, match="read-only"):
        simulate(steps=10, callbacks=[write])


# Faults


def test_a_worker_that_joins_first_is_not_there_at_the_start():
    run = simulate(steps=60, faults=nw.speeds.Faults([(5.5, "join", 1)]))
    assert run.trace.num_workers == 2
    assert run.trace.initial_workers.tolist() == [0, 2]
    assert run.trace.started[run.trace.worker == 1].min() == 5.5
    assert run.trace.live_workers[run.trace.time < 5.5].max() == 2
    assert run.trace.live_workers[run.trace.time > 5.5].min() == 3


def test_what_happens_at_the_time_of_an_arrival_happens_after_it():
    run = simulate(steps=10, faults=nw.speeds.Faults([(2.0, "leave", 0)]))
    assert run.trace.time[run.trace.worker == 0].tolist() == [1.0, 2.0]
    assert run.stats.lost == 1


def test_a_worker_that_comes_back_goes_on_counting_its_jobs():
    run = simulate(steps=60, faults=nw.speeds.Faults([(2.5, "leave", 0), (9.5, "join", 0)]))
    jobs = run.trace.job[run.trace.worker == 0]
    assert jobs.tolist() == [0, 1, *range(3, 3 + len(jobs) - 2)], "the lost ticket used up its number"


def test_the_run_ends_when_everybody_has_left(caplog):
    faults = nw.speeds.Faults([(3.5, "leave", worker) for worker in range(3)])
    run = simulate(steps=1_000, faults=faults)
    assert run.stats.steps == 6
    assert run.stats.advice == "every worker has left after 6 steps, and none will join"
    assert run.stats.advice in caplog.text


def test_with_a_time_budget_too_the_user_is_told_that_everybody_left():
    run = simulate(seconds=1_000.0, faults=nw.speeds.Faults([(3.5, "leave", worker) for worker in range(3)]))
    assert run.stats.advice == "every worker has left after 6 steps, and none will join"
    assert run.stats.seconds == 3.5


def test_a_timer_that_sets_itself_again_does_not_keep_an_empty_run_alive():
    class Ticking(Method):
        stepsize = nw.Constant(0.1)

        def start(self, server):
            super().start(server)
            server.wake(1.5)

        def on_arrival(self, server, arrival):
            server.apply(arrival, 0.1)
            server.assign(arrival.worker)

        def on_timer(self, server):
            server.wake(server.now + 1.5)

    faults = nw.speeds.Faults([(3.5, "leave", worker) for worker in range(3)])
    run = simulate(method=Ticking(), steps=1_000, faults=faults)
    assert run.stats.steps == 6
    assert "every worker has left" in run.stats.advice


def test_numbers_of_numpy_are_numbers(tmp_path):
    faults = nw.speeds.Faults([(np.float32(1.5), "join", np.int64(3)), (np.float64(5.5), "leave", np.int32(0))])
    method = nw.AsynchronousSGD(nw.DelayAdaptive(np.float64(0.1)))
    run = simulate(
        method=method,
        speeds=nw.speeds.Exponential(np.array([1.0, 2.0, 3.0])),
        seconds=np.int64(20),
        seed=np.int64(1),
        faults=faults,
    )
    assert type(method.stepsize.gamma) is float
    run.save(tmp_path / "run")
    assert nw.load(tmp_path / "run").stats.seconds == 20.0
    plain = nw.speeds.Faults([(1.5, "join", 3), (5.5, "leave", 0)])
    again = simulate(speeds=nw.speeds.Exponential([1.0, 2.0, 3.0]), seconds=20.0, seed=1, faults=plain)
    assert np.array_equal(again.params, run.params)


def test_many_changes_asked_for_twice_are_made_once():
    def remove_all_but_one(control):
        if control.steps == 1:
            for worker in control.workers[1:]:
                control.remove_worker(worker)

    count = 2_000
    faults = nw.speeds.Faults([(5.0, "leave", worker) for worker in range(1, count)])
    run = simulate(speeds=nw.speeds.Fixed(1.0, workers=count), steps=20, faults=faults, callbacks=[remove_all_but_one])
    assert run.stats.lost == count - 1
    assert run.stats.steps == 20


def test_the_run_goes_on_when_somebody_joins_after_all_have_left():
    faults = nw.speeds.Faults([*((3.5, "leave", worker) for worker in range(3)), (50.0, "join", 1)])
    run = simulate(steps=20, faults=faults)
    assert run.stats.steps == 20
    assert run.trace.time[6] == 51.0


def test_faults_beyond_the_given_workers_use_their_speeds_in_turn():
    run = simulate(steps=60, faults=nw.speeds.Faults([(1.5, "join", 5)]))
    assert set(run.trace.compute_seconds[run.trace.worker == 5]) == {10.0}


# Timers and misbehaving methods


def test_timers_fire_in_virtual_time_after_arrivals_of_the_same_time():
    order = []

    class Timed(Method):
        stepsize = nw.Constant(0.1)

        def start(self, server):
            super().start(server)
            server.wake(2.0)
            server.wake(1.5)

        def on_arrival(self, server, arrival):
            order.append(("arrival", server.now))
            server.apply(arrival, 0.1)
            server.assign(arrival.worker)

        def on_timer(self, server):
            order.append(("timer", server.now))

    run = simulate(method=Timed(), speeds=nw.speeds.Fixed([1.0]), steps=3)
    expected = [("arrival", 1.0), ("timer", 1.5), ("arrival", 2.0), ("timer", 2.0), ("arrival", 3.0)]
    assert order == expected
    order.clear()
    assert np.array_equal(nw.replay(run.trace, PROBLEM, Timed()).params, run.params)
    assert order == expected


def test_a_method_that_leaves_everybody_idle_is_told_so():
    class Lazy(Method):
        stepsize = nw.Constant(0.1)

        def on_arrival(self, server, arrival):
            server.apply(arrival, 0.1)

    with pytest.raises(RuntimeError, match="the method left every worker idle after 3 steps"):
        simulate(method=Lazy(), steps=10)


def test_an_error_in_a_gradient_says_whose_it_was():
    class Broken:
        dimension = 2

        def initial(self):
            return np.zeros(2)

        def gradient(self, point, sample):
            if sample.worker == 1 and sample.job == 2:
                raise ZeroDivisionError("division by zero")
            return point

        def loss(self, point):
            return 0.0

    with pytest.raises(ZeroDivisionError) as error:
        simulate(problem=Broken(), steps=10)
    assert "while worker 1 computed its job 2 at version" in error.value.__notes__[0]


class InPlace:
    """``gradient_into`` calls ``compute(point, sample, out)`` and returns what that returns."""

    dimension = 4

    def __init__(self, compute):
        self.gradient_into = compute
        self.gradients = 0

    def initial(self):
        return np.zeros(4)

    def gradient(self, point, sample):
        self.gradients += 1
        return PROBLEM.gradient(point, sample)

    def loss(self, point):
        return PROBLEM.loss(point)


def written_and_returned(point, sample, out):
    PROBLEM.gradient_into(point, sample, out)
    return out


def returned_only(point, sample, out):
    out[:] = 0.0
    return PROBLEM.gradient(point, sample)


def doubled(point, sample, out):
    PROBLEM.gradient_into(point, sample, out)
    out *= 2


def test_gradient_into_may_return_out_and_is_compared_with_gradient_once():
    problem = InPlace(written_and_returned)
    assert np.array_equal(simulate(problem=problem, steps=20).params, simulate(steps=20).params)
    assert problem.gradients == 1


@pytest.mark.parametrize(
    ("compute", "error", "text"),
    [
        (returned_only, TypeError, r"InPlace.gradient_into\(.*\) returned ndarray: it must write"),
        (
            doubled,
            ValueError,
            r"gradient_into\(.*\) and gradient\(.*\) compute different gradients: .* set replayable = F",
        ),
    ],
    ids=["returned", "doubled"],
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
def test_a_gradient_into_that_does_not_write_the_gradient_is_refused(compute, error, text, wrapped):
    problem = InPlace(compute)
    with pytest.raises(error, match=text):
        simulate(problem=nw.problems.LocalSteps(problem, 2, 0.1) if wrapped else problem, steps=5)
    with pytest.raises(error, match=text):
        compute_in_worker(problem)


def test_gradients_that_differ_from_run_to_run_are_not_compared():
    problem = InPlace(doubled)
    problem.replayable = False
    assert simulate(problem=problem, steps=5).stats.steps == 5
    assert problem.gradients == 0


def compute_in_worker(problem):
    """Compute one gradient as a worker process does; raise the error that it reports."""
    point, errors = np.zeros(4), []
    computation = Computation(0, problem, 0, np.zeros(4), lambda *details: errors.append(details))
    if computation.compute(0, 0, point, 0) == ReportKind.ERROR:
        kind, text = errors[0][2]
        raise {"TypeError": TypeError, "ValueError": ValueError}[kind.split()[0]](text)


def test_a_method_without_a_stepsize_runs_and_is_refused_only_by_an_averaging_output():
    class Mine(Method):
        def on_arrival(self, server, arrival):
            server.apply(arrival, 0.1)
            server.assign(arrival.worker)

    assert simulate(method=Mine(), steps=5).stats.steps == 5
    with pytest.raises(TypeError, match="Mine has no stepsize, by which an averaging output weighs"):
        simulate(method=Mine(), steps=5, output=nw.StepsizeWeightedAverage())


def test_a_gradient_that_writes_into_its_point_is_stopped():
    class Scribbler:
        dimension = 2

        def initial(self):
            return np.zeros(2)

        def gradient(self, point, sample):
            point += 1.0
            return point

        def loss(self, point):
            return 0.0

    with pytest.raises(ValueError, match="read-only"):
        simulate(problem=Scribbler(), steps=10)


# Divergence


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("speeds", ["equal", "uneven"])
def test_too_large_a_stepsize_is_a_result_not_a_crash(workers, speeds, caplog):
    seconds = [1.0] * workers if speeds == "equal" else [1000.0**worker for worker in range(workers)]
    run = simulate(method=nw.AsynchronousSGD(nw.Constant(30.0)), speeds=nw.speeds.Fixed(seconds), steps=100_000)
    assert run.stats.diverged
    assert "Try a stepsize ten times smaller" in run.stats.advice
    assert np.isfinite(run.params).all()
    assert run.stats.steps < 100_000
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_diverged_run_replays():
    method = nw.AsynchronousSGD(nw.Constant(30.0))
    problem = nw.problems.LeastSquares.random(samples=20, dimension=3, seed=0)
    run = simulate(problem=problem, method=method, steps=100_000, evaluate_every=100_000)
    assert run.stats.diverged
    again = nw.replay(run.trace, problem, method)
    assert np.array_equal(again.last, run.last)
    assert again.stats.diverged


class Root:
    """Its gradient is NaN below 0, where too large a stepsize leads."""

    dimension = 1

    def initial(self):
        return np.full(1, 0.5)

    def gradient(self, point, sample):
        return 1 - 1 / np.sqrt(point)

    def loss(self, point):
        return float(abs(point[0] - 1))


def test_a_loss_astronomically_above_its_start_means_diverged():
    run = simulate(method=nw.AsynchronousSGD(nw.Constant(3.0)), speeds=nw.speeds.Fixed([1.0, 1.0]), steps=300)
    assert run.stats.diverged
    assert run.stats.steps < 300
    assert "Try a stepsize ten times smaller" in run.stats.advice


def test_a_gradient_that_is_never_finite_is_not_blamed_on_the_stepsize():
    class Broken(Root):
        def gradient(self, point, sample):
            return np.full(1, math.nan)

    run = simulate(problem=Broken(), steps=30)
    assert run.stats.diverged
    assert run.stats.advice.endswith("Look at the problem's gradient and loss")


def test_a_budget_too_short_for_a_step_is_told():
    run = simulate(method=nw.MinibatchSGD(nw.Constant(0.1)), seconds=5.0)
    assert run.stats.advice.startswith("no step was made: the budget ended before")


@pytest.mark.parametrize("loss", [None, np.zeros(2)])
def test_a_loss_that_is_no_number_is_named(loss):
    class Odd(Root):
        def loss(self, point):
            return loss

    with pytest.raises(TypeError, match=r"the problem's loss\(point\) must return a number, got"):
        simulate(problem=Odd(), steps=3)


def test_a_split_for_other_workers_is_warned_of(caplog):
    split = nw.problems.LeastSquares.random(samples=40, dimension=3).split(5)
    simulate(problem=split, steps=3)
    assert "the problem is split for 5 workers, but there are 3" in caplog.text


@pytest.mark.parametrize("seconds", [[1.0, 1.0], [1.0, 3.0], [1.0, 1e6], [1e6, 1.0]])
def test_a_fast_worker_is_not_to_blame_for_a_run_that_diverged(seconds):
    method = nw.AsynchronousSGD(nw.Constant(8.0))
    run = simulate(problem=Root(), method=method, speeds=nw.speeds.Fixed(seconds), steps=1_000, evaluate_every=1_000)
    assert run.stats.diverged


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_means_diverged(loss):
    class Lossy:
        dimension = 1

        def initial(self):
            return np.zeros(1)

        def gradient(self, point, sample):
            return np.ones(1)

        def loss(self, point):
            return loss if point[0] < -0.5 else 1.0

    run = simulate(problem=Lossy(), steps=100, evaluate_every=5)
    assert run.stats.diverged
    assert run.stats.steps == 10


# Many workers


def test_a_hundred_thousand_workers_arrive_in_order():
    count = 100_000
    problem = nw.problems.NoisyQuadratic(dimension=1, mu=1.0)
    speeds = nw.speeds.Fixed(np.linspace(1.0, 2.0, count))
    faults = nw.speeds.Faults([(1.00005, "leave", worker) for worker in range(50_000, 50_200)])
    run = nw.simulate(problem, METHOD, speeds, steps=10_000, faults=faults, evaluate_every=10_000)
    assert run.trace.worker.tolist() == list(range(10_000))
    assert run.stats.lost == 200
    assert run.trace.live_workers[-1] == count - 200


def test_ctrl_c_ends_a_simulation_and_raises_with_the_run_so_far(caplog):
    def interrupt(control):
        if control.steps == 50:
            os.kill(os.getpid(), signal.SIGINT)

    problem, method = nw.problems.NoisyQuadratic(dimension=3), nw.AsynchronousSGD(nw.Constant(0.1))
    with pytest.raises(nw.Interrupted) as caught:
        nw.simulate(problem, method, nw.speeds.Fixed([1.0, 2.0]), steps=10**9, callbacks=[interrupt])
    run = caught.value.run
    assert caught.value.signal == "SIGINT"
    assert isinstance(caught.value, KeyboardInterrupt)
    assert 50 <= run.stats.steps < 60
    assert run.history.step[-1] == run.stats.steps, "the loss is that of the last step"
    assert f"SIGINT ended the run after {run.stats.steps} steps" in run.stats.advice
