"""Workers without processes, for tests of the engine of real workers: a script decides what happens, and when.

``ScriptedTransport`` is a ``Transport`` whose clock is virtual. Workers compute their gradients in this process; the
script says in which order their reports arrive and which processes and places die, hang, open or report twice. The same
script gives the same run, in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, final

import numpy as np

from nowait.core.audit import Audit
from nowait.core.types import Vector
from nowait.engines.fingerprint import Fingerprint
from nowait.engines.workers.transport import HOME, Channel, Died, Gone, Leaving, Opened, Reports, TransportEvent
from nowait.fleet.wire.records import (
    AUDIT,
    AUDITED,
    FINGERPRINTER,
    GRADIENT,
    REPORT,
    Instruction,
    ReportKind,
)
from nowait.fleet.worker.compute import (
    Computation,
)
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
    """A place is gone with all its processes."""

    place: int = HOME
    cause: str = "the process that starts workers was killed"


class Open(NamedTuple):
    """A place with room for some workers appears; ``HOME`` is opened by itself unless ``reopens`` is False."""

    place: int
    capacity: float = math.inf
    name: str = ""


class Leave(NamedTuple):
    """A place will be gone in some seconds; its workers are to deliver and leave."""

    place: int
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
    Report | ReportAgain | Die | ReportAndDie | Hang | IgnoreKill | Lose | Open | Leave | LeaveWorker | Wait | Call
)


@final
@dataclass(eq=False)
class _Process:
    """A process that a test imagines."""

    worker: int
    serial: int
    place: int
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
class _Channel:
    def __init__(self, transport: ScriptedTransport, process: _Process) -> None:
        self._transport, self._process = transport, process
        self._closed = False

    def send(self, ticket: int, job: int, slot: int, instruction: int) -> None:
        assert not self._closed, "an order was sent through a closed channel"
        self._transport.accept_order(self._process, (ticket, job, slot, instruction))

    def close(self) -> None:
        assert not self._closed, "a channel was closed twice"
        self._closed = True
        self._transport.open_channels -= 1


@final
class ScriptedTransport:
    """A ``Transport`` and its ``WallClock``. When the script is over, every order is reported on, the oldest first.

    ``capacity`` is the room in HOME for workers. HOME opens at the start unless ``opens`` is False, and again after
    each loss unless ``reopens`` is False.
    """

    engine, traffic = "scripted", None
    fds: frozenset[int] = frozenset()

    def __init__(
        self,
        problem: Any,
        seed: int,
        points: PlainSlots,
        script: Iterable[Happening],
        *,
        capacity: float = math.inf,
        reopens: bool = True,
        opens: bool = True,
        best: BestFile | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._problem, self._seed, self._points, self._best, self._audit = problem, seed, points, best, audit
        self._script = iter(script)
        self._capacity, self._reopens, self._opens = capacity, reopens, opens
        self._time = 0.0
        self._processes: dict[int, _Process] = {}
        self._gradients: dict[int, Vector] = {}
        self._details: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._arrived: list[TransportEvent] = []
        self._orders = self._events = 0
        self.started: list[tuple[int, int]] = []
        """Worker and place of every process that was started."""
        self.killed: list[int] = []
        """The workers whose processes were killed by the engine."""
        self.dismissed: list[int] = []
        """The places that were dismissed by the engine."""
        self.hurried: list[tuple[int, int]] = []
        """Worker and ticket of every order to hurry."""
        self.open_channels = 0
        """Channels that were not closed."""

    # The clock

    def monotonic(self) -> float:
        """Return the virtual time."""
        return self._time

    def wait(self, fds: frozenset[int], seconds: float) -> list[int]:
        """Execute the next item of the script, or advance the clock; an event makes the transport readable."""
        if self._arrived:
            return [0]
        happening = next(self._script, None)
        if happening is None and not self._ready():
            self._time += max(0.0, seconds) if seconds < math.inf else 1.0
            return []
        self._time += SECONDS_PER_EVENT
        self._events += 1
        assert self._events < MOST_EVENTS, "the run does not end"
        self._happen(Report() if happening is None else happening)
        return [0] if self._arrived else []

    # The transport

    def open(self) -> None:
        """Open HOME, unless the test does not want that."""
        if self._opens:
            self._arrived.append(Opened(HOME, self._capacity, name=HOME_NAME))

    def reopen(self) -> None:
        """Open HOME again, unless the test does not want that."""
        if self._reopens:
            self.open()

    def receive(self, ready: Collection[int]) -> Iterator[TransportEvent]:
        """Return what has happened since the last call."""
        arrived, self._arrived = self._arrived, []
        return iter(arrived)

    def details(self, worker: int, ticket: int) -> tuple[Any, ...] | None:
        """Return the details of a report."""
        return self._details.pop((worker, ticket), None)

    def start(self, worker: int, serial: int, place: int, began: float) -> Channel:
        """Start an imagined process."""
        computation = more = None
        if worker >= 0:
            out = np.empty_like(self._points.views[0])
            computation = Computation(worker, self._problem, self._seed, out, self._send_details)
            self._gradients[worker] = out
            more = computation.reports_before(self._audit)
        process = self._processes[serial] = _Process(worker, serial, place, began, computation, more)
        self.started.append((worker, place))
        self.open_channels += 1
        if worker == FINGERPRINTER:
            self.accept_order(process, (0, 0, 0, 0))
        return _Channel(self, process)

    def kill(self, serial: int, place: int) -> None:
        """Kill an imagined process."""
        process = self._processes.get(serial)
        if process is not None:
            self.killed.append(process.worker)
        if process is not None and not process.ignores_kill:
            self._die(process, -SIGKILL)

    def dismiss(self, place: int, reason: str = "") -> None:
        """End a place, which must not have workers any more that could be killed."""
        left = {serial: process for serial, process in self._processes.items() if process.place == place}
        assert all(process.ignores_kill for process in left.values()), "a dismissed place has workers"
        self._processes = {serial: process for serial, process in self._processes.items() if serial not in left}
        self.dismissed.append(place)

    def flush(self) -> bool:
        """Return True if something has arrived."""
        return bool(self._arrived)

    def tick(self, vacant: int, working: int) -> Sequence[TransportEvent]:
        """Return nothing: all events come from the script."""
        return ()

    def close(self) -> None:
        """End all imagined processes."""
        self._processes.clear()

    # Imagined processes

    def accept_order(self, process: _Process, order: tuple[int, int, int, int]) -> None:
        """Give a process an order. A process that has one already may only be told to hurry."""
        if self._processes.get(process.serial) is not process:
            return  # the process is dead: no one reads the pipe
        if order[3] == Instruction.HURRY:
            self.hurried.append((process.worker, order[0]))
            return
        if order[3] == Instruction.BEGIN:
            process.began += 1e-9 * order[1]
            return
        is_free = process.order is None or process.order[3] == Instruction.ANNOUNCE
        assert is_free, f"worker {process.worker} was sent a second ticket"
        self._orders += 1
        process.order, process.ordered = order, self._orders

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
                    self._arrived.append(Reports(process.last, dict(self._gradients)))
            case ReportAndDie(worker, code):
                self._report([self._of(worker)])
                self._die(self._of(worker), code)
            case Die(worker, code):
                self._die(self._of(worker), code)
            case Hang(worker) | IgnoreKill(worker):
                process = self._of(worker)
                if process is not None:
                    process.hangs, process.ignores_kill = True, isinstance(happening, IgnoreKill)
            case Lose(place, cause):
                self._lose(place, cause)
            case Open(place, capacity, name):
                self._arrived.append(Opened(place, capacity, place, name))
            case Leave(place, seconds):
                self._arrived.append(Leaving(place, seconds))
            case LeaveWorker(worker):
                self._announce_departure(self._of(worker))
            case Wait(seconds):
                self._time += seconds
            case Call(function):
                function()

    def _announce_departure(self, process: _Process | None) -> None:
        if process is not None:
            record = REPORT.pack(process.serial, 0.0, 0.0, process.worker, ReportKind.LEAVING)
            self._arrived.append(Reports(record, self._gradients))

    def _report(self, processes: Sequence[_Process | None], seconds: float = 0.0, sending: float = 0.0) -> None:
        for process in processes:
            if process is None or process.order is None or process.hangs:
                continue
            if process.worker == FINGERPRINTER:
                self._arrived.append(self._fingerprint())
                self._die(process, 0)
                continue
            process.last = self._compute(process, process.order, seconds, sending)
            process.order = None
            self._arrived.append(Reports(process.last, self._gradients))

    def _compute(self, process: _Process, order: tuple[int, int, int, int], seconds: float, sending: float) -> bytes:
        ticket, job, slot, instruction = order
        if instruction == Instruction.ANNOUNCE:
            return REPORT.pack(0, 0.0, 0.0, process.worker, ReportKind.READY)
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

    def _fingerprint(self) -> Reports:
        found = Fingerprint.of(self._problem)
        self._send_details(FINGERPRINTER, 0, astuple(found))
        return Reports(REPORT.pack(0, 0.0, 0.0, FINGERPRINTER, ReportKind.FINGERPRINT), {})

    def _die(self, process: _Process | None, code: int) -> None:
        if process is not None:
            del self._processes[process.serial]
            self._arrived.append(Died(process.serial, code))

    def _lose(self, place: int, cause: str) -> None:
        self._processes = {serial: process for serial, process in self._processes.items() if process.place != place}
        self._arrived.append(Gone(place, cause))
