"""The tickets in flight: one running for each worker, the others queued."""

import pytest

import nowait as nw
from nowait.core import GradientArrived, Method, Ticket, WorkerLost
from nowait.core.ledger import InFlight
from nowait.core.randomness import CounterRandom
from nowait.testing import a_server, check_invariants, gradient_from


class Idle(Method):
    """Assigns nothing by itself: the tests do."""

    stepsize = nw.Constant(0.5)

    def start(self, server):
        pass

    def on_arrival(self, server, arrival):
        server.apply(arrival, 0.5)


def a_server_with_a_queue():
    server = a_server(Idle(), num_workers=2)
    tickets = [server.assign(worker) for worker in (0, 0, 1, 0)]
    return server, tickets


def test_the_first_ticket_of_a_worker_runs_and_the_others_are_queued():
    server, (first, second, other, third) = a_server_with_a_queue()
    assert server.in_flight.first_of(0) == first
    assert server.in_flight.of(0) == (first, second, third)
    assert server.in_flight.first_of(1) == other
    assert server.in_flight.first_of(7) is None
    assert server.in_flight.of(7) == ()


def test_the_next_ticket_runs_when_the_first_one_is_finished():
    server, (first, second, _, third) = a_server_with_a_queue()
    server.handle(gradient_from(server, worker=0))
    assert first.id not in server.in_flight
    assert server.in_flight.of(0) == (second, third)
    assert server.in_flight.first_of(0) == second


def test_a_queued_ticket_may_finish_before_the_running_one():
    server, (first, second, _, third) = a_server_with_a_queue()
    server.handle(GradientArrived(second, server.params + 1.0, 1.0))
    assert server.in_flight.of(0) == (first, third)
    check_invariants(server)


def test_a_ticket_that_differs_in_any_field_is_late():
    server, (first, *_) = a_server_with_a_queue()
    server.handle(GradientArrived(first._replace(job=5), server.params + 1.0, 1.0))
    assert server.counts.late == 1
    assert server.in_flight.first_of(0) == first


def test_a_lost_worker_loses_its_running_and_its_queued_tickets():
    server, (_, _, other, _) = a_server_with_a_queue()
    server.handle(WorkerLost(0, 1.0))
    assert server.counts.lost == 3
    assert server.in_flight.first_of(0) is None
    assert list(server.in_flight.values()) == [other]


@pytest.mark.parametrize("seed", range(5))
def test_random_verbs_agree_with_a_list_of_tickets(seed):
    random, server, model = CounterRandom(seed, "test"), a_server(Idle(), num_workers=3), []
    for event in range(200):
        worker, verb = random.choice([0, 1, 2]), random.choice(["assign", "assign", "finish", "finish", "cancel"])
        mine = [ticket for ticket in model if ticket.worker == worker]
        if verb == "assign":
            issued, jobs = server.num_tickets, server.jobs_of(worker)
            model.append(server.assign(worker))
            assert model[-1] == Ticket(issued, worker, server.steps, jobs, server.now)
        elif verb == "cancel" and random.choice([True, False]):
            server.cancel(worker)
            model = [ticket for ticket in model if ticket.worker != worker]
        elif mine:
            ticket = random.choice(mine)
            server.handle(GradientArrived(ticket, server.params + 1.0, float(event)))
            model.remove(ticket)
        assert list(server.in_flight.values()) == model
        for each in range(3):
            expected = tuple(ticket for ticket in model if ticket.worker == each)
            assert server.in_flight.of(each) == expected
            assert server.in_flight.first_of(each) == (expected[0] if expected else None)
        assert server.in_flight.oldest() == min(model, key=lambda ticket: (ticket.version, ticket.id), default=None)
        check_invariants(server)


def test_the_oldest_ticket_is_found_whatever_the_order_of_issue():
    """A ticket at the point of an old arrival is issued after tickets at newer params."""
    tickets = InFlight()
    for number, version in enumerate((7, 9, 3, 8, 5)):
        tickets.tickets[number] = Ticket(number, number, version, 0)
    assert tickets.oldest().id == 2
    del tickets.tickets[2]
    assert tickets.oldest().id == 4
