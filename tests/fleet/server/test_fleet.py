"""Which workers run and what they compute, without processes, a clock or a server."""

import math

import pytest
from fleets import begun, handle, on_hosts, order, report, send_nothing, serial_of, start_and_join

from nowait.core import Ticket
from nowait.fleet.server.events import (
    HOME,
    Began,
    Cancelled,
    Ended,
    Evaluate,
    EvaluationAsked,
    Fail,
    Forget,
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
    ProcessReady,
    Released,
    Send,
    Start,
    Stop,
    Tick,
    Warn,
)
from nowait.fleet.server.fleet import Fleet
from nowait.fleet.server.patience import FIRST_PAUSE
from nowait.fleet.server.workers import State
from nowait.fleet.wire.records import ANNOUNCE, BEGIN, EVALUATOR, FORGET, HURRY, KEEP, UNDO

# The start


def test_evaluator_and_workers_are_started_where_there_are_seats():
    fleet = Fleet(workers=range(3), wanted=range(3))
    assert handle(fleet, HostReady(HOME, 2)) == []
    assert handle(fleet, Began()) == [Start(HOME, EVALUATOR, 1), Start(HOME, 0, 2), Start(HOME, 1, 3)]
    assert (fleet.members, fleet.missing(0.0)) == ([0, 1], 1)
    assert handle(fleet, Tick(), 0.5) == [Lost(2)]
    assert handle(fleet, Tick(), 0.6) == [], "it is told once"


def test_the_evaluator_needs_no_seat():
    fleet = Fleet(workers=[0])
    handle(fleet, HostReady(HOME, 0))
    assert handle(fleet, Began()) == [Start(HOME, EVALUATOR, 1)]


def test_a_worker_without_a_seat_joins_only_after_the_server_was_told_of_its_loss():
    fleet = Fleet(workers=[0])
    handle(fleet, HostReady(HOME, 0))
    handle(fleet, Began())
    assert handle(fleet, HostReady(1, 1), 0.1) == []
    assert handle(fleet, Tick(), 0.2) == [Lost(0), *start_and_join(1, 0, 2)]


def test_a_worker_that_is_removed_before_the_run_begins_is_lost_like_one_without_a_seat():
    fleet = Fleet(workers=[0, 1])
    handle(fleet, HostReady(HOME, 0))
    handle(fleet, LeaveAsked(1))
    handle(fleet, Began())
    assert handle(fleet, Tick()) == [Lost(0), Lost(1)]
    assert not order(fleet, 1)[1], "the server was told of the loss of worker 0 only"
    handle(fleet, Tick())
    assert sorted(fleet.workers) == [EVALUATOR, 0]


def test_wanted_workers_that_the_server_does_not_have_join_when_there_are_seats():
    fleet = Fleet(workers=[0], wanted=range(3))
    handle(fleet, HostReady(HOME, 1))
    handle(fleet, Began())
    assert handle(fleet, Tick()) == []
    assert fleet.missing(0.0) == 2
    assert handle(fleet, HostReady(5, 1), 2.0) == start_and_join(5, 1, 3)
    assert fleet.wanted() == [0, 1, 2]


def test_processes_are_started_only_once_the_run_has_begun():
    fleet = Fleet(workers=[0], wanted=range(2))
    handle(fleet, HostReady(HOME, 0))
    handle(fleet, HostReady(1, 1))
    assert handle(fleet, Tick(), 1.0) == []


def test_home_that_cannot_open_at_the_start_is_an_error():
    fail = Fail("workers could not load the problem:\nnot here")
    assert handle(Fleet(), HostGone(HOME, "not here")) == [fail]


# Starting together


def held(workers=2, **options):
    return begun(workers, together=True, **options)


