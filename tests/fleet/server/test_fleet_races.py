"""Races and gaps that earlier versions of the engine had, one test for each: they must not come back."""

import pytest
from fleets import begun, handle, on_hosts, only, order, report, serial_of, start_and_join

from nowait.fleet.server.events import (
    HOME,
    Began,
    EndHost,
    Evaluate,
    EvaluationAsked,
    Fail,
    FingerprintAsked,
    Fingerprinted,
    HostGone,
    HostLeaves,
    HostReady,
    Identify,
    Joined,
    Kill,
    LeaveAsked,
    Lost,
    OpenHome,
    ProcessDied,
    Raised,
    Released,
    Start,
    Tick,
    Warn,
)
from nowait.fleet.server.fleet import Fleet
from nowait.fleet.server.patience import FIRST_DEADLINE, FIRST_PAUSE, SHORTEST_DEADLINE
from nowait.fleet.server.workers import State
from nowait.fleet.wire.records import EVALUATOR, FINGERPRINTER


def test_home_that_is_killed_while_a_fingerprint_is_compared_opens_at_once_although_the_clock_of_the_run_restarts():
    """Its workers were absent for as long as the comparison had taken."""
    fleet = Fleet(workers=[0])
    handle(fleet, HostReady(HOME, 1), 1_000.0)
    handle(fleet, FingerprintAsked(), 1_000.0)
    handle(fleet, HostGone(HOME, "killed"), 1_100.0)
    handle(fleet, Began(), 1_100.1)
    assert handle(fleet, Tick(), 1_100.1) == [Lost(0), OpenHome()]
    opened = handle(fleet, HostReady(HOME, 1), 1_100.2)
    assert opened == [Start(HOME, EVALUATOR, 2), *start_and_join(HOME, 0, 3)]


def test_a_host_that_leaves_before_the_run_begins_keeps_its_end_although_the_clock_of_the_run_restarts():
    """Its end moved by as long as the workers had taken to be ready."""
    fleet = on_hosts(1, 1, workers=1, together=True)
    handle(fleet, Released(50.0), 50.0)
    order(fleet, 0, at=50.0)
    handle(fleet, HostLeaves(1, 5.0), 51.0)
    assert handle(fleet, Tick(), 55.9) == []
    assert handle(fleet, Tick(), 56.0)[1:] == [Kill(1, 2), Lost(0)]


def test_an_evaluator_that_hangs_while_the_run_waits_for_its_last_loss_is_replaced():
    """Nobody noticed, and the run waited for ever."""
    fleet = begun(replace_hung=True)
    handle(fleet, EvaluationAsked(1, 5))
    assert fleet.evaluated(1, 1.0)
    handle(fleet, EvaluationAsked(1, 9), 2.0)
    [warning, kill] = handle(fleet, Tick(), 2.0 + FIRST_DEADLINE)
    assert warning.message.startswith("the loss has been computed for 120 s")
    assert kill == Kill(HOME, 1)
    assert handle(fleet, ProcessDied(1, -9), 130.0)[1:] == [Start(HOME, EVALUATOR, 4), Evaluate(3, 1, 9)]


def test_a_worker_behind_a_slow_network_does_not_hang_because_its_gradients_are_computed_quickly():
    """The time since the order was compared with the seconds of computing: every gradient was named, or killed."""
    fleet, seconds = begun(replace_hung=True), 2 * SHORTEST_DEADLINE
    for ticket_id in range(1, 20):
        at = 20.0 * ticket_id
        order(fleet, 0, ticket_id, at)
        report(fleet, 0, ticket_id, at + seconds)  # it computed for 0.1 s of these, but that does not matter
        assert handle(fleet, Tick(), at + seconds) == []
    order(fleet, 0, 20, 500.0)
    assert handle(fleet, Tick(), 500.0 + seconds) == []


@pytest.mark.parametrize("reason", ["its host leaves", "its memory is full"])
def test_a_killed_worker_is_not_started_again_while_its_old_process_may_still_write_its_gradient(reason):
    """On the driver's node of Ray both processes have the same slot for their gradients."""
    fleet = on_hosts(1, 1, workers=1)
    order(fleet, 0)
    if reason == "its host leaves":
        handle(fleet, HostLeaves(1, 1.0))
        killed = handle(fleet, Tick(), 2.0)
    else:
        killed = handle(fleet, Raised(0, 1, "MemoryError", "", any_gradient=True), 2.0)
    assert killed[1:] == [Kill(1, 2), Lost(0)]
    assert handle(fleet, Tick(), 2.1) == []
    host = 2 if reason == "its host leaves" else 1
    assert handle(fleet, ProcessDied(2, -9), 2.2)[-2:] == start_and_join(host, 0, 3)


