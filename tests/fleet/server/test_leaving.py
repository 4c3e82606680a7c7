"""Runs whose workers and hosts leave in order: nobody has failed, and what they compute is delivered."""

import logging

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty
from nowait.fleet.wire.records import EVALUATOR
from nowait.testing import CATALOGUE, train_scripted
from nowait.testing.scripted import Call, Die, Hang, Leave, LeaveWorker, Lose, Open, Report, Wait

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))


def events(run):
    return [("joined" if event["kind"] == 0 else "lost", int(event["worker"])) for event in run.trace.events]


def check_that_it_replays(run, problem, method=ASYNCHRONOUS):
    again = nw.replay(run.trace, problem, method)
    assert np.array_equal(again.last, run.last)
    assert again.stats.lost == run.stats.lost


def elsewhere(*script, **options):
    """A run whose two workers are on host 1, with seats for two on host 2; returns it with its hosts."""
    seen = []
    opening = [Report(EVALUATOR), Open(1, 2), Open(2, 2)]
    run = train_scripted(
        Faulty(), ASYNCHRONOUS, workers=2, steps=40, script=[*opening, *script], seats=0, look=seen.append, **options
    )
    return run, seen[0].hosts


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno > logging.INFO]


def test_the_gradients_of_a_leaving_host_count_and_its_workers_go_on_elsewhere(caplog):
    caplog.set_level(logging.INFO, "nowait")
    run, hosts = elsewhere(Report(0), Report(1), Leave(1), Report(0), Report(1))
    assert run.trace.worker[:4].tolist() == [0, 1, 0, 1], "both deliver after the announcement"
    assert hosts.ended == [1]
    assert hosts.started[-2:] == [(0, 2), (1, 2)]
    assert events(run)[-4:] == [("lost", 0), ("joined", 0), ("lost", 1), ("joined", 1)]
    assert run.stats.lost == 2 + 2, "before there was room, and those that came with their last gradients"
    assert warnings(caplog) == []
    assert "its workers [0, 1] deliver what they compute" in caplog.text
    check_that_it_replays(run, Faulty())


def test_a_host_that_is_killed_before_it_has_delivered_costs_its_tickets(caplog):
    run, hosts = elsewhere(Report(0), Leave(1), Report(0), Lose(1))
    assert hosts.started[-2:] == [(0, 2), (1, 2)]
    assert hosts.ended == []
    assert run.stats.lost == 2 + 2
    assert warnings(caplog) == []
    check_that_it_replays(run, Faulty())


def test_a_worker_that_hangs_in_a_leaving_host_is_given_up_at_the_end_of_its_time(caplog):
    run, hosts = elsewhere(Report(0), Hang(1), Leave(1, 5.0), Report(0), Wait(4.0), Report(0), Wait(1.5))
    assert hosts.ended == [1]
    assert hosts.started[-2:] == [(0, 2), (1, 2)]
    assert warnings(caplog) == []
    check_that_it_replays(run, Faulty())


def test_a_worker_process_that_is_told_to_leave_delivers_and_is_replaced(caplog):
    seen = []
    script = [Report(EVALUATOR), Report(0), LeaveWorker(1), Report(0), Report(1), LeaveWorker(0), Die(0, -15)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=40, script=script, look=seen.append, max_failures=0)
    assert run.trace.worker[:3].tolist() == [0, 0, 1]
    assert events(run) == [("lost", 1), ("joined", 1), ("lost", 0), ("joined", 0)]
    assert warnings(caplog) == []
    check_that_it_replays(run, Faulty())


@pytest.mark.parametrize("name", ["MinibatchSGD", "RennalaSGD", "RingleaderASGD", "RandomAssignment", "MindFlayerSGD"])
def test_methods_of_all_kinds_go_on_when_workers_leave(name, caplog):
    method = CATALOGUE[name]
    script = [Open(1, 2), Open(2, 4), *[Report()] * 9, Leave(1), *[Report()] * 9, LeaveWorker(2), *[Report()] * 5]
    run = train_scripted(Faulty(), method, workers=4, steps=25, script=script, seats=0)
    assert run.stats.steps == 25
    assert warnings(caplog) == []
    check_that_it_replays(run, Faulty(), method)


def test_a_worker_that_imitates_a_slow_one_is_still_told_to_hurry(caplog):
    """Rennala cancels what the others compute; the leaving one is among them."""
    seen = []
    method = nw.RennalaSGD(nw.Constant(0.1), batch=1)
    script = [Report(EVALUATOR), LeaveWorker(1), Report(0), Report(1)]
    run = train_scripted(Faulty(), method, workers=2, steps=20, script=script, look=seen.append, slowdown={1: 2.0})
    assert seen[0].hosts.hurried[0][0] == 1
    assert events(run)[:2] == [("lost", 1), ("joined", 1)]


def test_a_run_may_end_while_workers_leave():
    stop = []

    def on_step(control):
        if stop:
            control.stop()

    script = [Report(EVALUATOR), Report(0), LeaveWorker(1), Call(lambda: stop.append(True)), Report(0), Report(1)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=40, script=script, callbacks=[on_step])
    assert run.stats.steps == 2
