"""The state machine of workers and hosts: who runs where, computes what, leaves, dies, hangs, is replaced or given up.

``Fleet.handle(event, at)`` changes the state and returns the actions to execute, in order. No clock, no input or
output: times are seconds of the monotonic clock. Only this class writes what is known about workers and hosts. For what
happens once per gradient there are two methods instead of events, ``reported`` and ``ordered``.

The life of a worker, by its number (``ENDING`` and ``ABSENT`` ones are not workers of the server). Before ``IDLE``, it
is ``STARTING`` until the loop has executed ``Start``, and ``HELD`` until a run that starts together has begun:

    ABSENT ── a seat, and its time has come ──► IDLE ◄── report ── COMPUTING ◄── ticket ── IDLE
    COMPUTING ── the server cancels its ticket ──► CANCELLED ── report ──► IDLE, or COMPUTING if it has a next ticket
    COMPUTING ── it or its host leaves ──► LEAVING ── report ──► ENDING ── its process is dead ──► ABSENT
    any ── its process dies, or its host is gone ──► ABSENT, for a while if that happens again and again

One number never has two processes: both would write their gradients to the same memory. So a worker that was killed is
started again, here or elsewhere, only when the death of its process was reported, its host is gone, or it was waited
for long enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, final

from nowait.core import Ticket
from nowait.engines.live import WorkerView
from nowait.fleet.server.events import (
    HOME,
    Action,
    Adopt,
    Began,
    Cancelled,
    Ended,
    EndHost,
    Evaluate,
    EvaluationAsked,
    Event,
    Fail,
    Faulty,
    FingerprintAsked,
    Fingerprinted,
    Forget,
    HostGone,
    HostLeaves,
    HostReady,
    Identify,
    Instruct,
    JoinAsked,
    Joined,
    Kill,
    LeaveAsked,
    Lost,
    Note,
    OpenHome,
    ProcessDied,
    ProcessLeaves,
    ProcessReady,
    Raised,
    Released,
    Send,
    SendOrder,
    Start,
    Stop,
    Tick,
    Warn,
)
from nowait.fleet.server.patience import LONG_PAUSE, MOST_FAULTY, SECONDS_TO_DIE, Deaths, Failures
from nowait.fleet.server.workers import COMPUTING, IDLE, Host, State, Worker
from nowait.fleet.wire.records import ANNOUNCE, BEGIN, EVALUATOR, FINGERPRINTER, FORGET, HURRY, KEEP, UNDO, cause_of
from nowait.recording.worker_stats import WorkerStats


@final
class Fleet:
    """All workers and hosts of one run.

    ``workers`` are those of the server; the other ``wanted`` ones join as soon as there is a seat. New workers get
    numbers above ``numbers_used``. A host that has had no workers for ``idle_seconds`` is ended. With ``together`` no
    worker gets a ticket before ``Released``. ``imitating``: workers imitate slower ones, so they can cut a cancelled
    ticket short.
    """

    def __init__(
        self,
        *,
        workers: Iterable[int] = (),
        wanted: Iterable[int] = (),
        numbers_used: Iterable[int] = (),
        max_failures: int = 5,
        replace_hung: bool = False,
        idle_seconds: float = math.inf,
        together: bool = False,
        imitating: bool = False,
    ) -> None:
        self._of_server = list(workers)
        numbers = sorted({*self._of_server, *wanted})
        self.workers: dict[int, Worker] = {number: Worker(number) for number in [*self._of_server, *numbers]}
        """All workers that are wanted or have a process, by number; also the evaluator, and the fingerprint process."""
        self.hosts: dict[int, Host] = {}
        """The hosts that are open, by number."""
        self.failures = Failures()
        self.due = math.inf
        """When ``Tick`` is to be handled at the latest; it may be handled earlier."""
        self.unsettled: list[Worker] = []
        """Workers whose report needs more than the next ticket: ``settle`` returns what has to be done."""
        self.unchecked: set[int] = set()
        """The workers whose process has not delivered a gradient that an audit may look at."""
        self.finished = self.holding = False
        """``finished``: the run is over. ``holding``: workers get no tickets until all of them are ready."""
        self._together, self._imitating = together, imitating
        self._max_failures, self._replace_hung, self._idle_seconds = max_failures, replace_hung, idle_seconds
        self._begun = False
        self._processes: dict[int, Worker] = {}
        """The processes whose death was not reported, by serial number."""
        self._last_serial = 0
        self._last_number = max([*numbers, *numbers_used], default=-1)
        self._unplaced: list[int] = []
        """Workers of the server that had no seat at the start; the server has not been told yet."""
        self._home_deaths, self._home_opens_at = Deaths(), math.inf
        self._looked = -math.inf
        """When ``Tick`` was handled last."""
        self._order = 0
        """The number of the latest order to the evaluator."""
        self._asked: tuple[int, int] | None = None
        """The slot and the step of the params that are being evaluated."""
        self._fingerprint_asked = self.identifying = False
        """``identifying``: a fingerprint is awaited. ``_fingerprint_asked``: its process has not been started yet."""

    # Once per gradient

    def reported(self, number: int, ticket_id: int, at: float) -> Ticket | None:
        """Return the ticket that a worker has reported on; None if the report is not to be used."""
        worker = self.workers.get(number)
        if worker is None or (ticket := worker.ticket) is None or ticket[0] != ticket_id:
            return None
        worker.ticket, worker.took = None, at - worker.sent  # with what the network needs, as time since an order is
        if worker.state is COMPUTING and worker.proven:
            worker.state, worker.instruction = IDLE, KEEP
        else:
            self._reported_unusually(worker)
        return ticket

    def ordered(self, ticket: Ticket, at: float) -> Worker | None:
        """Return the worker that computes a new ticket of the server now; None if it is sent later, or never."""
        worker = self.workers[ticket[1]]
        if worker.state is not IDLE:
            worker.next = ticket if worker.is_member else None  # without a process: the server learns of its loss
            return None
        worker.state, worker.ticket, worker.sent = COMPUTING, ticket, at
        return worker

    def _reported_unusually(self, worker: Worker) -> None:
        if worker.state is State.LEAVING:
            self.unsettled.append(worker)
            return
        worker.instruction = UNDO if worker.state is State.CANCELLED else KEEP
        worker.state = IDLE
        if worker.next is not None:
            self.unsettled.append(worker)
        self._prove(worker)

    def _prove(self, worker: Worker) -> None:
        """Reset the failures of a worker that delivered, and those of HOME if it runs there."""
        worker.proven, worker.deaths.count = True, 0
        self.failures.forgive(worker.number)
        if worker.host == HOME:
            self._home_deaths.count = 0

    def settle(self, at: float) -> list[Action]:
        """Return what follows from unusual reports: next tickets, and departures."""
        unsettled, self.unsettled = self.unsettled, []
        actions: list[Action] = []
        for worker in unsettled:
            if worker.state is State.LEAVING and worker.ticket is None:
                actions += self._depart([worker], at)
            elif worker.state is IDLE and worker.next is not None:
                actions.append(self._send_next(worker, at))
        return actions

    def _send_next(self, worker: Worker, at: float) -> Send:
        ticket, worker.next = worker.next, None
        assert ticket is not None
        worker.state, worker.ticket, worker.sent = COMPUTING, ticket, at
        return Send(worker.number, ticket)

    # Audits

    def take_unchecked(self, number: int) -> bool:
        """Return True if no gradient of a worker's present process was chosen for an audit; one is chosen now."""
        is_first = number in self.unchecked
        self.unchecked.discard(number)
        return is_first

    def lend(self, number: int, check: Ticket, at: float) -> Worker | None:
        """Return an idle worker that computes a check of an audit now; None if it is not idle."""
        worker = self.workers[number]
        if worker.state is not IDLE or self.finished:
            return None
        worker.state, worker.task, worker.sent = COMPUTING, check, at
        return worker

    def checked(self, number: int, ticket_id: int, at: float) -> Ticket | None:
        """Return the check that a worker has computed, or failed to compute; None if it has no such check."""
        worker = self.workers.get(number)
        if worker is None or number < 0 or worker.task is None or worker.task[0] != ticket_id:
            return None
        check, worker.task, worker.took, worker.state = worker.task, None, at - worker.sent, IDLE
        self.unsettled.append(worker)
        return check

    # What is asked

    def attach(self, number: int, send: SendOrder) -> None:
        """Take what sends orders to the process of a worker, which was started.

        What the server ordered until now was for the process before: it has not been told yet that this one is lost.
        """
        worker = self.workers[number]
        worker.send = send
        if worker.state is State.STARTING:
            worker.state, worker.next = State.HELD if self.holding else IDLE, None

    @property
    def members(self) -> list[int]:
        """The workers of the server that have a process."""
        return [worker.number for worker in self._real() if worker.is_member]

    def is_idle(self, number: int) -> bool:
        """Return True if a worker has a process and no ticket."""
        return number in self.workers and self.workers[number].state is IDLE

    @property
    def idle(self) -> list[int]:
        """The workers that have no ticket."""
        return [worker.number for worker in self._real() if worker.state is IDLE]

    @property
    def room(self) -> float:
        """How many more workers could be started now."""
        return sum(host.room for host in self.hosts.values())

    @property
    def is_home_open(self) -> bool:
        """True while processes can be started on this machine."""
        return HOME in self.hosts

    @property
    def not_ready(self) -> list[int]:
        """The workers that are held and whose processes are not ready, sorted."""
        return sorted(worker.number for worker in self._real() if worker.state is State.HELD and not worker.ready)

    @property
    def has_evaluator(self) -> bool:
        """True while there is a process that evaluates losses."""
        return EVALUATOR in self.workers and self.workers[EVALUATOR].is_member

    def missing(self, at: float) -> int:
        """Return how many workers have no seat."""
        return sum(worker.state is State.ABSENT and worker.wanted and worker.until <= at for worker in self._real())

    def wanted(self) -> list[int]:
        """Return the workers that a resumed run should have: those that work, wait, join or will be replaced."""
        return sorted(worker.number for worker in self._real() if worker.wanted)

    def host_of(self, number: int) -> int:
        """Return the host of a worker; HOME if it has no process."""
        worker = self.workers.get(number)
        return HOME if worker is None or not worker.is_member else worker.host

    def hosts_of_members(self) -> dict[int, int]:
        """Return the host of each worker of the server."""
        return {worker.number: worker.host for worker in self._real() if worker.is_member}

    def name_of(self, host: int) -> str:
        """Return the name of a host's node; empty if it is gone or has none."""
        return self.hosts[host].name if host in self.hosts else ""

    def label_of(self, host: int) -> str:
        """Return how messages call a host; empty if it is gone or has no name."""
        return self.hosts[host].label if host in self.hosts else ""

    def computes(self, number: int, ticket_id: int) -> bool:
        """Return True if this worker computes this ticket."""
        worker = self.workers.get(number)
        return worker is not None and worker.current is not None and worker.current[0] == ticket_id

    def is_computed(self, ticket_id: int) -> bool:
        """Return True if some worker computes this ticket."""
        return any(self.computes(worker.number, ticket_id) for worker in self._real())

    def views(
        self, at: float, jobs_of: Callable[[int], int], by_worker: Iterable[WorkerStats] = ()
    ) -> list[WorkerView]:
        """Return what the live view shows of each worker; ``jobs_of`` counts the tickets it was given."""
        known = {stats.worker: stats for stats in by_worker}
        return [
            _view(worker, at, jobs_of, known.get(worker.number))
            for worker in sorted(self._real(), key=lambda worker: not worker.is_member)
            if worker.wanted
        ]

    def _real(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.number >= 0]

    # Events

    def handle(self, event: Event, at: float) -> list[Action]:
        """Change the state as an event requires; returns what has to be done, in order."""
        return self._handlers[type(event)](self, event, at)

    def _on_began(self, event: Began, at: float) -> list[Action]:
        """Start the evaluator, and the workers of the server as far as there are seats."""
        self._begun, self.holding, self._looked = True, self._together, at
        actions = self._start_evaluator(at)
        for number in self._of_server:
            worker, host = self.workers[number], self._seat()
            if host is None or not worker.wanted:
                self._unplaced.append(number)
            else:
                actions += self._start(worker, host)
        self.due = at
        return actions

    def _on_released(self, event: Released, at: float) -> list[Action]:
        """Tell all processes when the run began, then send the first tickets."""
        self.holding = False
        actions: list[Action] = []
        for worker in self._real():
            if worker.is_member:
                actions.append(Instruct(worker.number, BEGIN, round(1e9 * event.later)))
            if worker.state is State.HELD:
                worker.state = IDLE
                actions += [] if worker.next is None else [self._send_next(worker, at)]
        return actions

    def _on_ready_process(self, event: ProcessReady, at: float) -> list[Action]:
        if event.number in self.workers:
            self.workers[event.number].ready = True
        return []

    def _on_ended(self, event: Ended, at: float) -> list[Action]:
        self.finished = True
        return []

    def _on_tick(self, event: Tick, at: float) -> list[Action]:
        """Do all that is due: removals, restarts, workers and processes that take too long, hosts nobody needs."""
        self.due = math.inf
        actions = self._start_evaluator(at)  # first, because an evaluation may be asked for when workers are lost
        actions += [*self._start_fingerprint(), *(Lost(number) for number in self._unplaced)]
        if self._home_opens_at <= at:
            self._home_opens_at = math.inf
            actions.append(OpenHome())
        actions += [*self._remove_unwanted(at), *self._name_hanging(at), *self._give_up_undead(at)]
        self._unplaced.clear()
        if not self.finished:
            actions += [*self._see_off(at), *self._fill(at), *self._give_back(at)]
        self._looked = at
        self._plan()
        return actions

    def _plan(self) -> None:
        """Find out when something is due: absent workers that are to start later, and HOME that is to be opened."""
        absent = [worker for worker in self.workers.values() if worker.state is State.ABSENT and worker.wanted]
        needed = [worker for worker in absent if worker.number == EVALUATOR or not self.finished]
        later = [worker.until for worker in needed if worker.until > self._looked]
        self.due = min([self.due, self._home_opens_at, *later])

    # Requests of callbacks: they are marked here, and carried out with the next Tick

    def _on_join_asked(self, event: JoinAsked, at: float) -> list[Action]:
        self._last_number += 1
        self.workers[self._last_number] = Worker(self._last_number, until=at)
        self.due = -math.inf
        return []

    def _on_leave_asked(self, event: LeaveAsked, at: float) -> list[Action]:
        if event.number in self.workers:
            self.workers[event.number].wanted = False
            self.due = -math.inf
        return []

    def _remove_unwanted(self, at: float) -> list[Action]:
        """End the workers that are not wanted any more, and forget them once the server knows of their loss."""
        actions: list[Action] = []
        unwanted = [worker for worker in self._real() if not worker.wanted and worker.state is not State.ENDING]
        for worker in unwanted:
            if worker.is_member:
                actions += self._end(worker, at)
            elif worker.number not in self._unplaced:
                del self.workers[worker.number]
        if unwanted and not self.wanted() and not self.finished:
            actions.append(Stop("every worker was removed"))
        return actions

    # Hosts

    def _seat(self) -> Host | None:
        """Return the nearest host with a free seat, of several the one that was opened first; None if all are full."""
        free = [host for host in self.hosts.values() if host.room > 0]
        return min(free, key=lambda host: host.distance, default=None)

    def _on_host_ready(self, event: HostReady, at: float) -> list[Action]:
        if event.host in self.hosts:
            raise ValueError(f"host {event.host} is open already")
        host = Host(event.host, event.seats, event.distance, event.name, event.label or event.name, idle_since=at)
        self.hosts[event.host] = host
        actions: list[Action] = []
        for serial, number in event.processes.items():
            actions += self._adopt(host, number, serial)
        if event.host == HOME:
            actions += [*self._start_fingerprint(), *self._start_evaluator(at)]
        return [*actions, *self._fill(at)]

    def _adopt(self, host: Host, number: int, serial: int) -> list[Action]:
        """Let a process go on that ran before its host connected again, if its number has none; else kill it."""
        worker = self.workers.get(number)
        can_use = self._begun and not self.finished and host.room > 0
        if worker is None or not worker.wanted or worker.state is not State.ABSENT or not can_use:
            return [Kill(host.number, serial)]
        self._place(worker, host, serial)
        return [Adopt(host.number, number, serial), *self._announce(worker), Joined(number)]

    def _on_host_leaves(self, event: HostLeaves, at: float) -> list[Action]:
        """Send the workers of a host no more tickets. Those that compute none for the server depart at once."""
        host = self.hosts.get(event.host)
        if host is None:
            return [EndHost(event.host)]
        was_leaving, host.leaves_at = host.is_leaving, min(host.leaves_at, at + event.seconds)
        if was_leaving:
            return []
        workers = self._members_on(host.number)
        note = f"a host leaves within {event.seconds:.0f} s: its workers {_numbers(workers)} deliver what they compute"
        return [Note(note), *self._retire(workers, at), *self._end_left()]

    def _on_host_gone(self, event: HostGone, at: float) -> list[Action]:
        """Handle the loss of a host. Its workers have not failed: they are replaced where there are seats."""
        host = self.hosts.pop(event.host, None)
        if host is None:
            return self._on_home_not_opened(event, at) if event.host == HOME else []
        workers = self._members_on(host.number)
        with_it = f", and workers {_numbers(workers)} with it" if workers else ""
        if host.is_leaving:
            actions: list[Action] = [Note(f"{event.cause}{with_it}, as announced")]
        else:
            restarted = ": it is started again" if host.number == HOME else ""
            actions = [Warn(f"{event.cause}{with_it}: they are replaced" if with_it else f"{event.cause}{restarted}")]
        actions += self._lose_all(host.number, at)
        if host.number != HOME:
            return [*actions, *self._fill(at)]
        # last, because hosts that wait for the fingerprint may open then
        unknown = self._lose_fingerprint(event.cause)
        return [*actions, *self._close_home(event.cause, at), *self._fill(at), *unknown]

    def _on_home_not_opened(self, event: HostGone, at: float) -> list[Action]:
        """HOME could not load the problem, or was gone before it had done so."""
        if event.lasting or not self._begun:
            return [Fail(f"workers could not load the problem:\n{event.cause}")]
        return [Warn(f"{event.cause}: it is started again"), *self._close_home(event.cause, at)]

    def _close_home(self, cause: str, at: float) -> list[Action]:
        """Open HOME again, after a pause if it is gone again and again."""
        self.failures.deaths += 1
        pause = self._home_deaths.pause(self._max_failures)
        if pause is None:
            return [Fail(f"the process that starts workers ended repeatedly, last because {cause}")]
        self._home_opens_at = at + pause
        self.due = min(self.due, self._home_opens_at)
        return []

    def _lose_all(self, host: int, at: float) -> list[Action]:
        """Forget all processes of a host that is gone."""
        actions: list[Action] = []
        for worker in [worker for worker in self._processes.values() if worker.host == host]:
            actions += self._lose(worker, at, at)
        return actions

    def _members_on(self, host: int) -> list[Worker]:
        return [worker for worker in self._real() if worker.is_member and worker.host == host]

    def _end_left(self) -> list[Action]:
        """End the leaving hosts that have no processes any more."""
        return [
            action
            for host in list(self.hosts.values())
            if host.is_leaving and host.used == 0
            for action in self._end_host(host)
        ]

    def _end_host(self, host: Host, reason: str = "") -> list[Action]:
        del self.hosts[host.number]
        return [EndHost(host.number, reason)]

    def _give_back(self, at: float) -> list[Action]:
        """End the hosts, except HOME, that have had no workers for a while; not while workers of another one leave."""
        actions: list[Action] = []
        if not self._begun or any(host.is_leaving for host in self.hosts.values()):
            return actions
        for host in list(self.hosts.values()):
            if host.used == 0 and host.number != HOME and at - host.idle_since >= self._idle_seconds:
                note = f"a host has had no workers for {self._idle_seconds:g} s: it is given back"
                actions += [Note(note), *self._end_host(host)]
        return actions

    # Processes

    def _place(self, worker: Worker, host: Host, serial: int) -> None:
        """Note that a worker has a process on a host."""
        worker.host, worker.serial, worker.dead_by = host.number, serial, math.inf
        worker.state = State.STARTING if worker.number >= 0 else IDLE
        worker.ticket = worker.next = worker.task = worker.send = None
        worker.instruction, worker.ready, worker.proven = FORGET, False, False
        self._processes[serial] = worker
        if worker.number >= 0:
            host.used += 1
            self.unchecked.add(worker.number)

    def _start(self, worker: Worker, host: Host) -> list[Action]:
        self._last_serial += 1
        self._place(worker, host, self._last_serial)
        return [Start(host.number, worker.number, worker.serial), *self._announce(worker)]

    def _announce(self, worker: Worker) -> list[Action]:
        """Let a process that is held say when it is ready."""
        return [Instruct(worker.number, ANNOUNCE)] if self.holding and worker.number >= 0 else []

    def _fill(self, at: float) -> list[Action]:
        """Start the absent workers whose time has come, as far as there are seats."""
        actions: list[Action] = []
        if self.finished or not self._begun or self._unplaced:
            return actions
        absent = [worker for worker in self._real() if worker.state is State.ABSENT and worker.wanted]
        for worker in sorted(absent, key=lambda worker: worker.number):
            if worker.until <= at and (host := self._seat()) is not None:
                actions += [*self._start(worker, host), Joined(worker.number)]
        return actions

    def _vacate(self, worker: Worker, at: float) -> None:
        """Note that the process of a worker is dead."""
        del self._processes[worker.serial]
        worker.state, worker.send, worker.serial, worker.dead_by = State.ABSENT, None, 0, math.inf
        if worker.number >= 0 and worker.host in self.hosts:
            host = self.hosts[worker.host]
            host.used -= 1
            host.idle_since = at
        if worker.number == FINGERPRINTER:
            del self.workers[worker.number]

    def _drop_tickets(self, worker: Worker) -> list[Action]:
        """Drop what a worker computes and was to compute. The server forgets its own tickets with the worker."""
        check, worker.ticket, worker.next, worker.task = worker.task, None, None, None
        self.unchecked.discard(worker.number)
        return [Forget(check)] if check is not None and worker.number >= 0 else []

    def _lose(self, worker: Worker, at: float, until: float) -> list[Action]:
        """A process is dead: its worker is absent until a time."""
        worker.until = until
        lost: list[Action] = [Lost(worker.number)] if worker.is_member and worker.number >= 0 else []
        actions = [*self._drop_tickets(worker), *lost]
        self._vacate(worker, at)
        if worker.wanted and until > at:
            self.due = min(self.due, until)
        return actions

    def _end(self, worker: Worker, at: float, *, until: float = -math.inf) -> list[Action]:
        """Kill the process of a worker, which is lost now; it is absent until a time when its process is dead."""
        dropped = self._drop_tickets(worker)
        worker.state, worker.until, worker.dead_by = State.ENDING, until, at + SECONDS_TO_DIE
        return [Kill(worker.host, worker.serial), *dropped, Lost(worker.number)]

    def _on_process_died(self, event: ProcessDied, at: float) -> list[Action]:
        worker = self._processes.get(event.serial)
        if worker is None:
            return []
        cause = cause_of(event.code)
        if worker.number == FINGERPRINTER:
            self._vacate(worker, at)
            return self._lose_fingerprint(f"the process that computed one gradient {cause}")
        if worker.number == EVALUATOR:
            return self._on_evaluator_died(worker, cause, at)
        if worker.state is State.ENDING:
            self._vacate(worker, at)
            return [*self._end_left(), *self._fill(at)]
        if worker.state is State.LEAVING or not worker.wanted:
            note = Note(f"worker {worker.number}, which was leaving, {cause}")
            return [note, *self._lose(worker, at, at), *self._end_left(), *self._fill(at)]
        return self._on_worker_died(worker, cause, at)

    def _on_worker_died(self, worker: Worker, cause: str, at: float) -> list[Action]:
        self.failures.deaths += 1
        pause = worker.deaths.pause(self._max_failures)
        if pause is not None:
            warning = Warn(f"worker {worker.number} {cause}: it is replaced")
            return [warning, *self._lose(worker, at, at + pause), *self._fill(at)]
        fail = Fail(f"no worker is left: worker {worker.number}, the last one, {cause}", while_running=True)
        return self._give_up(worker, f"{cause} repeatedly", fail, at, is_dead=True)

    # Giving up

    def _give_up(self, worker: Worker, cause: str, fail: Fail, at: float, *, is_dead: bool = False) -> list[Action]:
        """Give up a worker that keeps failing; on HOME for good, else it goes on with another host, once.

        A host whose workers keep failing is given up too, unless all workers are there. The run ends with ``fail`` if
        no worker is left.
        """
        host, what = self.hosts[worker.host], f"worker {worker.number} {cause}"
        worker.wanted = worker.wanted and host.number != HOME and not worker.moved
        fate = "it goes on with another host, if there is room" if worker.wanted else "it is no longer replaced"
        worker.moved, worker.deaths.count = True, 0
        self.failures.forgive(worker.number)
        ended = self._lose(worker, at, at) if is_dead else self._end(worker, at, until=at)
        actions = [Warn(f"{what}: {fate}"), *ended]
        if host.number != HOME:
            host.seats -= 1
            host.faults += 1
            actions += self._give_up_host(host, what, at) if self._is_faulty(host) else []
        actions += self._fill(at)
        if not self.finished and self._nobody_goes_on(at):
            actions.append(fail)
        return actions

    def _is_faulty(self, host: Host) -> bool:
        """Return True for a host without other workers, or with several that were given up, unless all are there."""
        others = self._members_on(host.number)
        all_members = [worker for worker in self._real() if worker.is_member]
        return not others or (host.faults >= MOST_FAULTY and len(others) < len(all_members))

    def _give_up_host(self, host: Host, cause: str, at: float) -> list[Action]:
        """End a host for good, with all its processes. Other hosts with seats replace its workers."""
        workers = self._members_on(host.number)
        also = f"; its workers {_numbers(workers)} are replaced" if workers else ""
        name = host.label and f" {host.label}"
        ended = self._end_host(host, cause)
        return [
            Warn(f"the host{name} is given up, because {cause}{also}"),
            *self._lose_all(host.number, at),
            *ended,
        ]

    def _nobody_goes_on(self, at: float) -> bool:
        """Return True if no worker has a process, and none will get one without another host."""
        wanted = [worker for worker in self._real() if worker.wanted]
        if any(worker.is_member or worker.until > at for worker in wanted):
            return False
        return not wanted or all(host.is_leaving or host.seats <= 0 for host in self.hosts.values())

    def _give_up_undead(self, at: float) -> list[Action]:
        """Give up the processes that were killed and do not die; after the end only the evaluator's is needed."""
        if at - self._looked > LONG_PAUSE:
            for worker in self._processes.values():
                worker.dead_by = max(worker.dead_by, at + SECONDS_TO_DIE)
        actions: list[Action] = []
        for worker in [worker for worker in self._processes.values() if worker.dead_by <= at]:
            if worker.serial in self._processes and (worker.number == EVALUATOR or not self.finished):
                actions += self._give_up_process(worker, at)
        return actions

    def _give_up_process(self, worker: Worker, at: float) -> list[Action]:
        """Give up a process that does not die; unless it is on HOME, or its host leaves anyway, with its whole host."""
        host, cause = self.hosts[worker.host], f"was killed, but its process did not end within {SECONDS_TO_DIE:.0f} s"
        if host.number != HOME and not host.is_leaving:
            return self._give_up_host(host, f"worker {worker.number} {cause}", at)
        name = "the process that computes losses" if worker.number == EVALUATOR else f"worker {worker.number}"
        message = f"{name} {cause}: another replaces it"
        said: list[Action] = [Note(message) if host.is_leaving else Warn(message)] if worker.wanted else []
        return [*said, *self._lose(worker, at, at)]

    # Errors

    def _on_raised(self, event: Raised, at: float) -> list[Action]:
        """A worker could not compute its ticket; the server gives it another one."""
        worker = self.workers.get(event.number)
        if worker is None or worker.ticket is None or worker.ticket[0] != event.ticket_id or self.finished:
            return []
        number, kind = worker.number, event.kind
        if worker.state is State.LEAVING:
            return [*self._warnings_of(event), *self._depart([worker], at)]
        if self.failures.ran_out_of_memory(number, kind):
            times = self.failures.times_seen(kind)
            which = f"\n{event.text}" if times == 1 else f" ({kind}: {times} times in this run)"
            warning = Warn(f"worker {number} ran out of memory: its process is replaced{which}")
            return [warning, *self._end(worker, at, until=at)]
        if self.failures.raised(number, kind, any_gradient=event.any_gradient):
            fail = Fail(f"worker {number} raised, not for the first time:\n{event.text}")
            if not event.any_gradient and self._is_on_one_host():
                return [fail]
            return self._give_up(worker, f"raised {kind} again and again", fail, at)
        return [*self._warnings_of(event), *self._try_again(worker, at)]

    def _try_again(self, worker: Worker, at: float) -> list[Action]:
        """Let a worker that raised get another ticket; the process stays."""
        ticket, cancelled = worker.ticket, worker.state is State.CANCELLED
        worker.state, worker.ticket, worker.instruction, worker.proven = IDLE, None, FORGET, False
        if not cancelled:
            return [Lost(worker.number), Joined(worker.number)]
        assert ticket is not None
        following = [] if worker.next is None else [self._send_next(worker, at)]
        return [Forget(ticket), *following]

    def _on_faulty(self, event: Faulty, at: float) -> list[Action]:
        """Give up a worker that keeps sending what cannot be used; before any gradient, the problem is at fault."""
        error, worker = event.error, self.workers.get(event.error.worker)
        if worker is None or not worker.is_member:
            return [Warn(f"{error}: it has left already")]
        fail = Fail(str(error), while_running=True, error=error)
        if not event.any_gradient and self._is_on_one_host():
            return [fail]
        return self._give_up(worker, error.reason, fail, at)

    def _is_on_one_host(self) -> bool:
        return len(set(self.hosts_of_members().values())) == 1

    def _warnings_of(self, event: Raised) -> list[Action]:
        """Show the traceback of the first error of a kind, and after that how many there were, more and more rarely.

        Before the first gradient there is no traceback: if the problem is broken, the run soon fails with it.
        """
        if not event.any_gradient:
            return [Warn(f"worker {event.number} raised {event.kind} before the first gradient, and tries again")]
        times = self.failures.times_seen(event.kind)
        if times == 1:
            return [Warn(f"worker {event.number} raised:\n{event.text}")]
        if times & (times - 1) == 0:  # a power of two
            counted = f"{times} times in this run, the first one is above"
            return [Warn(f"worker {event.number} raised {event.kind}: {counted}")]
        return []

    def _name_hanging(self, at: float) -> list[Action]:
        """Name processes that hang, and kill them if that was asked for; a first evaluation may take any time."""
        actions: list[Action] = []
        for worker in self.workers.values():
            worker.count_duration()
            if not worker.hangs(at) or (self.finished and worker.number != EVALUATOR):
                continue
            worker.named = worker.current
            mean, seconds, is_evaluator = worker.durations.mean, at - worker.sent, worker.number == EVALUATOR
            kill = self._replace_hung and not (is_evaluator and mean < 0)
            what = "the loss has been computed" if is_evaluator else f"worker {worker.number} has computed"
            usual = f"; {'it takes' if is_evaluator else 'its gradients take'} {mean:.3g} s on average" * (mean >= 0)
            actions.append(Warn(f"{what} for {seconds:.3g} s{usual}{': it is replaced' * kill}"))
            if kill:
                worker.dead_by = at + SECONDS_TO_DIE
                actions.append(Kill(worker.host, worker.serial))
        return actions

    # Leaving

    def _on_process_leaves(self, event: ProcessLeaves, at: float) -> list[Action]:
        worker = self._processes.get(event.serial)
        if worker is None or worker.number < 0 or not worker.is_member or worker.state is State.LEAVING:
            return []
        return [Note(f"worker {worker.number} was told to leave"), *self._retire([worker], at)]

    def _retire(self, workers: list[Worker], at: float) -> list[Action]:
        """Let workers deliver the tickets that the server waits for, and depart."""
        for worker in workers:
            if worker.state is COMPUTING and worker.ticket is not None:
                worker.state = State.LEAVING
        return self._depart([worker for worker in workers if worker.state is not State.LEAVING], at)

    def _depart(self, workers: Iterable[Worker], at: float) -> list[Action]:
        """Let workers leave in order: nobody has failed, and their numbers are wanted elsewhere."""
        return [action for worker in workers for action in self._end(worker, at, until=at)]

    def _see_off(self, at: float) -> list[Action]:
        """Let the workers of leaving hosts depart whose time is over."""
        overdue = {host.number for host in self.hosts.values() if host.leaves_at <= at}
        late = [worker for worker in self._real() if worker.state is State.LEAVING and worker.host in overdue]
        if not late:
            return self._end_left()
        note = f"a host leaves before workers {_numbers(late)} have delivered what they compute"
        return [Note(note), *self._depart(late, at)]

    # What the server cancels

    def _on_cancelled(self, event: Cancelled, at: float) -> list[Action]:
        """Let a worker that imitates a slow one cut its ticket short. Others finish, and report late."""
        worker = self.workers.get(event.number)
        if worker is None:
            return []
        if worker.next is not None and worker.next[0] in event.tickets:
            unsent, worker.next = worker.next, None
            return [Forget(unsent)]
        ticket = worker.ticket
        if ticket is None or ticket[0] not in event.tickets:
            return []
        if worker.state is COMPUTING:
            worker.state = State.CANCELLED
        if not self._imitating or worker.hurried is ticket:
            return []
        worker.hurried = ticket
        return [Instruct(worker.number, HURRY, ticket[0])]

    # The evaluator

    def _start_evaluator(self, at: float) -> list[Action]:
        if not self._begun or not self.is_home_open:
            return []
        evaluator = self.workers.setdefault(EVALUATOR, Worker(EVALUATOR))
        if evaluator.state is not State.ABSENT or evaluator.until > at:
            return []
        return [*self._start(evaluator, self.hosts[HOME]), *self._evaluate(at)]

    def _on_evaluation_asked(self, event: EvaluationAsked, at: float) -> list[Action]:
        """Order an evaluation; if there is no evaluator now, as soon as there is one."""
        self._asked = (event.slot, event.step)
        return self._evaluate(at)

    def _evaluate(self, at: float) -> list[Action]:
        if self._asked is None or not self.has_evaluator:
            return []
        self._order += 1  # an answer to an earlier order is not taken for the answer to this one
        (slot, step), evaluator = self._asked, self.workers[EVALUATOR]
        evaluator.state, evaluator.sent = COMPUTING, at
        evaluator.task = Ticket(self._order, EVALUATOR, step, step)
        return [Evaluate(self._order, slot, step)]

    def evaluated(self, order: int, at: float) -> bool:
        """Return True if the loss with this number is the one that was ordered last and not answered yet."""
        if self._asked is None or order != self._order:
            return False
        self._asked = None
        evaluator = self.workers[EVALUATOR]
        if evaluator.state is COMPUTING:  # its answer may be the last that is known of it
            evaluator.state, evaluator.task, evaluator.took = IDLE, None, at - evaluator.sent
        evaluator.deaths.count = self._home_deaths.count = 0
        return True

    def _on_evaluator_died(self, evaluator: Worker, cause: str, at: float) -> list[Action]:
        self.failures.deaths += 1
        pause = evaluator.deaths.pause(self._max_failures)
        if pause is None:
            return [Fail(f"the process that computes losses {cause} repeatedly: look at the problem's loss")]
        warning = Warn(f"the process that computes losses {cause}: it is replaced")
        return [warning, *self._lose(evaluator, at, at + pause), *self._start_evaluator(at)]

    # The fingerprint of the problem

    def _on_fingerprint_asked(self, event: FingerprintAsked, at: float) -> list[Action]:
        if self.identifying:
            return []
        self._fingerprint_asked = self.identifying = True
        return self._start_fingerprint()

    def _start_fingerprint(self) -> list[Action]:
        if not self._fingerprint_asked or not self.is_home_open or FINGERPRINTER in self.workers:
            return []
        self._fingerprint_asked = False
        process = self.workers[FINGERPRINTER] = Worker(FINGERPRINTER, wanted=False)
        return self._start(process, self.hosts[HOME])

    def _on_fingerprinted(self, event: Fingerprinted, at: float) -> list[Action]:
        """The fingerprint is known, or nobody waits for it any longer."""
        if not self.identifying:
            return []
        self.identifying = self._fingerprint_asked = False
        process = self.workers.get(FINGERPRINTER)
        if process is None or event.details is not None:
            return [Identify(event.details, event.cause)]
        process.dead_by = at + SECONDS_TO_DIE
        return [Kill(HOME, process.serial), Identify(None, event.cause)]

    def _lose_fingerprint(self, cause: str) -> list[Action]:
        if not self.identifying or self._fingerprint_asked:
            return []
        self.identifying = False
        return [Identify(None, cause)]

    # Invariants

    def check(self) -> None:
        """Raise AssertionError if the state contradicts itself. Tests call it after every event."""
        for serial, worker in self._processes.items():
            assert (worker.serial, self.workers.get(worker.number)) == (serial, worker), worker
        for worker in self.workers.values():
            has_process, settled = worker.state is not State.ABSENT, worker not in self.unsettled
            assert has_process == (worker.serial in self._processes), worker
            assert not has_process or worker.host in self.hosts, worker
            computes = worker.state in (State.COMPUTING, State.CANCELLED, State.LEAVING)
            assert computes == (worker.current is not None) or not settled, worker
            assert worker.task is None or (worker.ticket is None and worker.state is COMPUTING), worker
            assert worker.next is None or worker.is_member, worker
            assert worker.next is None or worker.state is not IDLE or not settled, worker
            assert worker.state is not State.ENDING or worker.dead_by < math.inf, worker
        for host in self.hosts.values():
            used = [worker for worker in self._processes.values() if worker.host == host.number and worker.number >= 0]
            assert host.used == len(used), host

    _handlers: ClassVar[dict[type, Callable[[Fleet, Any, float], list[Action]]]] = {
        HostReady: _on_host_ready,
        HostLeaves: _on_host_leaves,
        HostGone: _on_host_gone,
        ProcessDied: _on_process_died,
        ProcessLeaves: _on_process_leaves,
        ProcessReady: _on_ready_process,
        Raised: _on_raised,
        Faulty: _on_faulty,
        Fingerprinted: _on_fingerprinted,
        Began: _on_began,
        Released: _on_released,
        JoinAsked: _on_join_asked,
        LeaveAsked: _on_leave_asked,
        EvaluationAsked: _on_evaluation_asked,
        FingerprintAsked: _on_fingerprint_asked,
        Cancelled: _on_cancelled,
        Tick: _on_tick,
        Ended: _on_ended,
    }


def _numbers(workers: Iterable[Worker]) -> list[int]:
    return sorted(worker.number for worker in workers)


def _view(worker: Worker, at: float, jobs_of: Callable[[int], int], stats: WorkerStats | None) -> WorkerView:
    """Return a row of the live view."""
    gradients = max(0, jobs_of(worker.number) - 1) if stats is None else stats.gradients
    if not worker.is_member:
        return WorkerView(worker.number, gradients, -1.0, worker.describe(at, -1.0), stats, present=False)
    usual = stats is not None and stats.gradients
    seconds = stats.seconds_per_gradient if stats is not None and usual else worker.durations.mean
    return WorkerView(
        worker.number, gradients, seconds, worker.describe(at, seconds), stats, computing=worker.computing(at)
    )
