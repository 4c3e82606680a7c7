"""``start="together"``: the clock starts, and workers get their first tickets, when all of them are ready."""

import logging
import signal

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty
from nowait.engines.workers.clock import RunClock
from nowait.engines.workers.failures import FIRST_DEADLINE
from nowait.fleet.wire.records import EVALUATOR
from nowait.testing import CATALOGUE, train_scripted
from nowait.testing.scripted import Call, Die, Hang, Lose, Report, Wait

METHOD = nw.AsynchronousSGD(nw.Constant(0.05))


def together(script=(), workers=3, steps=12, method=METHOD, **options):
    seen = []
    run = train_scripted(
        Faulty(), method, workers=workers, steps=steps, script=script, together=True, look=seen.append, **options
    )
    return run, seen[0].transport


def test_the_clock_stands_still_until_the_last_worker_is_ready():
    ready = [Report(EVALUATOR), Report(0), Report(1), Wait(50.0), Report(2)]
    run, _ = together([*ready, Report(2, seconds=0.01)])
    assert run.stats.seconds < 1.0
    assert run.trace.worker[0] == 2
    assert run.trace.started[0] == pytest.approx(0.0)
    assert run.trace.time[0] == pytest.approx(0.01)


def test_the_first_tickets_are_those_of_a_run_that_starts_immediately():
    run, _ = together()
    usual = train_scripted(Faulty(), METHOD, workers=3, steps=12)
    assert np.array_equal(run.trace.worker, usual.trace.worker)
    assert np.array_equal(run.trace.delay, usual.trace.delay)
    assert np.array_equal(run.params, usual.params)


def test_the_initial_loss_is_waited_for():
    run, _ = together([Report(0), Report(1), Report(2), Wait(50.0), Report(EVALUATOR)])
    assert run.history.step[0] == 0
    assert run.stats.seconds < 1.0


def test_a_worker_that_dies_before_the_start_is_replaced_and_waited_for():
    run, transport = together([Report(0), Die(1), Report(2), Report(EVALUATOR), Wait(50.0), Report(1)])
    assert [worker for worker, _ in transport.started] == [EVALUATOR, 0, 1, 2, 1]
    assert run.stats.seconds < 1.0
    assert set(run.trace.worker) == {0, 1, 2}


def test_one_that_dies_again_joins_after_the_start():
    run, transport = together([Report(0), Die(1), Die(1), Report(2), Report(EVALUATOR)], steps=100)
    assert [worker for worker, _ in transport.started].count(1) == 3
    assert set(run.trace.worker) == {0, 1, 2}


def test_workers_of_a_place_that_is_lost_before_the_start_do_not_hold_it_up():
    run, _ = together([Report(0), Lose(), Wait(1.0)], steps=50)
    assert run.stats.steps == 50


def test_a_worker_that_is_never_ready_is_named_and_left_behind(caplog):
    with caplog.at_level(logging.WARNING, "nowait"):
        run, _ = together([Hang(1), Report(0), Report(2), Report(EVALUATOR)], steps=20)
    assert f"starts without workers [1], which were not ready after {FIRST_DEADLINE:.0f} s" in caplog.text
    assert run.stats.seconds < 10.0
    assert set(run.trace.worker) == {0, 2}


def test_a_run_whose_first_loss_takes_too_long_starts_without_it(caplog):
    with caplog.at_level(logging.WARNING, "nowait"):
        run, _ = together([Report(0), Report(1), Report(2), *[Wait(50.0)] * 3], steps=20)
    assert f"the run starts though its first loss was not known after {FIRST_DEADLINE:.0f} s" in caplog.text
    assert set(run.trace.worker) == {0, 1, 2}


def test_a_signal_before_the_start_ends_the_run():
    run, _ = together([Report(0), Call(lambda: signal.raise_signal(signal.SIGINT))], steps=None, seconds=1e6)
    assert run.stats.interrupted
    assert run.stats.steps == 0
    assert len(run.history) == 1


def test_a_resumed_run_goes_on_from_its_time():
    class Clock:
        time = 100.0

        def monotonic(self):
            return self.time

    wall = Clock()
    clock = RunClock(wall, before=7.0)
    clock.hold()
    wall.time += 50.0
    assert clock.read() == 7.0
    clock.start()
    wall.time += 1.0
    assert clock.read() == 8.0


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_method_can_start_together(name):
    run, transport = together(method=CATALOGUE[name], workers=4, steps=None, gradients=40)
    assert run.stats.gradients >= 40
    assert transport.open_channels == 0


def test_real_workers_start_together():
    run = nw.train(Faulty(), METHOD, workers=3, steps=60, start="together", progress=False)
    assert run.stats.steps == 60
    assert run.config["start"] == "together"
    assert run.trace.started.min() >= 0.0
    assert (run.trace.started <= run.trace.time).all()


def test_a_start_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r'start must be "immediately".*or "together".*got \'now\''):
        nw.train(Faulty(), METHOD, workers=2, steps=5, start="now")
