"""Any sequence of events keeps the server's invariants."""

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nowait.core import (
    BadWorkerError,
    GradientArrived,
    IllegalEvent,
    Server,
    Ticket,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from nowait.testing import CATALOGUE, check_invariants
from nowait.testing.servers import Assignments

GRADIENTS = st.sampled_from([np.array([1.0, -2.0]), np.zeros(2), np.array([0.5, 3.0])])
BAD_GRADIENTS = st.sampled_from([np.array([math.nan, 1.0]), np.array([1.0, math.inf]), np.ones(3), np.ones(1), None])


class AnyEvents(RuleBasedStateMachine):
    method = None

    def __init__(self):
        super().__init__()
        self.begin()

    def begin(self):
        self.server = Server(self.method, np.zeros(2), 6, keep_cancelled=True)
        self.assignments = Assignments()
        self.assignments.follow(None, self.server.start())
        self.finished = []
        self.stopped = self.blamed = False

    def feed(self, event):
        try:
            self.assignments.follow(event, self.server.handle(event))
        except BadWorkerError:
            self.stopped = self.blamed = True
        self.stopped = self.stopped or self.server.diverged is not None

    def snapshot(self):
        server = self.server
        return (server.params.tobytes(), server.steps, dict(server.in_flight), sorted(server.workers), server.now)

    @precondition(lambda self: not self.stopped and self.server.in_flight)
    @rule(data=st.data(), gradient=GRADIENTS, later=st.sampled_from([0.0, 1.0]))
    def a_gradient_arrives(self, data, gradient, later):
        ticket = data.draw(st.sampled_from(list(self.server.in_flight.values())))
        self.finished.append(ticket)
        gradients = self.server.counts.gradients
        self.feed(GradientArrived(ticket, gradient.copy(), self.server.now + later))
        assert self.server.counts.gradients == gradients + 1 or self.stopped

    @precondition(lambda self: not self.stopped and self.server.in_flight)
    @rule(data=st.data(), gradient=BAD_GRADIENTS)
    def a_bad_gradient_arrives(self, data, gradient):
        ticket = data.draw(st.sampled_from(list(self.server.in_flight.values())))
        before, rejected = self.server.params.copy(), self.server.counts.rejected
        self.feed(GradientArrived(ticket, gradient, self.server.now))
        assert np.array_equal(self.server.params, before)
        assert self.server.counts.rejected == rejected + (not self.blamed)
        assert (ticket.id in self.server.in_flight) == self.blamed, "a worker that is blamed still has its ticket"

    @precondition(lambda self: not self.stopped)
    @rule(data=st.data(), gradient=GRADIENTS)
    def a_late_gradient_arrives(self, data, gradient):
        unknown = Ticket(10**9, worker=0, version=0, job=0)
        ticket = data.draw(st.sampled_from([*self.finished, unknown]))
        before, late = self.snapshot(), self.server.counts.late
        self.feed(GradientArrived(ticket, gradient.copy(), self.server.now))
        assert self.snapshot() == before
        assert self.server.counts.late == late + 1

    @precondition(lambda self: not self.stopped)
    @rule(worker=st.integers(0, 8), joins=st.booleans())
    def a_worker_joins_or_leaves(self, worker, joins):
        event = (WorkerJoined if joins else WorkerLost)(worker, self.server.now)
        if joins == (worker in self.server.workers):
            before = self.snapshot()
            with pytest.raises(IllegalEvent):
                self.server.handle(event)
            assert self.snapshot() == before
        else:
            self.feed(event)
            assert (worker in self.server.workers) == joins

    @precondition(lambda self: not self.stopped and self.server._versions.cancelled)
    @rule(data=st.data(), reports=st.booleans())
    def a_cancelled_ticket_is_reported_or_forgotten(self, data, reports):
        cancelled = self.server._versions.cancelled
        number = data.draw(st.sampled_from(list(cancelled)))
        ticket, late = Ticket(number, cancelled[number], 0, 0), self.server.counts.late
        if reports:
            self.feed(GradientArrived(ticket, np.zeros(2), self.server.now))
        else:
            self.server.forget(ticket)
        assert number not in cancelled
        assert self.server.counts.late == late + reports

    @precondition(lambda self: not self.stopped)
    @rule()
    def a_timer_fires(self):
        self.feed(TimerFired(self.server.now))

    @precondition(lambda self: not self.stopped)
    @rule()
    def time_runs_backwards(self):
        before = self.snapshot()
        with pytest.raises(IllegalEvent):
            self.server.handle(TimerFired(self.server.now - 1.0))
        assert self.snapshot() == before

    @precondition(lambda self: self.stopped)
    @rule()
    def a_stopped_run_begins_again(self):
        if self.server.diverged is not None:
            before = self.snapshot()
            with pytest.raises(IllegalEvent):
                self.server.handle(TimerFired(self.server.now))
            assert self.snapshot() == before
        self.begin()

    @invariant()
    def the_books_are_in_order(self):
        check_invariants(self.server)

    @invariant()
    def workers_compute_the_first_of_their_tickets(self):
        if not self.stopped:
            self.assignments.check(self.server)

    @invariant()
    def somebody_works_while_workers_are_there(self):
        assert self.stopped or self.server.in_flight or not self.server.workers


@pytest.mark.parametrize("name", CATALOGUE)
def test_any_sequence_of_events_keeps_the_invariants(name):
    case = type("AnyEventsOfOne", (AnyEvents,), {"method": CATALOGUE[name]}).TestCase
    case.settings = settings(max_examples=20, stateful_step_count=40, deadline=None, derandomize=True, database=None)
    case("runTest").runTest()
