"""What the commands of the server mean: ``Assign`` is "now", ``Cancel`` takes back what an earlier event assigned."""

import math

import numpy as np
import pytest

import nowait as nw
from nowait.core import (
    Assign,
    BadWorkerError,
    Cancel,
    GradientArrived,
    Method,
    Resumed,
    Server,
    Ticket,
    TimerFired,
    Wake,
    WorkerJoined,
    WorkerLost,
)
from nowait.testing import check_invariants, gradient_from
from nowait.testing.servers import Assignments

BOTH = pytest.mark.parametrize("keep_cancelled", [False, True], ids=["released", "kept"])


class Verbs(Method):
    """Calls, at each event, the next of some lists of verbs: ("assign", worker), ("cancel", worker), ("step",) …"""

    stepsize = nw.Constant(0.5)

    def __init__(self, *lists):
        self._lists = list(lists)

    def start(self, server):
        self._call(server)

    def on_arrival(self, server, arrival):
        self._call(server, arrival)

    def on_timer(self, server):
        self._call(server)

    def on_join(self, server, worker):
        self._call(server)

    def resume(self, server, state):
        pass

    def _call(self, server, arrival=None):
        for verb, *arguments in self._lists.pop(0) if self._lists else ():
            if verb == "apply":
                server.apply(arrival, 0.5)
            else:
                getattr(server, verb)(*arguments)


def a_server(*lists, workers=2, **parts):
    """Return a server whose method calls these verbs, and its first commands."""
    server = Server(Verbs(*lists), np.zeros(2), workers, **parts)
    return server, server.start()


def assign(number, worker, job, version=0, time=0.0):
    return Assign(Ticket(number, worker, version, job, time))


# Assign means now


def test_a_queued_ticket_is_assigned_when_its_predecessor_has_arrived():
    server, first = a_server([("assign", 0)] * 3)
    assert first == [assign(0, 0, job=0)]
    assert server.handle(gradient_from(server, 0, time=1.0)) == [assign(1, 0, job=1)]
    assert server.handle(gradient_from(server, 0, time=2.0)) == [assign(2, 0, job=2)]
    assert server.handle(gradient_from(server, 0, time=3.0)) == []
    check_invariants(server)


def test_a_queued_ticket_is_assigned_before_what_the_method_then_assigns():
    server, _ = a_server([("assign", 0)] * 2, [("apply",), ("assign", 1), ("assign", 0), ("wake", 9.0)])
    commands = server.handle(gradient_from(server, 0, time=1.0))
    assert commands == [assign(1, 0, job=1), assign(2, 1, job=0, version=1, time=1.0), Wake(9.0)]
    assert server.handle(gradient_from(server, 0, time=2.0)) == [assign(3, 0, job=2, version=1, time=1.0)]


def test_a_ticket_that_is_queued_in_a_later_event_is_assigned_in_its_turn():
    server, _ = a_server([("assign", 0)], [("assign", 0)])
    assert server.handle(TimerFired(1.0)) == []
    assert server.handle(gradient_from(server, 0, time=2.0)) == [assign(1, 0, job=1, time=1.0)]


def test_a_queued_ticket_that_arrives_first_starts_no_other():
    server, _ = a_server([("assign", 0)] * 3)
    running, _, last = server.in_flight.of(0)
    assert server.handle(GradientArrived(last, np.ones(2), 1.0)) == []
    assert server.handle(GradientArrived(running, np.ones(2), 2.0)) == [assign(1, 0, job=1)]


def test_after_a_bad_gradient_the_queued_ticket_is_assigned_and_the_new_one_queued():
    server, _ = a_server([("assign", 0)] * 2)
    assert server.handle(gradient_from(server, 0, math.nan, time=1.0)) == [assign(1, 0, job=1)]
    assert server.handle(gradient_from(server, 0, time=2.0)) == [assign(2, 0, job=2, time=1.0)]
    check_invariants(server)


def test_a_bad_gradient_of_the_only_ticket_is_assigned_again_at_once():
    server, _ = a_server([("assign", 0)])
    assert server.handle(gradient_from(server, 0, math.nan, time=1.0)) == [assign(1, 0, job=1, time=1.0)]


def test_a_broken_worker_keeps_its_tickets_in_order():
    server, _ = a_server([("assign", 0)] * 3, workers=3)
    for _ in range(4):
        server.handle(gradient_from(server, 0, np.ones(3)))
    before = server.in_flight.of(0)
    with pytest.raises(BadWorkerError):
        server.handle(gradient_from(server, 0, np.ones(3)))
    assert server.in_flight.of(0) == before
    check_invariants(server)


def test_a_worker_that_joins_again_is_assigned_nothing_it_had_before():
    server, _ = a_server([("assign", 0)] * 2, [("assign", 0)])
    assert server.handle(WorkerLost(0, 1.0)) == []
    assert server.handle(WorkerJoined(0, 2.0)) == [assign(2, 0, job=2, time=2.0)]
    assert server.handle(gradient_from(server, 0, time=3.0)) == []
    assert server.in_flight.of(0) == ()