def test_workers_that_start_together_are_asked_to_say_when_they_are_ready():
    fleet = Fleet(workers=[0, 1], together=True)
    handle(fleet, HostReady(HOME, 2))
    assert handle(fleet, Began()) == [
        Start(HOME, EVALUATOR, 1),
        Start(HOME, 0, 2),
        Instruct(0, ANNOUNCE),
        Start(HOME, 1, 3),
        Instruct(1, ANNOUNCE),
    ]
    assert fleet.not_ready == [0, 1]
    assert handle(fleet, ProcessReady(1)) == []
    assert fleet.not_ready == [0]


def test_tickets_of_workers_that_start_together_are_sent_when_the_run_begins():
    fleet = held()
    first, second = [order(fleet, number, 1 + number) for number in (0, 1)]
    assert (first[1], second[1]) == (False, False)
    assert fleet.idle == [], "nor do they compute checks of audits"
    assert handle(fleet, Released(2.5), 3.0) == [
        Instruct(0, BEGIN, 2_500_000_000),
        Send(0, first[0]),
        Instruct(1, BEGIN, 2_500_000_000),
        Send(1, second[0]),
    ]
    assert not fleet.holding
    assert fleet.workers[0].computing(5.0) == 2.0, "from when it was sent"


def test_a_held_worker_without_a_ticket_is_idle_when_the_run_begins():
    fleet = held(workers=1)
    ticket, _ = order(fleet, 0)
    handle(fleet, Cancelled(0, (ticket.id,)))
    assert handle(fleet, Released(0.0)) == [Instruct(0, BEGIN, 0)]
    assert order(fleet, 0, 2)[1]


def test_a_process_that_dies_before_the_start_is_replaced_and_waited_for_once():
    fleet = held()
    handle(fleet, ProcessReady(0))
    handle(fleet, ProcessReady(1))
    order(fleet, 1)
    assert handle(fleet, ProcessDied(serial_of(fleet, 1), -9)) == [
        Warn("worker 1 was killed by signal 9: it is replaced"),
        Lost(1),
        Start(HOME, 1, 4),
        Instruct(1, ANNOUNCE),
        Joined(1),
    ]
    assert fleet.not_ready == [1]
    handle(fleet, ProcessDied(serial_of(fleet, 1), -9), 1.0)
    assert fleet.not_ready == [], "it waits for its pause; nobody waits for it"
    assert handle(fleet, Released(0.0), 1.0) == [Instruct(0, BEGIN, 0)]
    assert handle(fleet, Tick(), 1.0 + FIRST_PAUSE) == start_and_join(HOME, 1, 5), "and is not held"


def test_a_held_worker_that_leaves_departs_at_once():
    fleet = on_hosts(1, 1, workers=1, together=True)
    order(fleet, 0)
    assert handle(fleet, HostLeaves(1, 9.0))[1:] == [Kill(1, 2), Lost(0)]
    assert fleet.not_ready == []


# Deaths


def test_a_dead_worker_is_replaced_at_once():
    fleet = begun()
    assert handle(fleet, ProcessDied(serial_of(fleet, 1), -9), 3.0) == [
        Warn("worker 1 was killed by signal 9: it is replaced"),
        Lost(1),
        *start_and_join(HOME, 1, 4),
    ]
    assert fleet.failures.deaths == 1


def test_pauses_grow_until_the_worker_is_given_up_and_a_gradient_resets_them():
    fleet = begun(max_failures=2)
    handle(fleet, ProcessDied(serial_of(fleet, 1), 3), 0.0)
    lost = [Warn("worker 1 ended with exit code 3: it is replaced"), Lost(1)]
    assert handle(fleet, ProcessDied(serial_of(fleet, 1), 3), 1.0) == lost
    assert fleet.due == 1.0 + FIRST_PAUSE
    assert handle(fleet, Tick(), 1.01) == []
    assert fleet.due == 1.0 + FIRST_PAUSE
    assert handle(fleet, Tick(), 1.0 + FIRST_PAUSE) == start_and_join(HOME, 1, 5)
    assert fleet.due == math.inf
    order(fleet, 1)
    report(fleet, 1)
    assert handle(fleet, ProcessDied(serial_of(fleet, 1), 3), 2.0) == [*lost, *start_and_join(HOME, 1, 6)]
    handle(fleet, ProcessDied(serial_of(fleet, 1), 3), 3.0)
    handle(fleet, Tick(), 3.9)
    assert handle(fleet, ProcessDied(serial_of(fleet, 1), 3), 4.0) == [
        Warn("worker 1 ended with exit code 3 repeatedly: it is no longer replaced"),
        Lost(1),
    ]
    assert handle(fleet, Tick(), 9.0) == []
    assert fleet.members == fleet.wanted() == [0]
    assert 1 not in fleet.workers


