"""Workers that leave in order: nobody has failed, and what they compute is delivered."""

import pytest
from fleets import begun, handle, on_hosts, order, report, serial_of, start_and_join

from nowait.core import Ticket
from nowait.fleet.server.events import (
    Cancelled,
    EndHost,
    FingerprintAsked,
    Forget,
    HostGone,
    HostLeaves,
    HostReady,
    Instruct,
    JoinAsked,
    Kill,
    LeaveAsked,
    Lost,
    Note,
    ProcessDied,
    ProcessLeaves,
    Raised,
    Tick,
    Warn,
)
from nowait.fleet.server.fleet import Fleet
from nowait.fleet.server.patience import SECONDS_TO_DIE
from nowait.fleet.server.workers import State
from nowait.fleet.wire.records import EVALUATOR, FINGERPRINTER, HURRY


def two_hosts(workers=2, seats=2, busy=(), **options):
    """A fleet with all workers on host 1; host 2 is empty. Worker 0's process has serial number 2."""
    fleet = on_hosts(seats, seats, workers=workers, **options)
    for number in busy:
        order(fleet, number, 1 + number)
    return fleet


def leaving(numbers, seconds=30):
    return Note(f"a host leaves within {seconds} s: its workers {numbers} deliver what they compute")


# Hosts


def test_idle_workers_of_a_leaving_host_depart_at_once_and_the_host_is_ended_when_they_are_dead():
    fleet = two_hosts()
    departed = [Kill(1, 2), Lost(0), Kill(1, 3), Lost(1)]
    assert handle(fleet, HostLeaves(1, 30.0), 1.0) == [leaving([0, 1]), *departed]
    assert handle(fleet, Tick(), 1.1) == []
    assert handle(fleet, ProcessDied(2, -9), 1.2) == start_and_join(2, 0, 4)
    assert handle(fleet, ProcessDied(3, -9), 1.3) == [EndHost(1), *start_and_join(2, 1, 5)]


def test_a_busy_worker_departs_when_it_has_reported():
    fleet = two_hosts(workers=1, busy=[0])
    assert handle(fleet, HostLeaves(1, 30.0), 1.0) == [leaving([0])]
    [view] = fleet.views(1.0, jobs_of=lambda number: 1)
    assert view.state == "delivers, then leaves"
    assert handle(fleet, Tick(), 2.0) == []
    assert fleet.reported(0, 1, 3.0) == Ticket(1, 0, 0, 0)
    assert not order(fleet, 0, 2)[1], "the server does not know yet that it leaves"
    assert fleet.settle(3.0) == [Kill(1, 2), Lost(0)]
    fleet.check()
    assert handle(fleet, ProcessDied(2, -9), 3.1) == [EndHost(1), *start_and_join(2, 0, 3)]


def test_workers_that_compute_nothing_for_the_server_depart_at_once():
    fleet = two_hosts(workers=3, seats=3, busy=[0, 1])
    handle(fleet, Cancelled(1, (2,)))
    check = Ticket(-5, 0, 0, 0)
    fleet.lend(2, check, 0.0)
    departed = [Kill(1, 3), Lost(1), Kill(1, 4), Forget(check), Lost(2)]
    assert handle(fleet, HostLeaves(1, 30.0), 1.0) == [leaving([0, 1, 2]), *departed]


def test_no_worker_is_started_on_a_host_that_leaves():
    fleet = two_hosts(workers=1, seats=1, busy=[0])
    handle(fleet, HostLeaves(2, 30.0), 0.5)
    assert fleet.room == 0
    handle(fleet, JoinAsked())
    assert handle(fleet, Tick(), 1.0) == []
    assert fleet.missing(1.0) == 1


def test_an_empty_host_that_leaves_is_ended_at_once():
    assert handle(two_hosts(), HostLeaves(2, 30.0)) == [leaving([]), EndHost(2)]


def test_numbers_without_a_seat_wait_and_are_wanted_by_a_resumed_run():
    fleet = two_hosts()
    handle(fleet, HostLeaves(2, 30.0), 0.5)
    handle(fleet, HostLeaves(1, 30.0), 1.0)
    assert handle(fleet, ProcessDied(2, -9), 1.1) == []
    assert handle(fleet, ProcessDied(3, -9), 1.1) == [EndHost(1)]
    assert fleet.missing(1.1) == 2
    assert fleet.wanted() == [0, 1]
    assert handle(fleet, HostReady(3, 2), 2.0) == [*start_and_join(3, 0, 4), *start_and_join(3, 1, 5)]


def test_when_the_time_is_over_the_others_depart_too():
    fleet = two_hosts(busy=[0, 1])
    handle(fleet, HostLeaves(1, 30.0), 1.0)
    assert handle(fleet, Tick(), 30.9) == []
    note = Note("a host leaves before workers [0, 1] have delivered what they compute")
    assert handle(fleet, Tick(), 31.0) == [note, Kill(1, 2), Lost(0), Kill(1, 3), Lost(1)]
    assert handle(fleet, ProcessDied(3, -9), 31.1) == start_and_join(2, 1, 4)
    assert handle(fleet, ProcessDied(2, -9), 31.1) == [EndHost(1), *start_and_join(2, 0, 5)]


def test_the_earlier_of_two_ends_counts():
    fleet = two_hosts(workers=1, busy=[0])
    handle(fleet, HostLeaves(1, 30.0), 0.0)
    assert handle(fleet, HostLeaves(1, 5.0), 1.0) == []
    assert handle(fleet, HostLeaves(1, 500.0), 2.0) == []
    assert handle(fleet, Tick(), 6.0)[1:] == [Kill(1, 2), Lost(0)]


