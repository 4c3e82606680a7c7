"""Where workers run: hosts that open, connect again, are gone, are not needed any more, or are given up."""

import pytest
from fleets import begun, handle, on_hosts, only, order, report, serial_of, start_and_join

from nowait.fleet.server.events import (
    HOME,
    Adopt,
    Began,
    EndHost,
    Evaluate,
    EvaluationAsked,
    Fail,
    HostGone,
    HostLeaves,
    HostReady,
    Instruct,
    JoinAsked,
    Joined,
    Kill,
    LeaveAsked,
    Lost,
    Note,
    OpenHome,
    ProcessDied,
    Raised,
    Start,
    Tick,
    Warn,
)
from nowait.fleet.server.fleet import Fleet
from nowait.fleet.server.patience import ERRORS_IN_A_ROW, FIRST_PAUSE, MOST_FAULTY
from nowait.fleet.wire.records import ANNOUNCE, EVALUATOR

# Seats


def test_the_nearest_host_is_filled_first_of_several_the_one_that_opened_first():
    fleet = Fleet(workers=range(4), wanted=range(4))
    for host, distance in ((HOME, 0), (1, 1), (2, 0), (3, 1)):
        handle(fleet, HostReady(host, 0 if host == HOME else 1, distance))
    assert fleet.room == 3
    workers = [Start(2, 0, 2), Start(1, 1, 3), Start(3, 2, 4)]
    assert handle(fleet, Began()) == [Start(HOME, EVALUATOR, 1), *workers]
    assert fleet.room == 0


def test_a_host_is_called_by_its_label_or_else_by_the_name_of_its_node():
    fleet = begun()
    handle(fleet, HostReady(1, 1, 1, "node", "node#2"))
    handle(fleet, HostReady(2, 1, 1, "node"))
    assert [(fleet.name_of(host), fleet.label_of(host)) for host in (1, 2)] == [("node", "node#2"), ("node", "node")]


# Hosts that are gone


def test_workers_of_a_lost_host_are_replaced_elsewhere_or_wait():
    fleet = on_hosts(2, 2, workers=3)
    assert handle(fleet, HostGone(1, "the node is lost"), 1.0) == [
        Warn("the node is lost, and workers [0, 1] with it: they are replaced"),
        Lost(0),
        Lost(1),
        *start_and_join(2, 0, 5),
    ]
    assert fleet.missing(1.0) == 1
    assert fleet.wanted() == [0, 1, 2]
    assert handle(fleet, HostReady(3, 1), 2.0) == start_and_join(3, 1, 6)


def test_workers_of_a_lost_host_have_not_failed():
    fleet = begun(workers=1, seats=0, max_failures=0)
    for host in range(1, 9):
        assert handle(fleet, HostReady(host, 1)) == start_and_join(host, 0, 1 + host)
        assert handle(fleet, HostGone(host, "gone")) == [
            Warn("gone, and workers [0] with it: they are replaced"),
            Lost(0),
        ]
    assert fleet.failures.deaths == 0


def test_a_lost_host_without_workers_is_named_and_an_unknown_one_is_not():
    fleet = on_hosts(2, 2)
    assert handle(fleet, HostGone(2, "the node is lost")) == [Warn("the node is lost")]
    assert handle(fleet, HostGone(2, "the node is lost")) == []


def test_a_killed_process_of_a_lost_host_is_not_lost_twice():
    fleet = on_hosts(2, 2)
    handle(fleet, LeaveAsked(1))
    handle(fleet, Raised(0, 0, "E", "", any_gradient=True))
    assert handle(fleet, Tick()) == [Kill(1, 3), Lost(1)]
    assert handle(fleet, HostGone(1, "gone"))[:2] == [
        Warn("gone, and workers [0] with it: they are replaced"),
        Lost(0),
    ]
    assert handle(fleet, ProcessDied(3, -9)) == []


# HOME


