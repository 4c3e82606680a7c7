"""Workers that leave in order: nobody has failed, and what they compute is delivered."""

import logging

import numpy as np
import pytest

import nowait as nw
from faulty import Faulty
from nowait.core import WorkerJoined, WorkerLost
from nowait.engines.workers.actions import (
    Began,
    Dismiss,
    Kill,
    Look,
    Note,
    Raised,
    Release,
    Requested,
    Retire,
    Start,
    Tell,
    Warn,
    WorkerLeaving,
)
from nowait.engines.workers.retired import RetiredChannel
from nowait.engines.workers.transport import HOME, Died, Gone, Leaving, Opened
from nowait.engines.workers.workforce import Workforce
from nowait.fleet.wire.records import EVALUATOR, Instruction
from nowait.testing import CATALOGUE, train_scripted
from nowait.testing.scripted import Call, Die, Hang, Leave, LeaveWorker, Lose, Open, Report, Wait

ASYNCHRONOUS = nw.AsynchronousSGD(nw.DelayAdaptive(0.05))
TICKET = (1, 0, 0, 0, 0.0)


def two_places(workers=2, capacity=2, busy=(), **options):
    """A workforce with all workers in place 1; place 2 opens empty."""
    workforce = Workforce(wanted=range(workers), **options)
    workforce.handle(Opened(HOME, 0), 0.0)
    workforce.handle(Opened(1, capacity), 0.0)
    workforce.begin(range(workers), 0.0)
    workforce.handle(Began(), 0.0)
    workforce.handle(Opened(2, capacity), 0.0)
    for worker in busy:
        workforce.states[worker].ticket = TICKET
    return workforce


def kinds(actions):
    return [type(action) for action in actions]


def told(actions):
    return [action.event for action in actions if isinstance(action, Tell)]


def places(actions):
    return [action.state.place for action in actions if isinstance(action, Start)]


# Decisions


def test_idle_workers_of_a_leaving_place_leave_at_once_and_the_place_is_dismissed():
    workforce = two_places()
    actions = workforce.handle(Leaving(1, 30.0), 1.0)
    departure = [Kill, Release, Tell]
    assert kinds(actions) == [Note, *departure, Start, Tell, *departure, Dismiss, Start, Tell]
    assert told(actions) == [WorkerLost(0, 1.0), WorkerJoined(0, 1.0), WorkerLost(1, 1.0), WorkerJoined(1, 1.0)]
    assert places(actions) == [2, 2]
    assert Dismiss(1) in actions


def test_a_busy_worker_leaves_when_it_has_reported():
    workforce = two_places(workers=1, busy=[0])
    state = workforce.states[0]
    assert kinds(workforce.handle(Leaving(1, 30.0), 1.0)) == [Note, Retire]
    assert workforce.handle(Look(), 2.0) == []
    assert not workforce.has_requests
    workforce.retired(state)
    assert workforce.has_requests
    actions = workforce.handle(Requested(), 3.0)
    assert kinds(actions) == [Kill, Release, Tell, Dismiss, Start, Tell]
    assert actions[1].state is state
    assert places(actions) == [2]
    assert not workforce.has_requests
    assert workforce.handle(Died(state.serial, -9), 3.1) == []


def test_a_worker_that_gets_no_ticket_after_its_last_gradient_leaves_at_the_next_look():
    workforce = two_places(workers=1, busy=[0])
    workforce.handle(Leaving(1, 30.0), 1.0)
    workforce.states[0].ticket = None
    assert kinds(workforce.handle(Look(), 2.0)) == [Kill, Release, Tell, Dismiss, Start, Tell]


def test_no_worker_is_started_in_a_place_that_leaves():
    workforce = two_places(workers=1, capacity=1, busy=[0])
    workforce.handle(Leaving(2, 30.0), 0.5)
    assert workforce.room == 0
    workforce.request_join()
    assert workforce.handle(Requested(), 1.0) == []
    assert workforce.vacant == [1]


def test_numbers_for_which_there_is_no_room_wait_and_are_wanted_by_a_resumed_run():
    workforce = two_places(capacity=2)
    workforce.handle(Leaving(2, 30.0), 0.5)
    actions = workforce.handle(Leaving(1, 30.0), 1.0)
    assert told(actions) == [WorkerLost(0, 1.0), WorkerLost(1, 1.0)]
    assert workforce.vacant == workforce.wanted_workers() == [0, 1]
    assert places(workforce.handle(Opened(3, 2), 2.0)) == [3, 3]


