"""Speed models: durations, order, state."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.core import Ticket
from nowait.speeds.clock import HeapClock, OrderClock

SPEEDS = nw.speeds
FOREVER = 1e300


def durations(speeds, worker=0, count=20_000, seed=0):
    timing = speeds.timing(seed)
    return np.array([timing(worker, job, 0.0)[0] for job in range(count)])


def test_random_durations_have_their_distributions():
    exponential = durations(SPEEDS.Exponential([1.0, 3.0]), worker=1)
    assert exponential.mean() == pytest.approx(3.0, rel=0.03)
    assert exponential.std() == pytest.approx(3.0, rel=0.05)
    lognormal = np.log(durations(SPEEDS.LogNormal(2.0, sigma=0.7, workers=1)))
    assert lognormal.mean() == pytest.approx(math.log(2.0), abs=0.02)
    assert lognormal.std() == pytest.approx(0.7, rel=0.02)
    pareto = durations(SPEEDS.Pareto(2.0, shape=1.5, workers=1))
    assert pareto.min() >= 2.0
    assert (pareto > 4.0).mean() == pytest.approx(0.5**1.5, rel=0.05)
    half_normal = durations(SPEEDS.HalfNormal(2.0, scale=3.0, workers=1))
    assert half_normal.min() >= 2.0
    assert half_normal.mean() == pytest.approx(2.0 + 3.0 * math.sqrt(2 / math.pi), rel=0.02)
    assert (half_normal > 5.0).mean() == pytest.approx(0.317, abs=0.01)


def test_durations_are_a_pure_function_of_seed_worker_and_job():
    speeds = SPEEDS.Exponential(1.0, workers=3)
    forwards, backwards = speeds.timing(5), speeds.timing(5)
    jobs = [(worker, job) for worker in range(3) for job in range(5)]
    drawn = [forwards(worker, job, 0.0) for worker, job in jobs]
    assert drawn == [backwards(worker, job, 0.0) for worker, job in reversed(jobs)][::-1]
    assert len(set(drawn)) == 15
    assert drawn[0] != speeds.timing(6)(0, 0, 0.0)


def test_a_time_varying_ticket_ends_when_the_integral_of_its_rate_reaches_one():
    def rate(worker, time):
        return 1.0 + 0.9 * math.sin(time)

    timing = SPEEDS.TimeVarying(rate, workers=2).timing(0)
    for start in (0.0, 1.0, 2.5, 100.0):
        seconds, finish = timing(0, 0, start)
        work = seconds - 0.9 * (math.cos(finish) - math.cos(start))
        assert work == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize(
    ("start", "finish"), [(0.0, 0.5), (9.9, 10.9 + 0.7), (10.0, 12.0), (9.5, 10.0), (20.0, 31.0), (25.0, 31.0)]
)
def test_a_rate_may_jump_and_rest(start, finish):
    """The rate is 2 gradients per second until time 10, 0.5 until 20, 0 until 30, then 1."""

    def rate(worker, time):
        return 2.0 if time < 10 else 0.5 if time < 20 else 0.0 if time < 30 else 1.0

    assert SPEEDS.TimeVarying(rate, workers=1).timing(0)(0, 0, start)[1] == pytest.approx(finish, abs=1e-6)


def test_a_rate_of_zero_never_ends(caplog):
    speeds = SPEEDS.TimeVarying(lambda worker, time: 0.0 if worker else 1.0, workers=2, resolution=1e6)
    assert speeds.timing(0)(1, 0, 0.0)[1] == math.inf
    problem, method = nw.problems.NoisyQuadratic(3), nw.AsynchronousSGD(nw.Constant(0.1))
    run = nw.simulate(problem, method, speeds, steps=20)
    assert run.stats.work_share.tolist() == [1.0, 0.0]
    stuck = SPEEDS.TimeVarying(lambda worker, time: 0.0, workers=1, resolution=1e6)
    run = nw.simulate(problem, method, stuck, steps=20)
    assert run.stats.steps == 0
    assert "no worker will ever finish" in run.stats.advice
    assert "no worker will ever finish" in caplog.text


def test_a_rate_that_fades_never_ends():
    fading = SPEEDS.TimeVarying(lambda worker, time: 1 / (1 + time) ** 2, workers=2)
    assert fading.timing(0)(0, 0, 1.0)[1] == math.inf


@pytest.mark.parametrize(
    "speeds", [SPEEDS.Pareto(1.0, shape=0.001, workers=1), SPEEDS.LogNormal(1.0, sigma=900, workers=1)]
)
def test_a_tail_too_heavy_for_a_float_is_infinite(speeds):
    timing = speeds.timing(0)
    seconds = [timing(0, job, 0.0)[0] for job in range(200)]
    assert math.inf in seconds
    assert min(seconds) < 1e300


def test_an_outage_pauses_a_ticket():
    speeds = SPEEDS.UpDown(1.0, up=2.0, down=5.0, workers=1)
    timing = speeds.timing(0)
    seconds = [timing(0, job, 30.0 * job)[0] for job in range(500)]
    assert min(seconds) == 1.0
    assert np.mean([second > 1.0 for second in seconds]) > 0.3
    again = speeds.timing(0)
    assert [again(0, job, 30.0 * job)[0] for job in range(500)] == seconds
    assert timing(0, 0, 0.0)[0] == seconds[0], "asking about the past again gives the same answer"


def test_up_and_down_shares_are_as_asked():
    timing = SPEEDS.UpDown(1.0, up=20.0, down=10.0, workers=1).timing(3)
    time = 0.0
    for _ in range(20_000):
        time = timing(0, 0, time)[1]
    assert 20_000 / time == pytest.approx(2 / 3, rel=0.05)


def test_communication_adds_to_both_ends():
    speeds = SPEEDS.Communication(SPEEDS.Fixed([1.0, 2.0]), down=[0.5, 0.0], up=0.25)
    assert speeds.timing(0)(0, 0, 10.0) == (1.0, 11.75)
    assert speeds.timing(0)(1, 0, 10.0) == (2.0, 12.25)
    problem, method = nw.problems.NoisyQuadratic(3), nw.AsynchronousSGD(nw.Constant(0.1))
    trace = nw.simulate(problem, method, speeds, steps=30).trace
    assert set(trace.compute_seconds[trace.worker == 0]) == {1.0}
    assert np.allclose((trace.time - trace.started)[trace.worker == 0], 1.75)


def test_workers_past_the_given_ones_take_their_speeds_in_turn():
    timing = SPEEDS.Fixed([1.0, 2.0]).timing(0)
    assert [timing(worker, 0, 0.0)[0] for worker in range(4)] == [1.0, 2.0, 1.0, 2.0]


def test_durations_by_sample_see_the_sample_the_gradient_is_drawn_from():
    seen = {}

    class Watching:
        dimension = 1

        def initial(self):
            return np.zeros(1)

        def gradient(self, point, sample):
            seen[sample.worker, sample.job] = sample.index(2)
            return np.zeros(1)

        def loss(self, point):
            return 0.0

    speeds = SPEEDS.BySample([1.0, 2.0], lambda sample: 10.0 if sample.index(2) else 1.0)
    trace = nw.simulate(Watching(), nw.AsynchronousSGD(nw.Constant(0.1)), speeds, steps=60).trace
    assert len(seen) == 60
    for worker, job, seconds in zip(trace.worker, trace.job, trace.compute_seconds, strict=True):
        assert seconds == [1.0, 2.0][worker] * (10.0 if seen[worker, job] else 1.0)


# Clocks


def tickets(count):
    return [Ticket(id=number, worker=number, version=0, job=0) for number in range(count)]


def test_simultaneous_arrivals_are_ordered_by_ticket_id():
    clock = HeapClock(lambda worker, job, start: (1.0, start + 1.0))
    for ticket in reversed(tickets(5)):
        clock.start(ticket, 0.0)
    assert [clock.pop(FOREVER)[1] for _ in range(5)] == [0, 1, 2, 3, 4]
    assert clock.pop(FOREVER) is None


def test_a_clock_waits_for_its_limit():
    clock = HeapClock(lambda worker, job, start: (1.0, start + 1.0))
    clock.start(tickets(1)[0], 0.0)
    assert clock.pop(0.5) is None
    assert clock.pop(1.0) is not None


def test_cancelled_tickets_do_not_pile_up():
    """The heap stays small when the tickets of a slow worker are cancelled again and again."""
    clock = HeapClock(lambda worker, job, start: (1e6, start + 1e6))
    for number in range(10_000):
        ticket = Ticket(id=number, worker=0, version=0, job=number)
        clock.start(ticket, 0.0)
        if number < 9_999:
            clock.cancel(ticket)
    assert len(clock._heap) < 200
    assert clock.pop(FOREVER)[1] == 9_999
    assert clock.pop(FOREVER) is None


def test_the_adversarys_order_repeats_and_passes_over_workers_without_a_ticket():
    clock = OrderClock([2, 0, 0, 1])
    for ticket in tickets(2):
        clock.start(ticket, 0.0)
    assert clock.pop(FOREVER)[2].worker == 0
    assert clock.pop(FOREVER)[2].worker == 1
    assert clock.pop(FOREVER) is None
    clock.start(tickets(3)[2], 2.0)
    assert clock.pop(FOREVER)[:2] == (3.0, 2)


# Bad arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SPEEDS.Fixed([]), "seconds is empty: at least one worker has to compute gradients"),
        (lambda: SPEEDS.Fixed([1.0, -2.0]), r"seconds\[1\] must be a finite number above 0, got -2.0"),
        (lambda: SPEEDS.Fixed([1.0, math.nan]), r"seconds\[1\] must be a finite number above 0, got nan"),
        (lambda: SPEEDS.Fixed(0, workers=3), "seconds must be a finite number above 0, got 0"),
        (lambda: SPEEDS.Fixed(1.0), "pass the number of workers as workers="),
        (lambda: SPEEDS.Fixed(1.0, workers=0), "workers must be an integer of at least 1, got 0"),
        (lambda: SPEEDS.Fixed([1.0, 2.0], workers=3), "seconds has 2 values, but workers=3"),
        (lambda: SPEEDS.Fixed("fast"), "seconds must be a number or a list with one value per worker, got 'fast'"),
        (lambda: SPEEDS.Exponential([1.0, "2"]), r"means\[1\] must be a finite number above 0, got '2'"),
        (lambda: SPEEDS.LogNormal([1.0, 1.0], sigma=-1.0), "sigma must be a finite number of at least 0"),
        (lambda: SPEEDS.LogNormal([1.0, 1.0], sigma=[1.0]), "sigma has 1 values for 2 workers"),
        (lambda: SPEEDS.Pareto(1.0, shape=0, workers=2), "shape must be a finite number above 0"),
        (lambda: SPEEDS.TimeVarying(3.0, workers=2), r"rate must be a function of \(worker, time\)"),
        (lambda: SPEEDS.TimeVarying(lambda worker, time: 1.0, workers=0), "workers must be an integer of at least 1"),
        (lambda: SPEEDS.TimeVarying(lambda worker, time: -1.0, workers=1).timing(0)(0, 0, 0.0), "rate.* got -1.0"),
        (lambda: SPEEDS.UpDown(1.0, up=0.0, down=1.0, workers=1), "up must be a finite number above 0"),
        (lambda: SPEEDS.Adversary([]), "order is empty: no gradient would ever arrive"),
        (lambda: SPEEDS.Adversary([0, -1]), r"order\[1\] must be a worker number of at least 0, got -1"),
        (lambda: SPEEDS.BySample(1.0, 3.0, workers=1), "factor must be a function of the sample"),
        (lambda: SPEEDS.BySample(1.0, lambda sample: 0.0, workers=1).timing(0)(0, 0, 0.0), "factor.sample. must be"),
        (lambda: SPEEDS.Communication(SPEEDS.Adversary([0])), "Communication cannot wrap Adversary"),
        (lambda: SPEEDS.Communication(1.0), "speeds must be a nowait Speeds"),
        (lambda: SPEEDS.Communication(SPEEDS.Fixed([1.0]), up=-1.0), "up must be a finite number of at least 0"),
        (lambda: SPEEDS.Faults([(1.0, "quit", 0)]), r"faults\[0\] is 'quit': it must be 'leave' or 'join'"),
        (
            lambda: SPEEDS.Faults([(-1.0, "leave", 0)]),
            r"the time of faults\[0\] must be a finite number of at least 0, got -1.0",
        ),
        (lambda: SPEEDS.Faults([(1.0, "leave", -1)]), r"the worker of faults\[0\] must be an integer of at least 0"),
        (lambda: SPEEDS.Faults([(1.0, "join", 10**12)]), "take numbers of at most 10,000,000"),
        (lambda: SPEEDS.Adversary([0, 5], workers=2), "workers must be an integer of at least 6, got 2"),
        (lambda: SPEEDS.Faults([(1.0, "leave")]), r"faults\[0\] must be \(time, 'leave' or 'join', worker\)"),
        (
            lambda: SPEEDS.Faults([(1.0, "leave", 0), (2.0, "leave", 0)]),
            r'worker 0 has two "leave" entries in a row \(the second at t=2\)',
        ),
        (lambda: SPEEDS.Faults("leave"), "faults are a list"),
    ],
)
def test_bad_arguments_of_speeds(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_recorded_times_are_those_of_the_run_in_their_order():
    problem, method = nw.problems.NoisyQuadratic(dimension=3), nw.AsynchronousSGD(nw.Constant(0.1))
    run = nw.simulate(problem, method, nw.speeds.Exponential([0.1, 1.0, 3.0]), steps=200)
    last = min(run.trace.time[run.trace.worker == worker].max() for worker in range(3))
    before_any_is_repeated = run.trace.time <= last
    again = nw.simulate(problem, method, nw.speeds.Recorded(run.trace), seconds=last * (1 + 1e-9))
    assert np.array_equal(again.trace.worker, run.trace.worker[before_any_is_repeated])
    np.testing.assert_allclose(again.trace.time, run.trace.time[before_any_is_repeated])
    longer = nw.simulate(problem, method, nw.speeds.Recorded(run.trace), steps=900)
    mine = longer.trace.compute_seconds[longer.trace.worker == 1]
    recorded = run.trace.compute_seconds[run.trace.worker == 1]
    assert np.array_equal(mine, np.resize(recorded, len(mine))), "and over and over again"


def test_workers_without_recorded_times_take_those_of_others():
    problem, method = nw.problems.NoisyQuadratic(dimension=3), nw.AsynchronousSGD(nw.Constant(0.1))
    run = nw.simulate(problem, method, nw.speeds.Fixed([1.0, 2.0, 100.0]), steps=20)
    assert set(run.trace.worker) == {0, 1}
    timing = nw.speeds.Recorded(run.trace).timing(0)
    assert [timing(worker, 0, 10.0) for worker in (2, 3, 4)] == [(1.0, 11.0), (1.0, 11.0), (2.0, 12.0)]


def test_recorded_wants_a_trace_with_arrivals():
    with pytest.raises(TypeError, match=r"trace must be the trace of a run, as in Recorded\(run.trace\)"):
        nw.speeds.Recorded([1.0, 2.0])


def test_recorded_has_times_for_every_worker_of_the_run_and_no_more():
    run = nw.simulate(
        nw.problems.NoisyQuadratic(dimension=2), nw.AsynchronousSGD(0.1), nw.speeds.Fixed([1.0, 2.0, 3.0]), steps=20
    )
    assert len(nw.speeds.Recorded(run.trace).seconds) == 3