# Net commands


def test_a_ticket_issued_and_cancelled_in_one_event_is_in_no_command():
    server, first = a_server([("assign", 0), ("assign", 1), ("assign", 0), ("cancel", 0)])
    assert first == [assign(1, 1, job=0)]
    assert server.counts.cancelled == 2
    check_invariants(server)


def test_a_ticket_promoted_and_cancelled_in_one_event_is_in_no_command():
    server, _ = a_server([("assign", 0)] * 2, [("cancel", 0)])
    assert server.handle(gradient_from(server, 0)) == []
    assert server.counts.cancelled == 1
    assert not server.in_flight
    check_invariants(server)


def test_of_several_tickets_for_one_worker_only_the_last_one_remains():
    server, _ = a_server([("assign", 0)], [("cancel", 0), ("assign", 0)] * 3)
    assert server.handle(TimerFired(1.0)) == [Cancel(0, (0,)), assign(3, 0, job=3, time=1.0)]


def test_a_promoted_ticket_is_cancelled_like_any_other_in_a_later_event():
    server, _ = a_server([("assign", 0)] * 3, [], [("cancel", 0)])
    server.handle(gradient_from(server, 0))
    assert server.handle(TimerFired(0.0)) == [Cancel(0, (1,))]


def test_a_ticket_assigned_at_the_same_time_by_an_earlier_event_is_cancelled():
    server, _ = a_server([], [("assign", 0)], [("assign", 1), ("cancel", 0), ("cancel", 1)])
    server.handle(TimerFired(1.0))
    assert server.handle(TimerFired(1.0)) == [Cancel(0, (0,))]


def test_a_promotion_does_not_hide_that_another_ticket_was_assigned_earlier():
    server, _ = a_server([("assign", 0), ("assign", 0), ("assign", 1)], [("cancel", 1), ("cancel", 0)])
    assert server.handle(gradient_from(server, 0)) == [Cancel(1, (2,))]


def test_cancel_names_the_assigned_ticket_and_not_the_queued_ones():
    server, _ = a_server([("assign", 0)] * 3, [("cancel", 0)])
    assert server.handle(TimerFired(1.0)) == [Cancel(0, (0,))]
    assert server.counts.cancelled == 3


def test_to_cancel_a_worker_without_tickets_is_no_command():
    server, _ = a_server([], [("cancel", 0)])
    assert server.handle(TimerFired(1.0)) == []


def test_a_late_gradient_between_two_events_changes_no_command():
    server, _ = a_server([("assign", 0)], [("cancel", 0), ("assign", 0)], [("cancel", 0)])
    late = gradient_from(server, 0)
    server.handle(TimerFired(0.0))
    assert server.handle(late) == []
    assert server.handle(TimerFired(0.0)) == [Cancel(0, (1,))]


@pytest.mark.parametrize("method", [nw.RennalaSGD(0.1, batch=3), nw.MSynchronousSGD(0.1, m=2, cancel=True)])
def test_an_engine_that_only_follows_commands_agrees_with_the_books(method):
    server, assignments = Server(method, np.zeros(2), 5), Assignments()
    assignments.follow(None, server.start())
    for number in range(60):
        busy = list(assignments.by_worker)
        event = gradient_from(server, busy[number * number % len(busy)])
        assignments.follow(event, server.handle(event))
        assignments.check(server)


# Slots, and the points of cancelled tickets


def test_slots_are_the_numbers_of_the_vectors_that_were_allocated():
    vectors = []

    def allocate():
        vectors.append(np.zeros(2))
        return vectors[-1]

    server = Server(nw.AsynchronousSGD(0.5), np.zeros(2), 3, allocate=allocate)
    tickets = [command.ticket for command in server.start()]
    assert [server.slot(ticket) for ticket in tickets] == [0, 0, 0]
    [command] = server.handle(gradient_from(server, 1))
    slot = server.slot(command.ticket)
    assert slot == 1
    assert vectors[slot].tolist() == server.point(command.ticket).tolist() == [-0.5, -0.5]


def steps(server, count):
    """Let worker 1 make steps, so that vectors are written again."""
    for _ in range(count):
        server.handle(gradient_from(server, 1))


def a_server_with_a_cancelled_ticket(*, queued=0, keep_cancelled=True):
    """Return a server that goes on with worker 1 after the ticket of worker 0 was cancelled, and that ticket."""
    step = [("apply",), ("assign", 1)]
    verbs = [[("assign", 0)] * (1 + queued) + [("assign", 1)], step, [("cancel", 0)], *[step] * 100]
    server, commands = a_server(*verbs, keep_cancelled=keep_cancelled)
    steps(server, 1)
    assert server.handle(TimerFired(0.0)) == [Cancel(0, (0,))]
    return server, commands[0].ticket