def test_when_the_time_is_over_the_others_leave_too_before_they_are_replaced():
    workforce = two_places(busy=[0, 1])
    workforce.handle(Leaving(1, 30.0), 1.0)
    assert workforce.handle(Look(), 30.9) == []
    actions = workforce.handle(Look(), 31.0)
    departure = [Kill, Release, Tell]
    assert kinds(actions) == [Note, *departure, *departure, Dismiss, Start, Tell, Start, Tell]
    assert actions[0].message == "a host leaves before workers [0, 1] have delivered what they compute"


def test_the_earlier_of_two_ends_counts():
    workforce = two_places(workers=1, busy=[0])
    workforce.handle(Leaving(1, 30.0), 0.0)
    assert workforce.handle(Leaving(1, 5.0), 1.0) == []
    assert workforce.handle(Leaving(1, 500.0), 2.0) == []
    assert Dismiss(1) in workforce.handle(Look(), 6.0)


def test_a_leaving_place_that_is_gone_early_has_not_failed():
    workforce = two_places(busy=[0, 1], max_failures=0)
    workforce.handle(Leaving(1, 30.0), 1.0)
    actions = workforce.handle(Gone(1, "the host is lost"), 2.0)
    assert kinds(actions) == [Note, Release, Tell, Release, Tell, Start, Tell, Start, Tell]
    assert actions[0].message == "the host is lost, and workers [0, 1] with it, as announced"
    assert workforce.failures.troubled == set()


def test_a_place_that_leaves_before_it_was_opened_is_dismissed():
    assert Workforce().handle(Leaving(5, 30.0), 0.0) == [Dismiss(5)]


def test_a_worker_process_that_leaves_is_replaced_where_it_was():
    workforce = two_places(busy=[1], max_failures=0)
    state = workforce.states[1]
    assert kinds(workforce.handle(WorkerLeaving(state.serial), 1.0)) == [Note, Retire]
    assert workforce.handle(WorkerLeaving(state.serial), 1.0) == [], "it is told once"
    workforce.retired(state)
    actions = workforce.handle(Requested(), 2.0)
    assert kinds(actions) == [Kill, Release, Tell, Start, Tell]
    assert places(actions) == [1]
    assert workforce.failures.troubled == set()
    assert workforce.handle(WorkerLeaving(state.serial), 3.0) == [], "that process is gone"


def test_a_leaving_worker_that_raises_is_lost_once_and_goes_on_elsewhere():
    workforce = two_places(busy=[0])
    workforce.handle(Leaving(1, 30.0), 1.0)
    actions = workforce.handle(Raised(0, "ValueError at x:1", "its traceback", any_gradient=True), 2.0)
    assert told(actions) == [WorkerLost(0, 2.0), WorkerJoined(0, 2.0)]
    assert places(actions) == [2]
    assert Warn("worker 0 raised:\nits traceback") in actions
    assert Dismiss(1) in actions


@pytest.mark.parametrize("code", [-9, -15, 1])
def test_the_death_of_a_leaving_worker_is_not_a_failure(code):
    workforce = two_places(busy=[0], max_failures=0)
    state = workforce.states[0]
    workforce.handle(WorkerLeaving(state.serial), 1.0)
    actions = workforce.handle(Died(state.serial, code), 2.0)
    assert kinds(actions) == [Note, Release, Tell, Start, Tell]
    assert workforce.failures.troubled == set()
    workforce.retired(state)
    assert workforce.handle(Requested(), 2.0) == [], "it has left already"


def test_places_without_workers_are_dismissed_after_a_while_but_never_home():
    workforce = two_places(workers=2, idle_seconds=60.0)
    assert workforce.handle(Look(), 59.0) == []
    assert kinds(workforce.handle(Look(), 60.0)) == [Note, Dismiss]
    for worker in (0, 1):
        workforce.request_leave(worker)
    workforce.request_join()
    workforce.handle(Requested(), 70.0)
    assert workforce.handle(Look(), 500.0) == [], "place 1 has a worker again"


def test_a_place_is_idle_from_when_its_last_worker_left():
    workforce = two_places(workers=1, busy=[0], idle_seconds=60.0)
    workforce.handle(Leaving(2, 1.0), 0.0)
    workforce.request_leave(0)
    workforce.request_join()
    state = workforce.states[0]
    workforce.handle(Opened(3, 1, distance=-1), 40.0)
    workforce.handle(Requested(), 50.0)
    assert state.released
    assert workforce.handle(Look(), 109.0) == []
    assert workforce.handle(Look(), 110.0)[1] == Dismiss(1)