def test_home_is_opened_again_and_the_evaluator_and_the_workers_come_back():
    fleet = begun()
    assert handle(fleet, EvaluationAsked(slot=7, step=40)) == [Evaluate(1, 7, 40)]
    assert handle(fleet, HostGone(HOME, "killed"), 1.0) == [
        Warn("killed, and workers [0, 1] with it: they are replaced"),
        Lost(0),
        Lost(1),
    ]
    assert not fleet.has_evaluator
    assert fleet.missing(1.0) == 2
    assert handle(fleet, Tick(), 1.0) == [OpenHome()]
    assert handle(fleet, Tick(), 1.0) == []
    assert handle(fleet, HostReady(HOME, 100), 2.0) == [
        Start(HOME, EVALUATOR, 4),
        Evaluate(2, 7, 40),
        *start_and_join(HOME, 0, 5),
        *start_and_join(HOME, 1, 6),
    ]


def test_a_home_without_workers_is_started_again():
    fleet = on_hosts(2)
    assert handle(fleet, HostGone(HOME, "killed"), 1.0) == [Warn("killed: it is started again")]
    assert handle(fleet, Tick(), 1.0) == [OpenHome()]


def test_a_home_that_is_lost_again_and_again_fails_the_run_unless_a_worker_delivers():
    fleet = begun(workers=1, max_failures=2)
    for repetition in range(6):
        at = float(repetition)
        assert only(handle(fleet, HostGone(HOME, "killed"), at), Fail) == []
        assert handle(fleet, Tick(), at + 0.5) == [OpenHome()]
        handle(fleet, HostReady(HOME, 100), at + 0.5)
        if repetition < 4:
            order(fleet, 0)
            report(fleet, 0)
    fail = Fail("the process that starts workers ended repeatedly, last because killed")
    assert handle(fleet, HostGone(HOME, "killed"), 9.0)[-1] == fail


def test_a_home_that_is_gone_again_while_it_is_opened_is_started_once_more_after_a_pause():
    fleet = begun(max_failures=2)
    handle(fleet, HostGone(HOME, "killed"))
    assert handle(fleet, Tick()) == [OpenHome()]
    assert handle(fleet, HostGone(HOME, "killed again"), 1.0) == [Warn("killed again: it is started again")]
    assert fleet.due == 1.0 + FIRST_PAUSE
    assert handle(fleet, Tick(), 1.0) == []
    assert handle(fleet, Tick(), 1.0 + FIRST_PAUSE) == [OpenHome()]
    fail = Fail("the process that starts workers ended repeatedly, last because killed")
    assert handle(fleet, HostGone(HOME, "killed"), 2.0)[-1] == fail


def test_a_home_that_is_lost_before_the_run_begins_is_opened_again():
    fleet = Fleet(workers=[0])
    handle(fleet, HostReady(HOME, 1))
    assert handle(fleet, HostGone(HOME, "killed"), 100.0) == [Warn("killed: it is started again")]
    assert handle(fleet, Tick(), 100.0) == [OpenHome()]
    assert handle(fleet, HostReady(HOME, 1), 101.0) == []


# Hosts that connect again


def test_the_processes_of_a_host_that_connects_again_go_on():
    fleet = on_hosts(2, workers=2)
    order(fleet, 0)
    handle(fleet, HostGone(1, "the connection is lost"))
    assert handle(fleet, HostReady(1, 2, 1, processes={2: 0, 3: 1}), 1.0) == [
        Adopt(1, 0, 2),
        Joined(0),
        Adopt(1, 1, 3),
        Joined(1),
    ]
    assert order(fleet, 0, 2)[1], "its ticket was lost with the connection"
    assert handle(fleet, ProcessDied(2, -9))[1] == Lost(0)


def test_adopted_processes_are_held_as_all_others():
    fleet = on_hosts(1, workers=1, together=True)
    handle(fleet, HostGone(1, "the connection is lost"))
    assert handle(fleet, HostReady(1, 1, 1, processes={2: 0})) == [Adopt(1, 0, 2), Instruct(0, ANNOUNCE), Joined(0)]
    assert fleet.not_ready == [0]


def test_processes_that_went_on_elsewhere_or_are_not_wanted_are_killed():
    fleet = on_hosts(3, 1, workers=3)
    handle(fleet, HostGone(1, "the connection is lost"))  # worker 0 goes on with host 2
    handle(fleet, LeaveAsked(2))
    handle(fleet, Tick())
    assert handle(fleet, HostReady(1, 3, 1, processes={2: 0, 3: 1, 4: 2, 9: 77})) == [
        Kill(1, 2),
        Adopt(1, 1, 3),
        Joined(1),
        Kill(1, 4),
        Kill(1, 9),
    ]
    assert handle(fleet, ProcessDied(4, -9)) == []