@BOTH
def test_the_point_of_a_cancelled_ticket_is_kept_only_if_that_was_asked_for(keep_cancelled):
    server, ticket = a_server_with_a_cancelled_ticket(keep_cancelled=keep_cancelled)
    assert ticket.id not in server.in_flight
    check_invariants(server)
    if keep_cancelled:
        slot, point = server.slot(ticket), server.point(ticket).copy()
        steps(server, 20)
        assert (server.slot(ticket), server.point(ticket).tolist()) == (slot, point.tolist())
        check_invariants(server)
        assert slot not in {server.slot(other) for other in server.in_flight.values()}
    else:
        with pytest.raises(KeyError):
            server.slot(ticket)


def slots_used(server, count=6):
    """Return the slots of worker 1's next tickets."""
    slots = set()
    for _ in range(count):
        steps(server, 1)
        slots.add(server.slot(server.in_flight.first_of(1)))
    return slots


ENDS = {
    "late": lambda server, ticket: server.handle(GradientArrived(ticket, np.ones(2), server.now)),
    "lost": lambda server, ticket: server.handle(WorkerLost(ticket.worker, server.now)),
    "forgotten": lambda server, ticket: server.forget(ticket),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_kept_point_is_released_and_its_slot_used_again(how):
    server, ticket = a_server_with_a_cancelled_ticket()
    slot = server.slot(ticket)
    assert slot not in slots_used(server)
    ENDS[how](server, ticket)
    with pytest.raises(KeyError):
        server.slot(ticket)
    check_invariants(server)
    assert slot in slots_used(server)
    assert server._versions.num_slots == 3
    assert server.counts.late == (how == "late")


@pytest.mark.parametrize("how", ["late", "forgotten"])
def test_what_ends_a_kept_point_may_come_twice(how):
    server, ticket = a_server_with_a_cancelled_ticket()
    for _ in range(2):
        ENDS[how](server, ticket)
        check_invariants(server)


def test_a_resume_forgets_all_cancelled_tickets():
    server, ticket = a_server_with_a_cancelled_ticket()
    server.handle(Resumed(server.now))
    with pytest.raises(KeyError):
        server.slot(ticket)
    check_invariants(server)


def test_the_end_of_a_run_forgets_all_cancelled_tickets():
    server, ticket = a_server_with_a_cancelled_ticket()
    server.close()
    with pytest.raises(KeyError):
        server.slot(ticket)
    server.forget(ticket)


def test_to_forget_a_ticket_in_flight_or_an_unknown_one_changes_nothing():
    server, _ = a_server_with_a_cancelled_ticket()
    ticket = server.in_flight.first_of(1)
    server.forget(ticket)
    server.forget(Ticket(10**9, 0, 0, 0))
    assert server.slot(ticket) >= 0
    check_invariants(server)


def test_the_report_of_another_worker_does_not_release_a_kept_point():
    server, ticket = a_server_with_a_cancelled_ticket()
    server.handle(GradientArrived(ticket._replace(worker=1), np.ones(2), server.now))
    assert server.slot(ticket) >= 0


def test_only_the_tickets_of_the_lost_worker_are_forgotten():
    verbs = [[("assign", worker) for worker in range(3)], [("cancel", 0), ("cancel", 1)]]
    server, commands = a_server(*verbs, workers=3, keep_cancelled=True)
    server.handle(TimerFired(0.0))
    server.handle(WorkerLost(0, 0.0))
    with pytest.raises(KeyError):
        server.slot(commands[0].ticket)
    assert server.slot(commands[1].ticket) == 0
    check_invariants(server)


def test_points_of_tickets_that_were_never_assigned_are_not_kept():
    server, ticket = a_server_with_a_cancelled_ticket(queued=2)
    assert set(server._versions.by_ticket) == {ticket.id, *server.in_flight}
    promoted, _ = a_server([("assign", 0)] * 2, [("cancel", 0)], keep_cancelled=True)
    promoted.handle(gradient_from(promoted, 0))
    assert not promoted._versions.by_ticket
    check_invariants(promoted)


def test_a_worker_may_have_several_kept_points():
    """One that it computes, and one that it was assigned meanwhile and is not told of any more: that is forgotten."""
    verbs = [[("assign", 0)], [("cancel", 0), ("assign", 0)], [("cancel", 0), ("assign", 0)]]
    server, [first] = a_server(*verbs, workers=1, keep_cancelled=True)
    _, second = server.handle(TimerFired(1.0))
    assert server.handle(TimerFired(2.0)) == [Cancel(0, (1,)), assign(2, 0, job=2, time=2.0)]
    server.forget(second.ticket)
    assert server.slot(first.ticket) == 0
    check_invariants(server)