def test_a_place_for_workers_that_are_about_to_leave_another_one_is_kept():
    workforce = two_places(workers=1, busy=[0], idle_seconds=60.0)
    workforce.handle(Leaving(1, 500.0), 1.0)
    assert workforce.handle(Look(), 100.0) == []
    workforce.states[0].ticket = None
    assert places(workforce.handle(Look(), 101.0)) == [2]


def test_a_retired_channel_passes_only_hurry_on():
    sent, delivered = [], []

    class Channel:
        def send(self, *order):
            sent.append(order)

        def close(self):
            sent.append("closed")

    channel = RetiredChannel(Channel(), lambda: delivered.append(True))
    channel.send(7, 0, 0, Instruction.HURRY)
    channel.send(8, 1, 2, Instruction.KEEP)
    channel.close()
    assert sent == [(7, 0, 0, Instruction.HURRY), "closed"]
    assert delivered == [True]


# Runs


def events(run):
    return [("joined" if event["kind"] == 0 else "lost", int(event["worker"])) for event in run.trace.events]


def check_that_it_replays(run, problem, method=ASYNCHRONOUS):
    again = nw.replay(run.trace, problem, method)
    assert np.array_equal(again.last, run.last)
    assert again.stats.lost == run.stats.lost


def elsewhere(*script, **options):
    """A run whose two workers are in place 1, with room for two in place 2; returns it with its transport."""
    seen = []
    opening = [Report(EVALUATOR), Open(1, 2), Open(2, 2)]
    run = train_scripted(
        Faulty(), ASYNCHRONOUS, workers=2, steps=40, script=[*opening, *script], capacity=0, look=seen.append, **options
    )
    return run, seen[0].transport


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno > logging.INFO]


def test_the_gradients_of_a_leaving_host_count_and_its_workers_go_on_elsewhere(caplog):
    caplog.set_level(logging.INFO, "nowait")
    run, transport = elsewhere(Report(0), Report(1), Leave(1), Report(0), Report(1))
    assert run.trace.worker[:4].tolist() == [0, 1, 0, 1], "both deliver after the announcement"
    assert transport.dismissed == [1]
    assert transport.started[-2:] == [(0, 2), (1, 2)]
    assert events(run)[-4:] == [("lost", 0), ("joined", 0), ("lost", 1), ("joined", 1)]
    assert run.stats.lost == 2 + 2, "before there was room, and those that came with their last gradients"
    assert warnings(caplog) == []
    assert "its workers [0, 1] deliver what they compute" in caplog.text
    check_that_it_replays(run, Faulty())


def test_a_host_that_is_killed_before_it_has_delivered_costs_its_tickets(caplog):
    run, transport = elsewhere(Report(0), Leave(1), Report(0), Lose(1))
    assert transport.started[-2:] == [(0, 2), (1, 2)]
    assert transport.dismissed == []
    assert run.stats.lost == 2 + 2
    assert warnings(caplog) == []
    check_that_it_replays(run, Faulty())


def test_a_worker_that_hangs_in_a_leaving_host_is_given_up_at_the_end_of_its_time(caplog):
    run, transport = elsewhere(Report(0), Hang(1), Leave(1, 5.0), Report(0), Wait(4.0), Wait(1.5))
    assert transport.dismissed == [1]
    assert transport.started[-2:] == [(0, 2), (1, 2)]
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
    run = train_scripted(Faulty(), method, workers=4, steps=25, script=script, capacity=0)
    assert run.stats.steps == 25
    assert warnings(caplog) == []
    check_that_it_replays(run, Faulty(), method)


def test_a_worker_that_imitates_a_slow_one_is_still_told_to_hurry(caplog):
    """Rennala cancels what the others compute; the leaving one is among them."""
    seen = []
    method = nw.RennalaSGD(nw.Constant(0.1), batch=1)
    script = [Report(EVALUATOR), LeaveWorker(1), Report(0), Report(1)]
    run = train_scripted(Faulty(), method, workers=2, steps=20, script=script, look=seen.append, slowdown={1: 2.0})
    assert seen[0].transport.hurried[0][0] == 1
    assert events(run)[:2] == [("lost", 1), ("joined", 1)]


def test_a_run_may_end_while_workers_leave():
    stop = []

    def on_step(control):
        if stop:
            control.stop()

    script = [Report(EVALUATOR), Report(0), LeaveWorker(1), Call(lambda: stop.append(True)), Report(0), Report(1)]
    run = train_scripted(Faulty(), ASYNCHRONOUS, workers=2, steps=40, script=script, callbacks=[on_step])
    assert run.stats.steps == 2