@pytest.mark.parametrize("first", ["the worker", "its host"])
def test_the_last_worker_of_a_leaving_host_and_the_host_itself_may_end_together(first):
    """The host was ended because of the worker, and then could not be found."""
    fleet = on_hosts(1, workers=1)
    handle(fleet, HostLeaves(1, 9.0))
    died, gone = ProcessDied(2, -9), HostGone(1, "the process that starts workers was killed")
    if first == "the worker":
        assert handle(fleet, died) == [EndHost(1)]
        assert handle(fleet, gone) == []
    else:
        assert len(handle(fleet, gone)) == 1
        assert handle(fleet, died) == []
    assert handle(fleet, HostLeaves(1, 9.0)) == [EndHost(1)], "an announcement that comes too late"


def test_the_run_folder_and_a_joining_host_may_ask_for_the_fingerprint_at_the_same_time():
    """Two processes answered under one number, and each took the details of the other."""
    fleet = Fleet(workers=[0])
    handle(fleet, HostReady(HOME, 1))
    started = [action for _ in range(2) for action in handle(fleet, FingerprintAsked())]
    assert started == [Start(HOME, FINGERPRINTER, 1)]
    assert handle(fleet, Fingerprinted(("a",))) == [Identify(("a",))]
    assert handle(fleet, FingerprintAsked()) == [], "its process has not ended"
    assert handle(fleet, ProcessDied(1, 0)) == []
    assert handle(fleet, Tick()) == [Start(HOME, FINGERPRINTER, 2)]


def test_a_leaving_worker_that_raises_departs_once():
    """It was lost, joined, and lost again."""
    fleet = on_hosts(1, 1, workers=1)
    order(fleet, 0)
    handle(fleet, HostLeaves(1, 9.0))
    actions = handle(fleet, Raised(0, 1, "E", "", any_gradient=True))
    actions += handle(fleet, ProcessDied(2, -9))
    assert only(actions, Lost, Joined) == [Lost(0), Joined(0)]


def test_only_the_first_loss_may_be_late_when_workers_start_together():
    """The run was said to start without workers []."""
    fleet = begun(together=True)
    for number in (0, 1):
        fleet.workers[number].ready = True
    handle(fleet, EvaluationAsked(0, 0))
    assert fleet.not_ready == []
    assert fleet.has_evaluator


def test_a_home_that_can_never_load_the_problem_again_fails_the_run_at_once():
    """It was opened again and again, each time after a longer pause."""
    fleet = begun()
    handle(fleet, HostGone(HOME, "killed"))
    assert handle(fleet, Tick()) == [OpenHome()]
    fail = Fail("workers could not load the problem:\nno such module")
    assert handle(fleet, HostGone(HOME, "no such module", lasting=True), 1.0) == [fail]


def test_an_evaluator_that_dies_at_once_is_not_restarted_as_fast_as_it_dies():
    """Its pause was computed, and not waited for."""
    fleet = begun()
    handle(fleet, ProcessDied(serial_of(fleet, EVALUATOR), 3))
    assert only(handle(fleet, ProcessDied(serial_of(fleet, EVALUATOR), 3), 1.0), Start) == []
    assert fleet.due == 1.0 + FIRST_PAUSE


def test_the_failures_of_workers_that_are_gone_do_not_slow_the_others_down():
    """As long as one worker had failed and not delivered since, every gradient of all workers took the long way."""
    fleet = begun(workers=3, max_failures=0)
    for number in range(3):
        order(fleet, number)
        report(fleet, number)
    handle(fleet, ProcessDied(serial_of(fleet, 0), 3))  # it is given up
    order(fleet, 1, 2)
    handle(fleet, Raised(1, 2, "E", "", any_gradient=True))
    handle(fleet, LeaveAsked(1))
    handle(fleet, Tick())  # it is removed
    assert fleet.workers[2].proven, "its reports go the short way"
    handle(fleet, ProcessDied(3, -9))
    handle(fleet, Tick())
    assert sorted(fleet.workers) == [EVALUATOR, 2]


def test_processes_that_were_killed_on_a_host_that_is_gone_are_forgotten():
    """They were kept for ever, because nobody reports their deaths."""
    fleet = on_hosts(2, 1, workers=3)
    handle(fleet, LeaveAsked(0))
    handle(fleet, Tick())
    assert fleet.workers[0].state is State.ENDING
    assert handle(fleet, HostGone(1, "gone")) == [Warn("gone, and workers [1] with it: they are replaced"), Lost(1)]
    handle(fleet, Tick())
    assert sorted(fleet.workers) == [EVALUATOR, 1, 2]
    assert [fleet.workers[number].serial for number in (EVALUATOR, 1, 2)] == [1, 0, 4]