def test_a_leaving_host_that_is_gone_early_has_not_failed():
    fleet = two_hosts(busy=[0, 1], max_failures=0)
    handle(fleet, HostLeaves(1, 30.0), 1.0)
    assert handle(fleet, HostGone(1, "the host is lost"), 2.0) == [
        Note("the host is lost, and workers [0, 1] with it, as announced"),
        Lost(0),
        Lost(1),
        *start_and_join(2, 0, 4),
        *start_and_join(2, 1, 5),
    ]
    assert fleet.failures.deaths == 0


def test_a_leaving_host_that_is_gone_with_killed_processes_only_is_named_without_workers():
    fleet = two_hosts(workers=1)
    handle(fleet, HostLeaves(1, 30.0), 1.0)
    actions = handle(fleet, HostGone(1, "the host is lost"), 2.0)
    assert actions == [Note("the host is lost, as announced"), *start_and_join(2, 0, 3)]


def test_a_leaving_host_with_a_process_that_does_not_die_is_not_given_up_before_the_others_deliver():
    fleet = two_hosts(busy=[0])
    handle(fleet, HostLeaves(1, 30.0), 1.0)
    for second in range(1, 11):
        assert handle(fleet, Tick(), float(second)) == []
    note = Note("worker 1 was killed, but its process did not end within 10 s: another replaces it")
    assert handle(fleet, Tick(), 1.0 + SECONDS_TO_DIE) == [note, *start_and_join(2, 1, 4)]
    assert report(fleet, 0, at=12.0) == [Kill(1, 2), Lost(0)]
    assert handle(fleet, ProcessDied(2, -9), 12.0) == [EndHost(1), *start_and_join(2, 0, 5)]


def test_a_host_that_leaves_before_it_was_opened_is_ended():
    assert handle(Fleet(), HostLeaves(5, 30.0)) == [EndHost(5)]


# Single processes


def test_a_process_that_leaves_is_replaced_where_it_was():
    fleet = two_hosts(busy=[1], max_failures=0)
    assert handle(fleet, ProcessLeaves(3), 1.0) == [Note("worker 1 was told to leave")]
    assert handle(fleet, ProcessLeaves(3), 1.0) == [], "it is told once"
    assert report(fleet, 1, 2, at=2.0) == [Kill(1, 3), Lost(1)]
    assert handle(fleet, ProcessDied(3, -9), 2.1) == start_and_join(1, 1, 4)
    assert handle(fleet, ProcessLeaves(3), 3.0) == [], "that process is gone"
    assert fleet.failures.deaths == 0


def test_only_processes_of_workers_leave():
    fleet = begun(workers=1)
    handle(fleet, FingerprintAsked())
    for number in (EVALUATOR, FINGERPRINTER):
        assert handle(fleet, ProcessLeaves(serial_of(fleet, number))) == []


def test_an_idle_process_that_leaves_departs_at_once():
    fleet = two_hosts()
    note = Note("worker 1 was told to leave")
    assert handle(fleet, ProcessLeaves(3), 1.0) == [note, Kill(1, 3), Lost(1)]
    assert handle(fleet, ProcessLeaves(3), 1.0) == []


def test_a_leaving_worker_that_raises_is_lost_once_and_goes_on_elsewhere():
    fleet = two_hosts(busy=[0])
    handle(fleet, HostLeaves(1, 30.0), 1.0)
    raised = Raised(0, 1, "ValueError at x:1", "its traceback", any_gradient=True)
    assert handle(fleet, raised, 2.0) == [Warn("worker 0 raised:\nits traceback"), Kill(1, 2), Lost(0)]
    assert handle(fleet, raised, 2.0) == []
    handle(fleet, ProcessDied(3, -9), 2.1)
    assert handle(fleet, ProcessDied(2, -9), 2.1) == [EndHost(1), *start_and_join(2, 0, 5)]


@pytest.mark.parametrize(
    ("code", "cause"), [(-9, "was killed by signal 9"), (-15, "was killed by signal 15"), (1, "ended with exit code 1")]
)
def test_the_death_of_a_leaving_worker_is_not_a_failure(code, cause):
    fleet = two_hosts(busy=[0], max_failures=0)
    handle(fleet, ProcessLeaves(2), 1.0)
    actions = handle(fleet, ProcessDied(2, code), 2.0)
    assert actions == [Note(f"worker 0, which was leaving, {cause}"), Lost(0), *start_and_join(1, 0, 4)]
    assert fleet.failures.deaths == 0


def test_a_leaving_host_is_ended_when_its_last_worker_dies():
    fleet = two_hosts(workers=1, busy=[0])
    handle(fleet, HostLeaves(1, 30.0))
    note = Note("worker 0, which was leaving, was killed by signal 9")
    assert handle(fleet, ProcessDied(2, -9)) == [note, Lost(0), EndHost(1), *start_and_join(2, 0, 3)]


def test_a_leaving_worker_that_imitates_a_slow_one_is_still_told_to_hurry():
    fleet = two_hosts(busy=[0], imitating=True)
    handle(fleet, ProcessLeaves(2))
    assert handle(fleet, Cancelled(0, (1,))) == [Instruct(0, HURRY, 1)]
    assert fleet.workers[0].state is State.LEAVING
    assert report(fleet, 0) == [Kill(1, 2), Lost(0)]


def test_a_worker_that_is_removed_while_it_leaves_is_not_started_again():
    fleet = two_hosts(busy=[0])
    handle(fleet, ProcessLeaves(2))
    handle(fleet, LeaveAsked(0))
    assert handle(fleet, Tick()) == [Kill(1, 2), Lost(0)]
    assert handle(fleet, ProcessDied(2, -9)) == []
    assert handle(fleet, Tick(), 1.0) == []
    assert fleet.wanted() == [1]