def test_a_worker_without_a_gradient_keeps_its_count_although_it_reports_a_check():
    fleet = begun(workers=1, max_failures=1)
    handle(fleet, ProcessDied(serial_of(fleet, 0), 3))
    fleet.lend(0, Ticket(-1, 1, 0, 0), 0.0)
    assert fleet.checked(0, -1, 0.0) is not None
    assert fleet.settle(0.0) == []
    assert isinstance(handle(fleet, ProcessDied(serial_of(fleet, 0), 3))[-1], Fail)


def test_if_the_last_worker_is_given_up_the_run_fails():
    fleet = begun(workers=1, max_failures=0)
    assert handle(fleet, ProcessDied(serial_of(fleet, 0), 3)) == [
        Warn("worker 0 ended with exit code 3 repeatedly: it is no longer replaced"),
        Lost(0),
        Fail("no worker is left: worker 0, the last one, ended with exit code 3", while_running=True),
    ]


@pytest.mark.parametrize("seen", [False, True])
def test_a_run_with_workers_to_come_does_not_fail(seen):
    fleet = begun(workers=1, seats=1, max_failures=0)
    handle(fleet, JoinAsked())
    if seen:
        assert handle(fleet, Tick()) == []
        assert fleet.missing(0.0) == 1
    actions = handle(fleet, ProcessDied(serial_of(fleet, 0), 3))
    assert actions[1:] == [Lost(0), *start_and_join(HOME, 1, 3)]


def test_an_unknown_or_repeated_death_is_ignored():
    fleet = begun()
    serial = serial_of(fleet, 0)
    assert handle(fleet, ProcessDied(99, -9)) == []
    assert handle(fleet, ProcessDied(serial, -9)) != []
    assert handle(fleet, ProcessDied(serial, -9)) == []


# Tickets


def test_an_idle_worker_is_sent_its_ticket_now_and_its_report_is_used_once():
    fleet = begun()
    ticket, is_sent = order(fleet, 1, 7, at=2.0)
    assert is_sent
    assert fleet.idle == [0]
    assert fleet.computes(1, 7)
    assert fleet.is_computed(7)
    assert fleet.reported(1, 7, 3.0) == ticket
    assert (fleet.unsettled, fleet.idle) == ([], [0, 1])
    assert fleet.reported(1, 7, 3.1) is None, "a duplicate"


@pytest.mark.parametrize(("number", "ticket_id"), [(0, 1), (1, 2), (9, 1), (EVALUATOR, 1)])
def test_a_report_of_another_worker_or_on_another_ticket_is_not_used(number, ticket_id):
    fleet = begun()
    order(fleet, 1, 1)
    handle(fleet, EvaluationAsked(0, 0))
    assert fleet.reported(number, ticket_id, 1.0) is None
    assert fleet.computes(1, 1)
    assert report(fleet, 1, 1) == []


def test_the_memory_of_a_new_process_is_reset_and_later_kept():
    fleet = begun(workers=1)
    worker = fleet.workers[0]
    assert worker.instruction == FORGET
    for ticket_id in (1, 2):
        order(fleet, 0, ticket_id)
        report(fleet, 0, ticket_id)
        assert worker.instruction == KEEP
    handle(fleet, ProcessDied(serial_of(fleet, 0), -9))
    assert fleet.workers[0].instruction == FORGET


