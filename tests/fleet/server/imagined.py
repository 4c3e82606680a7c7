"""An imagined run for property tests of the fleet: a server, hosts and processes that obey, in no particular order.

``World.step(number)`` lets the event happen that the number picks from those that are possible now. Whatever the fleet
decides is executed one by one, as the loop does it, and checked.
"""

from dataclasses import dataclass
from typing import ClassVar

from nowait.core import BadWorkerError, Ticket
from nowait.fleet.server.events import (
    HOME,
    Adopt,
    Began,
    Cancelled,
    EndHost,
    Evaluate,
    EvaluationAsked,
    Fail,
    Faulty,
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
    OpenHome,
    ProcessDied,
    ProcessLeaves,
    ProcessReady,
    Raised,
    Released,
    Send,
    Start,
    Stop,
    Tick,
)
from nowait.fleet.server.fleet import Fleet
from nowait.fleet.server.patience import LONG_PAUSE, SECONDS_TO_DIE
from nowait.fleet.wire.records import EVALUATOR, HURRY

HOSTS = (HOME, 1, 2)
SEATS = 3
MOST_WORKERS = 9


@dataclass(eq=False)
class Process:
    """A process that a test imagines."""

    number: int
    host: int
    serial: int
    order: int | None = None
    """The ticket that it computes."""
    killed_at: float | None = None


