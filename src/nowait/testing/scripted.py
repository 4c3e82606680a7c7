"""Workers without processes, for tests of the engine of real workers: a script decides what happens, and when.

``ScriptedHosts`` is a ``Source`` whose clock is virtual. Workers compute their gradients in this process; the script
says in which order their reports arrive and which processes and hosts die, hang, open or report twice. The same script
gives the same run, in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, final

import numpy as np

from nowait.core.audit import Audit
from nowait.core.types import Vector
from nowait.engines.fingerprint import Fingerprint
from nowait.fleet.server.events import (
    HOME,
    Emit,
    HostEvent,
    HostGone,
    HostLeaves,
    HostReady,
    ProcessDied,
    SendOrder,
    TakeReports,
)
from nowait.fleet.wire.records import (
    ANNOUNCE,
    AUDIT,
    AUDITED,
    BEGIN,
    FINGERPRINT,
    FINGERPRINTER,
    GRADIENT,
    HURRY,
    LEAVING,
    READY,
    REPORT,
)
from nowait.fleet.worker.compute import Computation
from nowait.fleet.worker.worker import EvaluatorTask
from nowait.recording.best import BestFile

SIGKILL = 9
HOME_NAME = "home"
"""The name of the node that HOME is on."""
SECONDS_PER_EVENT = 0.01
"""How far the virtual clock advances with every event that is delivered."""
MOST_EVENTS = 100_000
"""A run with more events is taken for one that never ends."""


# What a script may contain


class Report(NamedTuple):
    """A worker finishes its ticket and reports; without a worker, the one whose order is the oldest.

    It says that it computed for ``seconds``, and was done ``sending`` seconds before the report arrives.
    """

    worker: int | None = None
    seconds: float = 0.0
    sending: float = 0.0


class ReportAgain(NamedTuple):
    """The latest report of a worker arrives once more."""

    worker: int


class Forge(NamedTuple):
    """A report of this kind arrives of a worker on a ticket that it was never given, with a gradient of large numbers.

    Without a ticket it is the one that another worker computes.
    """

    worker: int
    kind: int
    ticket: int | None = None


class Die(NamedTuple):
    """The process of a worker (or ``EVALUATOR``) exits, by default because it was killed. Its report is lost."""

    worker: int
    code: int = -SIGKILL


class ReportAndDie(NamedTuple):
    """A worker reports, and its process dies before the server has read the report."""

    worker: int
    code: int = -SIGKILL


class Hang(NamedTuple):
    """A worker does not report any more until its process is killed."""

    worker: int


class IgnoreKill(NamedTuple):
    """The process of a worker hangs, and does not end when it is killed."""

    worker: int


class Lose(NamedTuple):
    """A host is gone with all its processes."""

    host: int = HOME
    cause: str = "the process that starts workers was killed"


class Open(NamedTuple):
    """A host with seats for some workers appears; ``HOME`` is opened by itself unless ``reopens`` is False."""

    host: int
    seats: float = math.inf
    name: str = ""


class Leave(NamedTuple):
    """A host will be gone in some seconds; its workers are to deliver and leave."""

    host: int
    seconds: float = 30.0


class LeaveWorker(NamedTuple):
    """The process of a worker is told to leave."""

    worker: int


class Wait(NamedTuple):
    """Time passes and nothing arrives."""

    seconds: float


class Call(NamedTuple):
    """A function is called between two events, for example to send a signal."""

    function: Callable[[], object]


Happening = (
    Report
    | ReportAgain
    | Forge
    | Die
    | ReportAndDie
    | Hang
    | IgnoreKill
    | Lose
    | Open
    | Leave
    | LeaveWorker
    | Wait
    | Call
)


@final
@dataclass(eq=False)
class _Process:
    """A process that a test imagines."""

    worker: int
    serial: int
    host: int
    began: float
    computation: Computation | None
    more_reports: Callable[[int, int, int], bytes] | None = None
    order: tuple[int, int, int, int] | None = None
    """Ticket, job, slot and instruction of the order it has not reported on."""
    ordered: int = 0
    """The number of its latest order, by which orders are sorted."""
    hangs: bool = False
    ignores_kill: bool = False
    last: bytes = b""
    """Its latest report."""


@final
class PlainSlots:
    """Numbered vectors in ordinary memory, in the place of shared memory."""

    def __init__(self, like: Vector) -> None:
        self._like = like
        self.views: list[Vector] = []

    def allocate(self) -> Vector:
        """Return a new vector."""
        self.views.append(np.empty_like(self._like))
        return self.views[-1]


@final
class ScriptedHosts:
    """A ``Source``, its clock, and what waits for input. At the end of the script every order is reported on, by age.

    ``seats`` is the number of workers that fit on HOME. HOME opens at the start unless ``opens`` is False, and again
    after each loss unless ``reopens`` is False.
    """

    engine, traffic = "scripted", None

    def __init__(
        self,
        problem: Any,
        seed: int,
        points: PlainSlots,
        script: Iterable[Happening],
        *,
        seats: float = math.inf,
        reopens: bool = True,
        opens: bool = True,
        best: BestFile | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._problem, self._seed, self._points, self._best, self._audit = problem, seed, points, best, audit
        self._script = iter(script)
        self._seats, self._reopens, self._opens = seats, reopens, opens
        self._time = 0.0
        self._processes: dict[int, _Process] = {}
        self._gradients: dict[int, Vector] = {}
        self._details: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._arrived: list[HostEvent | bytes] = []
        """Events of hosts and reports, in the order in which they arrive."""
        self._orders = self._events = 0
        self.check: Callable[[], None] = lambda: None
        """Called after everything that happens, to check the invariants of the fleet."""
        self.started: list[tuple[int, int]] = []
        """Worker and host of every process that was started."""
        self.killed: list[int] = []
        """The workers whose processes were killed by the engine."""
        self.ended: list[int] = []
        """The hosts that were ended by the engine."""
        self.hurried: list[tuple[int, int]] = []
        """Worker and ticket of every order to hurry."""
        self.sent: dict[int, float] = {}
        """When the order for each ticket was sent, by ticket id."""

    # The clock, and waiting

    def monotonic(self) -> float:
        """Return the virtual time."""
        return self._time

    def wait(self, seconds: float) -> bool:
        """Execute the next item of the script, or advance the clock; then pass on what has arrived."""
        if not self._arrived:
            happening = next(self._script, None)
            if happening is None and not self._ready():
                self._time += max(0.0, seconds) if seconds < math.inf else 1.0
                return False
            self._time += SECONDS_PER_EVENT
            self._events += 1
            assert self._events < MOST_EVENTS, "the run does not end"
            self._happen(Report() if happening is None else happening)
        arrived, self._arrived = self._arrived, []
        for event in arrived:
            if isinstance(event, bytes):
                self._take(event, self._gradients)
            else:
                self._emit(event)
            self.check()
        return bool(arrived)

    # A source, and the port of each of its hosts

    def open(self, emit: Emit, take: TakeReports) -> None:
        """Open HOME, unless the test does not want that."""
        self._emit, self._take = emit, take
        if self._opens:
            self._arrived.append(HostReady(HOME, self._seats, name=HOME_NAME))

    def open_home(self) -> None:
        """Open HOME again, unless the test does not want that."""
        if self._reopens and self._opens:
            self._arrived.append(HostReady(HOME, self._seats, name=HOME_NAME))

    def port(self, host: int) -> ScriptedPort:
        """Return the port of a host."""
        return ScriptedPort(self, host)

    def details(self, number: int, ticket_id: int) -> tuple[Any, ...] | None:
        """Return the details of a report."""
        return self._details.pop((number, ticket_id), None)

    def start(self, host: int, number: int, serial: int, began: float) -> SendOrder:
        """Start an imagined process."""
        alive = [process for process in self._processes.values() if process.worker == number]
        assert not alive, f"worker {number} has two processes"
        computation = more = None
        if number >= 0:
            out = np.empty_like(self._points.views[0])
            computation = Computation(number, self._problem, self._seed, out, self._send_details)
            self._gradients[number] = out
            more = computation.reports_before(self._audit)
        process = self._processes[serial] = _Process(number, serial, host, began, computation, more)
        self.started.append((number, host))
        if number == FINGERPRINTER:
            self._accept_order(process, (0, 0, 0, 0))
        return lambda ticket, slot, instruction: self._accept_order(process, (ticket.id, ticket.job, slot, instruction))

    def kill(self, serial: int) -> None:
        """Kill an imagined process."""
        process = self._processes.get(serial)
        if process is not None:
            self.killed.append(process.worker)
        if process is not None and not process.ignores_kill:
            self._die(process, -SIGKILL)

    def end_host(self, host: int, reason: str) -> None:
        """End a host with all its processes."""
        self._processes = {serial: process for serial, process in self._processes.items() if process.host != host}
        self.ended.append(host)

    def identified(self, fingerprint: tuple[Any, ...] | None) -> None:
        """Do nothing: nobody has another problem."""

    def tick(self, missing: int, working: int) -> None:
        """Do nothing: all events come from the script."""

    def close(self) -> None:
        """End all imagined processes."""
        self._processes.clear()

    # Imagined processes

    def _accept_order(self, process: _Process, order: tuple[int, int, int, int]) -> None:
        """Give a process an order. A process that has one already may only be told to hurry."""
        if self._processes.get(process.serial) is not process:
            return  # the process is dead: no one reads the pipe
        if order[3] == HURRY:
            self.hurried.append((process.worker, order[0]))
            return
        if order[3] == BEGIN:
            process.began += 1e-9 * order[1]
            return
        is_free = process.order is None or process.order[3] == ANNOUNCE
        assert is_free, f"worker {process.worker} was sent a second ticket"
        self._orders += 1
        process.order, process.ordered = order, self._orders
        if process.worker >= 0:
            self.sent[order[0]] = self._time

    def _send_details(self, worker: int, ticket: int, details: tuple[Any, ...]) -> None:
        self._details[worker, ticket] = details

    def _of(self, worker: int) -> _Process | None:
        return next((process for process in self._processes.values() if process.worker == worker), None)

    def _ready(self) -> list[_Process]:
        """The processes that could report, the oldest order first."""
        ready = [process for process in self._processes.values() if process.order is not None and not process.hangs]
        return sorted(ready, key=lambda process: process.ordered)

    def _happen(self, happening: Happening) -> None:  # noqa: C901, PLR0912 (one branch for each thing that may happen)
        match happening:
            case Report(worker, seconds, sending):
                self._report(self._ready()[:1] if worker is None else [self._of(worker)], seconds, sending)
            case ReportAgain(worker):
                process = self._of(worker)
                if process is not None and process.last:
                    self._arrived.append(process.last)
            case Forge(worker, kind, ticket):
                self._forge(worker, kind, ticket)
            case ReportAndDie(worker, code):
                self._report([self._of(worker)])
                self._die(self._of(worker), code)
            case Die(worker, code):
                self._die(self._of(worker), code)
            case Hang(worker) | IgnoreKill(worker):
                process = self._of(worker)
                if process is not None:
                    process.hangs, process.ignores_kill = True, isinstance(happening, IgnoreKill)
            case Lose(host, cause):
                self._processes = {serial: each for serial, each in self._processes.items() if each.host != host}
                self._arrived.append(HostGone(host, cause))
            case Open(host, seats, name):
                self._arrived.append(HostReady(host, seats, host, name))
            case Leave(host, seconds):
                self._arrived.append(HostLeaves(host, seconds))
            case LeaveWorker(worker):
                process = self._of(worker)
                if process is not None:
                    self._arrived.append(REPORT.pack(process.serial, 0.0, 0.0, process.worker, LEAVING))
            case Wait(seconds):
                self._time += seconds
            case Call(function):
                function()

    def _forge(self, worker: int, kind: int, ticket: int | None) -> None:
        others = [process.order[0] for process in self._ready() if process.worker != worker and process.order]
        record = REPORT.pack(others[0] if ticket is None else ticket, 0.0, 0.1, worker, kind)
        self._take(record, {worker: np.full_like(self._points.views[0], 1e9)})

    def _report(self, processes: Sequence[_Process | None], seconds: float = 0.0, sending: float = 0.0) -> None:
        for process in processes:
            if process is None or process.order is None or process.hangs:
                continue
            if process.worker == FINGERPRINTER:
                self._send_details(FINGERPRINTER, 0, astuple(Fingerprint.of(self._problem)))
                self._arrived.append(REPORT.pack(0, 0.0, 0.0, FINGERPRINTER, FINGERPRINT))
                self._die(process, 0)
                continue
            process.last = self._compute(process, process.order, seconds, sending)
            process.order = None
            self._arrived.append(process.last)

    def _compute(self, process: _Process, order: tuple[int, int, int, int], seconds: float, sending: float) -> bytes:
        ticket, job, slot, instruction = order
        if instruction == ANNOUNCE:
            return REPORT.pack(0, 0.0, 0.0, process.worker, READY)
        point = self._points.views[slot].view()
        point.flags.writeable = False
        if process.computation is not None:
            kind = process.computation.compute(ticket, job, point, instruction)
            if instruction >= AUDIT:
                return REPORT.pack(ticket, 0.0, 0.0, process.worker, AUDITED if kind == GRADIENT else kind)
            started = self._time - process.began - sending - seconds
            report = REPORT.pack(ticket, started, seconds, process.worker, kind)
            return report if process.more_reports is None else process.more_reports(ticket, job, kind) + report
        loss, kind = EvaluatorTask(self._problem, self._best, self._send_details).compute(ticket, job, point)
        return REPORT.pack(ticket, loss, 0.0, process.worker, kind)

    def _die(self, process: _Process | None, code: int) -> None:
        if process is not None:
            del self._processes[process.serial]
            self._arrived.append(ProcessDied(process.serial, code))


@final
class ScriptedPort:
    """One of the hosts."""

    def __init__(self, hosts: ScriptedHosts, host: int) -> None:
        self._hosts, self._host = hosts, host
        self.kill = hosts.kill

    def start(self, number: int, serial: int, began: float) -> SendOrder:
        """Start an imagined process."""
        return self._hosts.start(self._host, number, serial, began)

    def adopt(self, number: int, serial: int, began: float) -> SendOrder:
        """Raise: no script lets a host connect again."""
        raise NotImplementedError