def test_no_more_processes_go_on_than_there_are_seats():
    fleet = on_hosts(2, workers=2)
    handle(fleet, HostGone(1, "the connection is lost"))
    actions = handle(fleet, HostReady(1, 1, 1, processes={2: 0, 3: 1}))
    assert actions == [Adopt(1, 0, 2), Joined(0), Kill(1, 3)]


# Hosts that nobody needs


def test_hosts_without_workers_are_given_back_after_a_while_but_never_home():
    fleet = on_hosts(2, 2, idle_seconds=60.0)
    assert handle(fleet, Tick(), 59.0) == []
    note = Note("a host has had no workers for 60 s: it is given back")
    assert handle(fleet, Tick(), 60.0) == [note, EndHost(2)]
    handle(fleet, LeaveAsked(0))
    handle(fleet, JoinAsked())
    assert handle(fleet, Tick(), 70.0) == [Kill(1, 2), Lost(0)]
    assert handle(fleet, ProcessDied(2, -9), 70.0) == start_and_join(1, 2, 4)
    assert handle(fleet, Tick(), 500.0) == [], "host 1 has workers"


def test_a_host_is_idle_from_when_its_last_worker_was_gone():
    fleet = on_hosts(1, workers=1, idle_seconds=60.0)
    handle(fleet, HostReady(3, 1, distance=-1), 40.0)
    handle(fleet, LeaveAsked(0))
    handle(fleet, JoinAsked(), 41.0)
    assert handle(fleet, Tick(), 45.0) == [Kill(1, 2), Lost(0), *start_and_join(3, 1, 3)]
    assert handle(fleet, ProcessDied(2, -9), 50.0) == []
    assert handle(fleet, Tick(), 109.0) == []
    assert handle(fleet, Tick(), 110.0)[1:] == [EndHost(1)]


def test_a_host_for_workers_that_are_about_to_leave_another_one_is_kept():
    fleet = on_hosts(1, 1, workers=1, idle_seconds=60.0)
    order(fleet, 0)
    handle(fleet, HostLeaves(1, 500.0), 1.0)
    assert handle(fleet, Tick(), 100.0) == []
    report(fleet, 0)
    assert handle(fleet, ProcessDied(2, -9), 101.0) == [EndHost(1), *start_and_join(2, 0, 3)]


def test_no_host_is_given_back_before_the_run_begins():
    fleet = Fleet(workers=[0], idle_seconds=60.0)
    handle(fleet, HostReady(HOME, 0))
    handle(fleet, HostReady(1, 1))
    assert handle(fleet, Tick(), 500.0) == []


# Hosts that are given up


def raise_again_and_again(fleet, number):
    """Let a worker raise until it is given up; returns the last actions."""
    for _ in range(ERRORS_IN_A_ROW):
        order(fleet, number)
        actions = handle(fleet, Raised(number, 1, "E", "its traceback", any_gradient=True), 1.0)
    return actions


def test_a_worker_of_a_faulty_host_goes_on_elsewhere_once():
    fleet = on_hosts(1, 2, 1)
    assert raise_again_and_again(fleet, 0) == [
        Warn("worker 0 raised E again and again: it goes on with another host, if there is room"),
        Kill(1, 2),
        Lost(0),
        Warn("the host node 1 is given up, because worker 0 raised E again and again"),
        EndHost(1, "worker 0 raised E again and again"),
        *start_and_join(2, 0, 4),
    ]
    assert raise_again_and_again(fleet, 0) == [
        Warn("worker 0 raised E again and again: it is no longer replaced"),
        Kill(2, 4),
        Lost(0),
    ]
    assert handle(fleet, ProcessDied(4, -9)) == []
    assert handle(fleet, Tick(), 9.0) == []
    assert fleet.members == fleet.wanted() == [1]


def test_a_worker_that_died_repeatedly_has_not_failed_on_its_next_host():
    fleet, reason = on_hosts(1, 2, max_failures=1), "worker 0 ended with exit code 3 repeatedly"
    handle(fleet, ProcessDied(2, 3))
    assert handle(fleet, ProcessDied(4, 3)) == [
        Warn(f"{reason}: it goes on with another host, if there is room"),
        Lost(0),
        Warn(f"the host node 1 is given up, because {reason}"),
        EndHost(1, reason),
        *start_and_join(2, 0, 5),
    ]
    assert handle(fleet, ProcessDied(5, 3))[0] == Warn("worker 0 ended with exit code 3: it is replaced")