class World:
    """Three hosts and five workers. ``over`` once the fleet has ended the run."""

    def __init__(self, *, together=False, replace_hung=False, eager=False):
        workers = range(5)
        self.fleet = Fleet(
            workers=workers, wanted=workers, together=together, replace_hung=replace_hung, imitating=True
        )
        self.now = 0.0
        self.over = False
        self.processes: dict[int, Process] = {}
        """The processes whose death was not reported, by serial number."""
        self.orphans: dict[int, dict[int, Process]] = {}
        """The processes of hosts whose connection is lost, by host and serial number."""
        self.open, self.is_home_opening = set(), True
        self.joined = set(workers)
        self.tickets: dict[int, Ticket | None] = dict.fromkeys(workers)
        """The ticket of every worker of the server."""
        self.cancelled: dict[int, int] = {}
        """The workers of cancelled tickets, of which a report may still come."""
        self.eager = eager
        """True if the server gives idle workers a ticket, and replaces those of others, when a worker is lost."""
        self._last_ticket = self._order = self._checks = 0
        self._begin()

    def _begin(self):
        self.emit(HostReady(HOME, SEATS, 0))
        self.emit(HostReady(1, SEATS, 1))
        self.emit(Began())
        for number in sorted(self.joined):
            self.assign(number)
        self.emit(Tick())

    # The loop

    def emit(self, event):
        """Pass an event to the fleet, and execute what it decides."""
        if isinstance(event, HostReady):
            self.open.add(event.host)
        if isinstance(event, HostGone):
            self.open.discard(event.host)
        self.execute(self.fleet.handle(event, self.now))
        self.check()

    def execute(self, actions):
        for action in actions:
            self.executors.get(type(action), World.ignore)(self, *action)

    def ignore(self, *action):
        """Messages need nothing."""

    def adopt(self, host, number, serial):
        process = self.orphans[host].pop(serial)
        assert process.number == number
        self.start(host, number, serial)

    def kill(self, host, serial):
        assert host in self.open
        if serial in self.processes:
            self.processes[serial].killed_at = self.now

    def send(self, number, ticket):
        process = self.process_of(number)
        assert process is not None, "a ticket for a worker without a process"
        assert process.order is None, "a second ticket, whose gradient would overwrite that of the first"
        process.order = ticket.id

    def instruct(self, number, instruction, value):
        process = self.process_of(number)
        assert process is not None
        assert instruction != HURRY or process.order == value

    def order_evaluation(self, order, slot, step):
        assert self.process_of(EVALUATOR) is not None
        self._order = order

    def end_host(self, host, reason):
        self.open.remove(host)
        self.bury(host)

    def open_home(self):
        self.is_home_opening = True

    def stop(self, *reason):
        self.over = True

    def start(self, host, number, serial):
        """Imagine a process. A number never has two, except if one cannot be killed."""
        assert host in self.open
        assert number < 0 or not self.fleet.finished, "a worker was started after the end"
        for other in self.processes.values():
            is_undead = other.killed_at is not None and self.now - other.killed_at >= SECONDS_TO_DIE
            assert other.number != number or is_undead, "two processes of one number"
        self.processes = {known: process for known, process in self.processes.items() if process.number != number}
        self.processes[serial] = Process(number, host, serial)
        self.fleet.attach(number, lambda *order: None)

    def process_of(self, number):
        return next((process for process in self.processes.values() if process.number == number), None)

    def bury(self, host):
        """All processes of a host are gone; returns them."""
        gone = {serial: process for serial, process in self.processes.items() if process.host == host}
        self.processes = {serial: process for serial, process in self.processes.items() if process.host != host}
        return gone

    # The server

    def assign(self, number):
        self._last_ticket += 1
        ticket = self.tickets[number] = Ticket(self._last_ticket, number, 0, 0)
        if self.fleet.ordered(ticket, self.now) is not None:
            self.send(number, ticket)

    def lost(self, number):
        if self.fleet.finished:
            return
        assert number in self.joined, "lost twice"
        self.joined.remove(number)
        self.tickets[number] = None
        for other in sorted(self.joined) if self.eager else ():
            if self.tickets[other] is not None:
                self.cancel(other)
            self.assign(other)

    def join(self, number):
        if self.fleet.finished:
            return
        assert number not in self.joined, "joined twice"
        self.joined.add(number)
        self.assign(number)

    def forget(self, ticket):
        self.cancelled.pop(ticket.id, None)

    def cancel(self, number):
        ticket, self.tickets[number] = self.tickets[number], None
        self.cancelled[ticket.id] = number
        self.execute(self.fleet.handle(Cancelled(number, (ticket.id,)), self.now))

    # What may happen

    def possible(self):
        """Return what may happen now, as pairs of a function and its arguments."""
        happenings = [
            *[(self.tick, seconds) for seconds in (0.25, 0.25, LONG_PAUSE, 40.0, 300.0)],
            *[(self.report, process) for process in self.processes.values() if process.order is not None],
            *[(self.die, process) for process in self.processes.values()],
            *[(self.emit, ProcessLeaves(process.serial)) for process in self.processes.values()],
            *[(self.emit, ProcessReady(process.number)) for process in self.processes.values()],
            *[(self.lose, host) for host in sorted(self.open)],
            *[(self.emit, HostLeaves(host, seconds)) for host in sorted(self.open - {HOME}) for seconds in (1.0, 60.0)],
            *[(self.connect, host) for host in HOSTS[1:] if host not in self.open],
            (self.emit, EvaluationAsked(0, 0)),
            (self.evaluate, self._order),
        ]
        if self.is_home_opening and HOME not in self.open:
            happenings += [(self.connect, HOME), (self.emit, HostGone(HOME, "was killed while it was opened"))]
        if self.fleet.holding:
            happenings.append((self.emit, Released(0.0)))
        return happenings if self.fleet.finished else [*happenings, *self.possible_before_the_end()]

    def possible_before_the_end(self):
        busy = [number for number in sorted(self.joined) if self.tickets[number] is not None]
        computing = [process for process in self.processes.values() if process.order is not None and process.order > 0]
        return [
            *[(self.fail, process, kind) for process in computing for kind in ("E", "MemoryError")],
            *[(self.replace, number) for number in busy],
            *[(self.cancel, number) for number in busy],
            *[(self.assign, number) for number in sorted(self.joined) if self.tickets[number] is None],
            *[(self.lend, number) for number in self.fleet.idle],
            *[(self.emit, LeaveAsked(number)) for number in self.fleet.wanted()[:1]],
            *[(self.emit, Faulty(BadWorkerError(number, "is faulty"), True)) for number in self.fleet.members[-1:]],
            *[(self.emit, JoinAsked()) for _ in range(len(self.fleet.workers), MOST_WORKERS)],
        ]

    def step(self, number):
        """Let one of the possible events happen."""
        if not self.over:
            happenings = self.possible()
            function, *arguments = happenings[number % len(happenings)]
            function(*arguments)
            self.check()

    def tick(self, seconds):
        self.now += seconds
        self.emit(Tick())

    def report(self, process):
        number, ticket_id, process.order = process.number, process.order, None
        if ticket_id < 0:
            self.fleet.checked(number, ticket_id, self.now)
        elif self.fleet.reported(number, ticket_id, self.now) is not None and not self.fleet.finished:
            was_cancelled = self.cancelled.pop(ticket_id, None) is not None
            if not was_cancelled:
                assert self.tickets[number].id == ticket_id
                self.tickets[number] = None
                if ticket_id % 3:
                    self.assign(number)
        self.execute(self.fleet.settle(self.now))

    def fail(self, process, kind):
        ticket_id, process.order = process.order, None
        self.emit(Raised(process.number, ticket_id, kind, "its traceback", any_gradient=True))

    def die(self, process):
        del self.processes[process.serial]
        self.emit(ProcessDied(process.serial, -9))

    def replace(self, number):
        """The server cancels a worker's ticket and gives it another one."""
        self.cancel(number)
        self.assign(number)

    def lend(self, number):
        self._checks += 1
        check = Ticket(-self._checks, 0, 0, 0)
        if self.fleet.lend(number, check, self.now) is not None:
            self.send(number, check)

    def evaluate(self, order):
        self.fleet.evaluated(order, self.now)

    def lose(self, host):
        """A connection is lost (the processes may come back), or HOME is killed."""
        gone = self.bury(host)
        self.is_home_opening = self.is_home_opening and host != HOME
        if host != HOME:
            self.orphans[host] = gone
        self.emit(HostGone(host, "was lost"))

    def connect(self, host):
        processes = {serial: process.number for serial, process in self.orphans.get(host, {}).items()}
        self.emit(HostReady(host, SEATS, host, processes=processes))
        self.orphans.pop(host, None)

    # What holds at any time

    def check(self):
        """Check the invariants of the fleet, that its view is right, and that every ticket is computed or will be."""
        self.fleet.check()
        if self.over or self.fleet.finished:
            return
        for number in self.joined:
            ticket, worker, process = self.tickets[number], self.fleet.workers[number], self.process_of(number)
            is_next = worker.next is not None and worker.next == ticket
            assert ticket is None or is_next or (process is not None and process.order == ticket.id), worker
            assert worker.next is None or is_next, "a ticket that the server has forgotten"
        assert set(self.fleet.members) <= self.joined
        assert len(self.open & set(self.fleet.hosts)) == len(self.open), "a host is unknown"

    def heal(self):
        """Nothing fails any more: deaths are reported, hosts open, workers report, and time passes."""
        if self.fleet.holding:
            self.emit(Released(0.0))
        for _ in range(8):
            for process in list(self.processes.values()):
                if process.serial in self.processes and process.killed_at is not None:
                    self.die(process)
                elif process.serial in self.processes and process.order is not None:
                    self.report(process)
            if HOME not in self.open and self.is_home_opening:
                self.connect(HOME)
            if 9 not in self.open:
                self.emit(HostReady(9, 50, 9))
            self.tick(3.0)

    executors: ClassVar = {
        Start: start,
        Adopt: adopt,
        Kill: kill,
        Send: send,
        Instruct: instruct,
        Evaluate: order_evaluation,
        EndHost: end_host,
        OpenHome: open_home,
        Lost: lost,
        Joined: join,
        Forget: forget,
        Stop: stop,
        Fail: stop,
    }
