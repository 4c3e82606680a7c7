"""Fleets for tests: nothing runs, every process that is to be started is started at once, and the state is checked."""

from nowait.core import Ticket
from nowait.fleet.server.events import HOME, Adopt, Began, HostReady, Joined, Start, Tick
from nowait.fleet.server.fleet import Fleet


def handle(fleet, event, at=0.0):
    """Pass an event to a fleet, start what it starts, and check its invariants; returns all actions."""
    actions = fleet.handle(event, at)
    for action in actions:
        if isinstance(action, Start | Adopt):
            fleet.attach(action.number, send_nothing)
    fleet.check()
    return actions


def send_nothing(ticket, slot, instruction):
    """Send an order to a process that does not exist."""


def begun(workers=2, seats=100, **options):
    """A fleet whose run has begun on this machine. The evaluator's process has serial number 1, worker 0's has 2."""
    fleet = Fleet(workers=range(workers), wanted=range(workers), **options)
    handle(fleet, HostReady(HOME, seats))
    handle(fleet, Began())
    handle(fleet, Tick())
    return fleet


def on_hosts(*seats, workers=2, **options):
    """A fleet whose workers are on hosts 1, 2, ... with so many seats; the first one is filled first."""
    fleet = Fleet(workers=range(workers), wanted=range(workers), **options)
    handle(fleet, HostReady(HOME, 0))
    for host, number_of_seats in enumerate(seats, start=1):
        handle(fleet, HostReady(host, number_of_seats, host, f"node {host}"))
    handle(fleet, Began())
    handle(fleet, Tick())
    return fleet


def order(fleet, number, ticket_id=1, at=0.0):
    """Let the server order a ticket; returns the ticket, and whether it is sent now."""
    ticket = Ticket(ticket_id, number, 0, 0)
    worker = fleet.ordered(ticket, at)
    fleet.check()
    assert worker in (None, fleet.workers[number])
    return ticket, worker is not None


def report(fleet, number, ticket_id=1, at=0.0):
    """Let a worker report on its ticket; returns what follows."""
    assert fleet.reported(number, ticket_id, at) is not None
    actions = fleet.settle(at) if fleet.unsettled else []
    fleet.check()
    return actions


def serial_of(fleet, number):
    """Return the serial number of a worker's process."""
    return fleet.workers[number].serial


def only(actions, *kinds):
    """Return the actions of these kinds."""
    return [action for action in actions if isinstance(action, kinds)]


def start_and_join(host, number, serial):
    """The actions by which a worker that the server has lost, or never had, starts."""
    return [Start(host, number, serial), Joined(number)]