def test_a_host_with_several_faulty_workers_is_given_up_with_the_others():
    fleet = Fleet(workers=range(5), wanted=range(5))
    handle(fleet, HostReady(HOME, 0))
    handle(fleet, HostReady(1, 5, 1, "one", "one#2"))  # the second host on this node
    handle(fleet, Began())
    handle(fleet, HostReady(2, 9, 2, "two"))
    for number in range(MOST_FAULTY - 1):
        moved = raise_again_and_again(fleet, number)
        assert only(moved, EndHost) == []
        assert only(handle(fleet, ProcessDied(2 + number, -9), 1.0), Start) == [Start(2, number, 7 + number)]
    warning, kill, lost, *given_up = raise_again_and_again(fleet, 2)
    reason = "worker 2 raised E again and again"
    assert (warning.message, kill, lost) == (
        f"{reason}: it goes on with another host, if there is room",
        Kill(1, 4),
        Lost(2),
    )
    assert given_up == [
        Warn(f"the host one#2 is given up, because {reason}; its workers [3, 4] are replaced"),
        Lost(3),
        Lost(4),
        EndHost(1, reason),
        *start_and_join(2, 2, 9),
        *start_and_join(2, 3, 10),
        *start_and_join(2, 4, 11),
    ]


def test_the_only_host_is_not_given_up_while_workers_of_it_are_fine():
    fleet = on_hosts(6, workers=6)
    for number in range(MOST_FAULTY + 1):
        assert only(raise_again_and_again(fleet, number), EndHost, Fail) == []
        assert fleet.room == 0, "its seat is not used again"
        assert handle(fleet, ProcessDied(2 + number, -9)) == []
    assert fleet.members == [4, 5]
    assert (fleet.room, fleet.missing(1.0)) == (0, 4), "the others wait for another host"


def test_a_faulty_host_without_other_workers_is_given_up_although_no_other_worker_runs():
    fleet = on_hosts(1, 1)
    for _ in range(2):
        handle(fleet, ProcessDied(serial_of(fleet, 1), 3), 0.99)
    assert fleet.members == [0], "worker 1 waits for its pause"
    ended, *started = raise_again_and_again(fleet, 0)[-3:]
    assert (ended, started) == (EndHost(1, "worker 0 raised E again and again"), start_and_join(2, 0, 5))


def test_a_worker_that_was_removed_does_not_go_on_elsewhere():
    fleet = on_hosts(1, 2)
    handle(fleet, LeaveAsked(0))
    actions = raise_again_and_again(fleet, 0)
    assert actions[0] == Warn("worker 0 raised E again and again: it is no longer replaced")
    assert only(actions, Start) == []


def test_if_the_workers_of_all_hosts_fail_the_run_ends():
    fleet = on_hosts(1, 1)
    assert only(raise_again_and_again(fleet, 0), Fail) == []
    assert raise_again_and_again(fleet, 1) == [
        Warn("worker 1 raised E again and again: it goes on with another host, if there is room"),
        Kill(2, 3),
        Lost(1),
        Warn("the host node 2 is given up, because worker 1 raised E again and again"),
        EndHost(2, "worker 1 raised E again and again"),
        Fail("worker 1 raised, not for the first time:\nits traceback"),
    ]


@pytest.mark.parametrize("seats", [1, 5])
def test_if_the_last_worker_fails_for_the_second_time_the_run_ends_although_there_are_seats(seats):
    fleet = on_hosts(1, seats, workers=1)
    handle(fleet, Tick())
    assert only(raise_again_and_again(fleet, 0), Fail) == []
    assert isinstance(raise_again_and_again(fleet, 0)[-1], Fail)


def test_a_run_whose_only_other_worker_is_about_to_be_replaced_does_not_fail():
    fleet = on_hosts(1, 1)
    order(fleet, 1)
    handle(fleet, Raised(1, 1, "MemoryError", "", any_gradient=True))  # its process is killed, and not yet dead
    assert only(raise_again_and_again(fleet, 0), Fail) == []
    assert handle(fleet, ProcessDied(3, -9), 2.0) == start_and_join(2, 0, 4)