def test_after_a_cancelled_ticket_the_memory_is_restored_and_the_next_one_is_sent():
    fleet = begun(workers=1)
    order(fleet, 0, 1)
    assert handle(fleet, Cancelled(0, (1, 5))) == []
    following, is_sent = order(fleet, 0, 2)
    assert not is_sent
    assert report(fleet, 0, 1, at=4.0) == [Send(0, following)]
    assert fleet.workers[0].instruction == UNDO
    assert fleet.workers[0].computing(5.0) == 1.0
    assert report(fleet, 0, 2) == []
    assert fleet.workers[0].instruction == KEEP


def test_the_next_ticket_can_be_cancelled_too():
    fleet = begun(workers=1)
    order(fleet, 0, 1)
    handle(fleet, Cancelled(0, (1,)))
    order(fleet, 0, 2)
    assert handle(fleet, Cancelled(0, (2,))) == [Forget(Ticket(2, 0, 0, 0, 0.0))]
    assert report(fleet, 0, 1) == []
    assert order(fleet, 0, 3)[1]


@pytest.mark.parametrize("imitating", [False, True])
def test_only_a_worker_that_imitates_a_slow_one_is_told_once_to_hurry(imitating):
    fleet = begun(imitating=imitating)
    order(fleet, 1, 4)
    assert handle(fleet, Cancelled(1, (4,))) == ([Instruct(1, HURRY, 4)] if imitating else [])
    assert handle(fleet, Cancelled(1, (4,))) == []
    report(fleet, 1, 4)
    order(fleet, 1, 5)
    assert handle(fleet, Cancelled(1, (5,))) == ([Instruct(1, HURRY, 5)] if imitating else [])


@pytest.mark.parametrize("event", [Cancelled(0, (9,)), Cancelled(1, (1,)), Cancelled(7, (1,))])
def test_cancelling_what_nobody_computes_changes_nothing(event):
    fleet = begun(imitating=True)
    order(fleet, 0, 1)
    assert handle(fleet, event) == []
    assert fleet.workers[0].state is State.COMPUTING


def test_a_ticket_for_a_worker_whose_loss_the_server_does_not_know_yet_is_dropped():
    fleet = begun(seats=2)
    handle(fleet, HostGone(HOME, "killed"))  # the server is told of worker 0 first, and orders a ticket of worker 1
    assert not order(fleet, 1, 8)[1]
    handle(fleet, Tick())
    handle(fleet, HostReady(HOME, 2))
    assert order(fleet, 1, 9)[1]
    assert report(fleet, 1, 9) == [], "and nothing of the old one is left"


def test_what_is_ordered_before_a_new_process_is_started_was_for_the_old_one():
    fleet = on_hosts(2, 2)
    actions = fleet.handle(HostGone(1, "gone"), 0.0)
    assert actions[1:] == [Lost(0), Lost(1), *start_and_join(2, 0, 4), *start_and_join(2, 1, 5)]
    assert not order(fleet, 1, 8)[1]  # the server was told of the loss of worker 0 only
    assert not fleet.is_idle(1)
    for number in (0, 1):
        fleet.attach(number, send_nothing)
    fleet.check()
    assert order(fleet, 1, 9)[1]
    assert report(fleet, 1, 9) == []


# Checks of audits


def check_of(number, of=0):
    return Ticket(-1 - number, of, 0, 0)


def test_only_an_idle_worker_computes_a_check_and_its_own_ticket_comes_next():
    fleet = begun()
    order(fleet, 0)
    assert fleet.lend(0, check_of(5), 0.0) is None
    assert fleet.lend(1, check_of(5), 1.0) is fleet.workers[1]
    following, is_sent = order(fleet, 1, 2)
    assert not is_sent
    assert fleet.is_computed(-6)
    assert fleet.checked(1, -6, 2.0) == check_of(5)
    assert fleet.settle(2.0) == [Send(1, following)]
    assert fleet.checked(1, -6, 2.0) is None
    handle(fleet, Ended())
    assert fleet.lend(0, check_of(6), 3.0) is None


def test_a_report_of_a_gradient_cannot_answer_a_check_nor_a_check_a_ticket():
    fleet = begun()
    order(fleet, 0, 4)
    fleet.lend(1, check_of(5), 0.0)
    assert fleet.reported(1, -6, 1.0) is None
    assert fleet.checked(0, 4, 1.0) is None
    handle(fleet, EvaluationAsked(0, 0))
    assert fleet.checked(EVALUATOR, 1, 1.0) is None


def test_a_check_is_forgotten_when_its_worker_is_gone():
    fleet = begun()
    fleet.lend(1, check_of(5), 0.0)
    actions = handle(fleet, ProcessDied(serial_of(fleet, 1), -9))
    assert actions[1:] == [Forget(check_of(5)), Lost(1), *start_and_join(HOME, 1, 4)]


def test_the_first_gradient_of_every_process_is_chosen_for_an_audit():
    fleet = begun()
    assert [fleet.take_unchecked(1) for _ in range(2)] == [True, False]
    handle(fleet, ProcessDied(serial_of(fleet, 1), -9))
    assert fleet.unchecked == {0, 1}
    handle(fleet, LeaveAsked(0))
    handle(fleet, Tick())
    assert fleet.unchecked == {1}


# Requests


def test_new_workers_get_numbers_that_nobody_had():
    fleet = begun(numbers_used=[7, 3])
    assert handle(fleet, JoinAsked(), 1.0) == []
    assert fleet.due <= 1.0
    assert fleet.wanted() == [0, 1, 8]
    assert handle(fleet, Tick(), 1.0) == start_and_join(HOME, 8, 4)


def test_a_removed_worker_is_killed_at_the_next_tick_and_its_death_is_expected():
    fleet = begun()
    serial = serial_of(fleet, 0)
    assert handle(fleet, LeaveAsked(0), 1.0) == []
    assert fleet.due <= 1.0
    assert handle(fleet, Tick(), 1.0) == [Kill(HOME, serial), Lost(0)]
    assert fleet.wanted() == [1]
    assert handle(fleet, ProcessDied(serial, -9), 1.1) == []
    assert handle(fleet, Tick(), 1.2) == []
    assert sorted(fleet.workers) == [EVALUATOR, 1]


def test_a_removed_worker_makes_room_when_its_process_is_dead():
    fleet = begun(seats=2)
    handle(fleet, JoinAsked())
    assert handle(fleet, Tick()) == []
    handle(fleet, LeaveAsked(0))
    assert handle(fleet, Tick(), 1.0) == [Kill(HOME, 2), Lost(0)]
    assert handle(fleet, Tick(), 1.1) == [], "two processes would use its seat"
    assert handle(fleet, ProcessDied(2, -9), 1.2) == start_and_join(HOME, 2, 4)


def test_a_worker_that_waits_or_is_to_be_replaced_can_be_removed():
    fleet = begun(seats=2)
    for _ in range(2):
        handle(fleet, ProcessDied(serial_of(fleet, 0), 3))
    for _ in range(2):
        handle(fleet, JoinAsked())
    assert handle(fleet, Tick()) == start_and_join(HOME, 2, 5)
    assert (fleet.wanted(), fleet.missing(0.0)) == ([0, 1, 2, 3], 1)
    for number in (0, 3):
        handle(fleet, LeaveAsked(number))
    assert handle(fleet, Tick()) == []
    assert fleet.wanted() == [1, 2]
    assert sorted(fleet.workers) == [EVALUATOR, 1, 2]
    assert handle(fleet, Tick(), 9.0) == []


def test_nothing_happens_if_an_unknown_worker_is_removed():
    fleet = begun()
    handle(fleet, LeaveAsked(9))
    assert handle(fleet, Tick()) == []


def test_a_worker_that_dies_before_it_is_removed_is_not_replaced():
    fleet = begun()
    handle(fleet, LeaveAsked(0))
    died = handle(fleet, ProcessDied(serial_of(fleet, 0), -9))
    assert died == [Note("worker 0, which was leaving, was killed by signal 9"), Lost(0)]
    assert (fleet.failures.deaths, fleet.missing(0.0)) == (0, 0)
    assert handle(fleet, Tick()) == []
    assert sorted(fleet.workers) == [EVALUATOR, 1]


def test_if_all_workers_are_removed_the_run_stops():
    fleet = begun()
    for number in (0, 1):
        handle(fleet, LeaveAsked(number))
    removed = [Kill(HOME, 2), Lost(0), Kill(HOME, 3), Lost(1)]
    assert handle(fleet, Tick()) == [*removed, Stop("every worker was removed")]


def test_if_the_last_worker_dies_before_it_is_removed_the_run_stops():
    fleet = begun(workers=1)
    handle(fleet, LeaveAsked(0))
    handle(fleet, ProcessDied(serial_of(fleet, 0), -9))
    assert handle(fleet, Tick()) == [Stop("every worker was removed")]


# The end


def test_after_the_end_only_home_and_the_evaluator_are_started():
    fleet = begun()
    handle(fleet, EvaluationAsked(3, 9))
    assert handle(fleet, Ended()) == []
    handle(fleet, JoinAsked())
    gone = handle(fleet, HostGone(HOME, "killed"), 2.0)
    assert gone == [Warn("killed, and workers [0, 1] with it: they are replaced"), Lost(0), Lost(1)]
    assert fleet.due <= 2.0
    assert handle(fleet, Tick(), 2.0) == [OpenHome()]
    assert fleet.due == math.inf, "nobody else is waited for"
    assert handle(fleet, HostReady(HOME, 9), 2.5) == [Start(HOME, EVALUATOR, 4), Evaluate(2, 3, 9)]
    assert handle(fleet, Tick(), 9.0) == []


# What is asked


def test_the_live_view_learns_who_computes_since_when_and_who_is_absent():
    fleet = begun(workers=3, seats=2)
    order(fleet, 0, at=2.0)
    views = {view.worker: view for view in fleet.views(5.0, jobs_of=lambda number: 1)}
    assert sorted(views) == [0, 1, 2], "the evaluator is no worker"
    assert views[0].computing == views[0].slowness == 3.0
    assert views[0].state == "computes for 3.0 s"
    assert not views[0].idle
    assert views[1].idle
    assert not views[2].present
    assert views[2].state == "waits for room"
    handle(fleet, ProcessDied(serial_of(fleet, 0), 3), 5.0)
    handle(fleet, ProcessDied(serial_of(fleet, 0), 3), 5.0)
    views = {view.worker: view for view in fleet.views(5.0, jobs_of=lambda number: 1)}
    assert views[0].state == "lost, to be replaced"


def test_hosts_and_their_names_are_known_by_worker():
    fleet = on_hosts(1, 1)
    assert fleet.hosts_of_members() == {0: 1, 1: 2}
    assert [fleet.name_of(fleet.host_of(number)) for number in (0, 1, 9)] == ["node 1", "node 2", ""]
    handle(fleet, HostGone(2, "gone"))
    assert (fleet.host_of(1), fleet.name_of(2), fleet.label_of(2)) == (HOME, "", "")


def test_an_illegal_event_raises_and_changes_nothing():
    fleet = begun(seats=2)
    with pytest.raises(ValueError, match="host 0 is open already"):
        fleet.handle(HostReady(HOME, 5), 1.0)
    with pytest.raises(KeyError):
        fleet.ordered(Ticket(1, 9, 0, 0), 1.0)
    with pytest.raises(KeyError):
        fleet.handle("a text", 1.0)
    fleet.check()
    assert (fleet.members, fleet.room) == ([0, 1], 0)
