"""The event loop of real workers: waits for input, passes events on, executes what server and fleet decide."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, Protocol, final

import numpy as np

from nowait.core import Assign, Cancel, Command, GradientArrived, Ticket, TimerFired, WorkerJoined, WorkerLost
from nowait.core import Event as ServerEvent
from nowait.core.errors import BadWorkerError, WorkerFailedError
from nowait.core.ledger import new
from nowait.core.memory import to_host
from nowait.core.standstill import Standstill
from nowait.core.versions import Version
from nowait.engines.fingerprint import Fingerprint
from nowait.engines.live import LiveView
from nowait.engines.metrics_server import Snapshots
from nowait.engines.progress import spinner
from nowait.engines.session import Parts, Session, Snapshot
from nowait.fleet.options import WorkerOptions
from nowait.fleet.server.auditor import Auditor
from nowait.fleet.server.events import (
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
    Gradients,
    Identify,
    Instruct,
    JoinAsked,
    Joined,
    Kill,
    LeaveAsked,
    Lost,
    Note,
    OpenHome,
    ProcessLeaves,
    ProcessReady,
    Raised,
    Released,
    Send,
    Source,
    Start,
    Stop,
    Tick,
    Warn,
)
from nowait.fleet.server.fleet import Fleet
from nowait.fleet.server.patience import FIRST_DEADLINE, SECONDS_TO_COMPARE, SECONDS_TO_RECORD
from nowait.fleet.wire.records import (
    AUDITED,
    CHECKSUM,
    EVALUATOR,
    FINGERPRINT,
    FINGERPRINTER,
    GRADIENT,
    HURRY,
    KEEP,
    LEAVING,
    LOADING,
    LOSS,
    MISFIT,
    READY,
    REPORT,
    TRAINING_LOSS,
    check_number,
)
from nowait.numerics.compiled import warm_up
from nowait.recording import Interrupted, Run

logger = logging.getLogger("nowait")

SECONDS_BETWEEN_LOOKS = 0.25
"""How often the loop checks for workers that hang and redraws the live view."""
SECONDS_BETWEEN_SNAPSHOTS = 1.0
"""How often the numbers that ``metrics_port`` shows are renewed."""
SECONDS_BETWEEN_WRITES = 1.0
"""How often the trace in the folder of a run is brought up to date, for those who read it during the run."""
SECONDS_BETWEEN_LOOKS_AT_START = 0.05
"""How often it checks for signals while the problem is loaded."""
NO_DETAILS = ("an error without details", "its traceback did not arrive")
"""Kind and text of an error whose details did not arrive."""


class Waits(Protocol):
    """Waits for input: a ``Hub``, or a script."""

    def wait(self, seconds: float) -> bool:
        """Wait for input for at most this many seconds, and call its handlers; returns False if there was none."""


@final
class RunClock:
    """Counts the seconds of a run; ``before`` is how many it had when it was resumed."""

    __slots__ = ("_before", "_is_held", "_monotonic", "at", "began", "now")

    def __init__(self, monotonic: Callable[[], float], before: float) -> None:
        self._monotonic, self._before, self._is_held = monotonic, before, True
        self.at = self.began = 0.0
        """When the clock was last read, and when the run began (or would have, without a break): monotonic times."""
        self.now = before
        """Seconds of the run, when the clock was last read."""

    def start(self, *, hold: bool = False) -> float:
        """Begin to count, again if necessary; with ``hold`` at the next start. Returns how much later that is."""
        before, self._is_held = self.began, hold
        self.at = self._monotonic()
        self.began, self.now = self.at - self._before, self._before
        return self.began - before

    def read(self) -> float:
        """Return the seconds of the run."""
        self.at = at = self._monotonic()
        if not self._is_held:
            self.now = at - self.began
        return self.now


@final
class Loop:
    """Runs one server with the workers of a source, from start to end."""

    def __init__(
        self,
        parts: Parts,
        source: Source,
        fleet: Fleet,
        *,
        view: LiveView,
        hub: Waits,
        clock: RunClock,
        options: WorkerOptions,
    ) -> None:
        self._parts, self._source, self._fleet, self._view = parts, source, fleet, view
        self._hub, self._clock = hub, clock
        self._server, self._recorder = parts.server, parts.recorder
        self._recorder.follow_workers()
        standstill = Standstill(real=True)
        self._session = Session(parts, parts.server, parts.recorder, self, evaluator=self, standstill=standstill)
        self._auditor = Auditor.of(parts, fleet, options.audit, self._time_of_orders)
        self._together = options.together
        self._gradients_before = 0 if parts.checkpoint is None else parts.checkpoint.state.counts["gradients"]
        self._wait = parts.server.memory.wait if parts.server.memory.is_queued else None
        parts.server.rejections.machine_of = fleet.host_of
        self._snapshot: tuple[Snapshot, Version] | None = None
        """The evaluation under way, and the version of params that it uses."""
        self._timers: list[float] = []
        """When the method is to be woken, in seconds of the run."""
        self._end = math.inf if parts.budget.seconds is None else parts.budget.seconds
        self._next_timer = self._end
        self._interrupted = ""
        self._has_closed = False
        self._seconds = self._next_look = self._next_snapshot = 0.0
        self._draw_from = 0.0
        """When the live view is drawn first: not at the start, when all workers need the server."""
        self._next_write = SECONDS_BETWEEN_WRITES
        self._snapshots: Snapshots | None = None
        if parts.keeper is not None:
            parts.keeper.wanted_workers = fleet.wanted

    # From start to end

    def open(self, minimum: int = 1) -> None:
        """Open the source and wait until there are seats for ``minimum`` workers, and for the fingerprint."""
        self._source.open(self.on_event, self.on_reports)
        warm_up(to_host(self._server.params))
        self._clock.start()
        fleet = self._fleet
        while not (fleet.is_home_open and fleet.room >= minimum) and not self._interrupted:
            self._receive(SECONDS_BETWEEN_LOOKS_AT_START)
            self._handle(Tick())
            self._source.tick(minimum, 0)
        if self._parts.identification is not None and not self._interrupted:
            self._compute_fingerprint(compares=self._parts.identification.compares)
        if self._interrupted:
            raise Interrupted(self._interrupted, f"{self._interrupted} came before the run had begun")

    def _compute_fingerprint(self, *, compares: bool) -> None:
        """Wait for the fingerprint of the problem, but not for ever."""
        seconds = SECONDS_TO_COMPARE if compares else SECONDS_TO_RECORD
        self._handle(FingerprintAsked())
        deadline = self._clock.at + seconds
        while self._fleet.identifying and self._clock.at < deadline and not self._interrupted:
            self._receive(SECONDS_BETWEEN_LOOKS)
            self._handle(Tick())
            self._source.tick(0, 0)
        if compares and not self._interrupted:  # later a comparison would come too late
            self._handle(Fingerprinted(None, f"one gradient took longer than {SECONDS_TO_COMPARE:.0f} s"))

    def begin(self) -> None:
        """Start the processes, the server and the clock; with ``together``, the clock when every worker is ready."""
        self._session.begin()
        self._clock.start(hold=self._together)
        self._handle(Began())
        self._obey(self._session.start())
        self._handle(Tick())
        if self._together:
            self._start_together()
        self._draw_from = self._clock.at + SECONDS_BETWEEN_LOOKS

    def _start_together(self) -> None:
        """Wait until every worker is ready, at most ``FIRST_DEADLINE`` seconds; then start the clock and the workers.

        A worker that dies meanwhile is replaced and waited for once; one that dies again joins after the start.
        """
        with spinner(f"{self._view.title}: waiting until all workers are ready", self._view.shown):
            self._wait_until_ready()
        if not (self._session.finished or self._interrupted):
            self._handle(Released(self._clock.start()))

    def _wait_until_ready(self) -> None:
        fleet, deadline = self._fleet, self._clock.at + FIRST_DEADLINE
        while not (self._is_ready or self._session.finished or self._interrupted):
            if self._clock.at > deadline:
                late = fleet.not_ready
                what = (
                    f"without workers {late}, which were not ready" if late else "though its first loss was not known"
                )
                logger.warning("the run starts %s after %.0f s", what, FIRST_DEADLINE)
                return
            self._receive(SECONDS_BETWEEN_LOOKS_AT_START)
            self._handle(Tick())
            self._source.tick(fleet.missing(self._clock.at), len(fleet.members))

    @property
    def _is_ready(self) -> bool:
        """True if every worker process is ready and the first loss is known, unless the evaluator is gone."""
        return not self._fleet.not_ready and not (self._snapshot is not None and self._fleet.has_evaluator)

    def run(self) -> None:
        """Run until the budget, a callback or a signal ends it."""
        while not self._session.finished:
            self._wait_and_handle()
            if self._interrupted:
                self._receive(0.0)
                self._session.interrupt(self._interrupted)
        self._seconds = self._clock.read()
        self._handle(Ended())
        self._finish_evaluation()

    def _finish_evaluation(self) -> None:
        """Wait for the loss that is being computed, so that none is lost at the end of a run."""
        while self._snapshot is not None and self._server.diverged is None and not self._interrupted:
            self._wait_and_handle()
        if self._interrupted and not self._session.interrupted:
            self._session.interrupt(self._interrupted)

    def result(self) -> Run:
        """Save the run, end all processes, whose memory the last evaluation may need, and return the finished run."""
        if self._auditor is not None:
            self._auditor.say()
        self._session.save()  # first, because a second signal may come while processes end
        self._close_source()
        if self._session.interrupted:
            self._view.say(f"{self._view.title}: computing the last loss; press Ctrl-C again to skip it")
        return self._session.result(self._seconds, self._source.engine)

    def calling_on_end(self) -> contextlib.AbstractContextManager[None]:
        """Call the ``on_end`` hooks if an exception leaves the block."""
        return self._session.calling_on_end()

    def interrupt(self, signal: str) -> None:
        """End the run after the next events."""
        self._interrupted = signal

    def close(self) -> None:
        """Kill all processes and release everything."""
        self._close_source()
        self._fleet.workers.clear()
        self._snapshot = self._auditor = None
        del self._source, self._hub  # break the reference cycles: both call this object
        self._server.rejections.forget_machines()
        self._session.close()
        if self._parts.keeper is not None:
            self._parts.keeper.wanted_workers = list

    def _close_source(self) -> None:
        if not self._has_closed:
            self._source.close()
            self._has_closed = True

    # Waiting

    def _wait_and_handle(self) -> None:
        """Do what is due, then wait for input and handle it."""
        clock, fleet = self._clock, self._fleet
        if clock.at >= self._next_look:
            self._look()
        elif clock.at >= fleet.due:
            self._handle(Tick())
        if clock.now >= self._next_timer:
            self._fire()
        seconds = min(min(self._next_look, fleet.due) - clock.at, self._next_timer - clock.now)
        if not self._hub.wait(max(0.0, seconds)):
            clock.read()

    def _receive(self, seconds: float) -> None:
        """Wait for input, at most this many seconds, and handle it."""
        self._hub.wait(seconds)
        self._clock.read()

    def _fire(self) -> None:
        """Wake the method where that is due, and end the run if its time is over."""
        now, finished = self._clock.now, self._session.finished
        while self._timers and self._timers[0] <= now and not self._session.finished:
            heappop(self._timers)
            self._tell(TimerFired(now))
        if now >= self._end and not self._session.finished:
            self._session.stop("")
        self._next_timer = math.inf if finished else min([self._end, *self._timers[:1]])

    def _look(self) -> None:
        """Check for workers that hang, let the source do its periodic work, and redraw the live view."""
        self._next_look = self._clock.at + SECONDS_BETWEEN_LOOKS
        self._handle(Tick())
        clock, fleet = self._clock, self._fleet
        if not self._session.finished:
            self._source.tick(fleet.missing(clock.at), len(fleet.members))
        if self._view.shown and clock.at >= self._draw_from:
            session = self._session
            views = fleet.views(clock.at, self._server.jobs_of, session.by_worker(clock.now))
            self._view.update(self._server, session.loss, views, session.shown_metrics, now=clock.now)
        self._tell_others()

    def _tell_others(self) -> None:
        """Renew what those read who look at the run from outside: the metrics page, and the trace in the folder."""
        now, metrics = self._clock.now, self._parts.metrics
        if metrics is not None and now >= self._next_snapshot:
            self._next_snapshot = now + SECONDS_BETWEEN_SNAPSHOTS
            if self._snapshots is None:
                self._snapshots = Snapshots(self._parts, self._session, self._source.engine)
            failures = self._fleet.failures
            counts = (failures.deaths, failures.errors, failures.strays)
            metrics.show(self._snapshots.take(now, *counts, traffic=self._source.traffic))
        if self._parts.keeper is not None and now >= self._next_write:
            self._next_write = now + SECONDS_BETWEEN_WRITES
            self._recorder.flush()

    # Reports

    def on_reports(self, records: bytes, gradients: Gradients) -> None:  # noqa: C901 (a call more would cost time)
        """Handle a batch of reports of one host. This is the hot path: all that happens once per gradient is here."""
        session, fleet, auditor, wait = self._session, self._fleet, self._auditor, self._wait
        handle, reported, ordered, slot = session.handle, fleet.reported, fleet.ordered, self._server.slot
        chooses, waiting = (None, None) if auditor is None else (auditor.chooses, auditor.waiting)
        now, at = self._clock.read(), self._clock.at
        for ticket_id, started, seconds, number, kind in REPORT.iter_unpack(records):
            if kind != GRADIENT:
                self._on_other(number, ticket_id, kind, started, seconds, gradients)
                continue
            if session.finished:
                continue  # a loss may follow
            ticket = reported(number, ticket_id, at)
            if ticket is None:
                self._on_stray(number, ticket_id)
                continue
            event = new(GradientArrived, (ticket, gradients[number], now, started, seconds))
            if auditor is not None and (chooses is not None or number in fleet.unchecked):
                self._handle_audited(event, auditor)
                continue
            try:
                commands = handle(event)
            except BadWorkerError as error:
                self._give_up(error)
                continue
            if wait is not None:
                wait()  # the worker will write to its gradient's memory again
            for command in commands:
                if type(command) is not Assign or waiting:
                    self._obey((command,))
                elif (worker := ordered(command[0], at)) is not None:
                    worker.send(command[0], slot(command[0]), worker.instruction)  # type: ignore[misc]
            if fleet.unsettled:
                self._execute(fleet.settle(at))

    def _handle_audited(self, event: GradientArrived, auditor: Auditor) -> None:
        """Handle a gradient that an audit may look at, before and after the server uses it."""
        commands: list[Command] = []
        broken: BadWorkerError | None = None
        try:
            check = auditor.begin(event.ticket, event.gradient)
            commands = self._session.handle(event)
            if check is not None:
                auditor.end(check, event.gradient)
        except BadWorkerError as error:
            broken = error
        if self._wait is not None:
            self._wait()
        self._obey(commands)
        if broken is not None:
            self._give_up(broken)
        self._execute(self._fleet.settle(self._clock.at))

    def _on_other(
        self, number: int, ticket_id: int, kind: int, value: float, second: float, gradients: Gradients
    ) -> None:
        """Handle a report that is not a gradient, with two values whose meaning depends on its kind."""
        if kind in (TRAINING_LOSS, LOADING):
            self._on_more_about_a_gradient(number, ticket_id, kind, value, second)
        elif kind == CHECKSUM:
            if self._auditor is not None:
                self._auditor.reported(number, ticket_id, int(value))
        elif kind == AUDITED:
            self._on_audited(number, ticket_id, gradients)
        elif kind == LOSS:
            self._on_loss(ticket_id, value)
        elif kind == LEAVING:
            self._handle(ProcessLeaves(ticket_id))
        elif kind == READY:
            self._handle(ProcessReady(number))
        else:
            self._on_details(number, ticket_id, kind)

    def _on_more_about_a_gradient(self, number: int, ticket_id: int, kind: int, value: float, second: float) -> None:
        worker = self._fleet.workers.get(number)
        if worker is None or worker.ticket is None or worker.ticket[0] != ticket_id:
            return
        if kind == TRAINING_LOSS:
            self._session.training_losses.add(value, number)
        elif 0 <= value < math.inf and 0 <= second < math.inf:
            self._recorder.loaded(number, value, second)

    def _on_loss(self, order: int, loss: float) -> None:
        (metrics,) = self._source.details(EVALUATOR, order) or ({},)
        if self._snapshot is not None and self._fleet.evaluated(order, self._clock.at):
            (snapshot, version), self._snapshot = self._snapshot, None
            self._server.release(version)
            self._session.evaluated(snapshot, loss, metrics)

    def _on_details(self, number: int, ticket_id: int, kind: int) -> None:
        """Handle a report whose details are elsewhere: a fingerprint, an error, or a gradient that does not fit."""
        details = self._source.details(number, ticket_id)
        if number == FINGERPRINTER:
            is_known = kind == FINGERPRINT and details is not None
            cause = "" if is_known else f"computing one gradient failed: {(details or NO_DETAILS)[1]}"
            self._handle(Fingerprinted(details if is_known else None, cause))
            return
        misfit = details if kind == MISFIT and details is not None and isinstance(details[1], tuple) else None
        error, text = NO_DETAILS if details is None or isinstance(details[1], tuple) else details
        if number == EVALUATOR:
            raise WorkerFailedError(f"the problem's loss raised:\n{text}")
        if self._session.finished:
            return
        if ticket_id < 0:
            self._on_failed_check(number, ticket_id, f"{error}\n{text}")
        elif misfit is not None:
            self._on_misfit(number, ticket_id, np.broadcast_to(np.zeros((), np.dtype(misfit[0])), misfit[1]))
        elif not self._fleet.computes(number, ticket_id):
            self._on_stray(number, ticket_id)
        else:
            self._handle(Raised(number, ticket_id, error, text, self._has_gradients()))

    def _on_misfit(self, number: int, ticket_id: int, misfit: np.ndarray) -> None:
        """Let the server reject a gradient of the wrong shape or dtype."""
        ticket = self._fleet.reported(number, ticket_id, self._clock.at)
        if ticket is None:
            self._on_stray(number, ticket_id)
            return
        try:
            self._obey(self._session.handle(GradientArrived(ticket, misfit, self._clock.now)))
        except BadWorkerError as error:
            self._give_up(error)
        self._execute(self._fleet.settle(self._clock.at))

    def _on_audited(self, number: int, check_id: int, gradients: Gradients) -> None:
        """Handle a gradient that was computed again."""
        check = None if self._auditor is None else self._fleet.checked(number, check_id, self._clock.at)
        if self._auditor is None or check is None:
            return
        if not self._session.finished:
            error = self._auditor.audited(number, check, gradients[number])
            if error is not None:
                self._give_up(error)
        self._execute(self._fleet.settle(self._clock.at))

    def _on_failed_check(self, number: int, check_id: int, text: str) -> None:
        check = None if self._auditor is None else self._fleet.checked(number, check_id, self._clock.at)
        if self._auditor is None or check is None:
            self._on_stray(number, check_id)
            return
        self._auditor.failed(number, check, text)
        self._execute(self._fleet.settle(self._clock.at))

    def _on_stray(self, number: int, ticket_id: int) -> None:
        """Count and show a report on a ticket that its worker was never given.

        Others come from a process that died, or are duplicates: both are usual.
        """
        fleet, is_check = self._fleet, ticket_id < 0 and self._auditor is not None
        known = 0 <= (check_number(ticket_id) if is_check else ticket_id) < self._server.num_tickets
        if number not in fleet.workers or self._session.finished or (known and not fleet.is_computed(ticket_id)):
            return
        failures = fleet.failures
        failures.strays += 1
        if failures.strays & (failures.strays - 1) == 0:  # a power of two
            node = fleet.label_of(fleet.host_of(number))
            logger.warning(
                "worker %d%s reported on ticket %d, which it was never given: the report is dropped (%d such reports "
                "so far). Its host is faulty or hostile",
                number,
                node and f" on {node}",
                ticket_id,
                failures.strays,
            )

    def _give_up(self, error: BadWorkerError) -> None:
        """Go on without a worker that keeps sending what cannot be used, or end the run if there is no other."""
        if self._auditor is not None and error is self._auditor.final:
            raise error
        self._handle(Faulty(error, self._has_gradients()))

    def _has_gradients(self) -> bool:
        return self._server.counts.gradients > self._gradients_before

    # Events of hosts, and requests of the session

    def on_event(self, event: Event) -> None:
        """Handle an event of a host or of the source."""
        self._clock.read()
        self._handle(event)

    def add_worker(self) -> None:
        """Let a worker with the next number join soon."""
        self._handle(JoinAsked())

    def remove_worker(self, worker: int) -> None:
        """Let this worker leave soon."""
        self._handle(LeaveAsked(worker))

    def evaluate(self, snapshot: Snapshot) -> None:
        """Evaluate the current params in the evaluator process."""
        version = self._server.retain()
        self._snapshot = (snapshot, version)
        self._handle(EvaluationAsked(version.slot, snapshot.step))

    # Executing

    def _handle(self, event: Event) -> None:
        """Pass an event to the fleet, and execute what it decides."""
        if self._session.finished and not self._fleet.finished:
            self._fleet.handle(Ended(), self._clock.at)
        self._execute(self._fleet.handle(event, self._clock.at))

    def _obey(self, commands: Iterable[Command]) -> None:
        """Execute commands of the server. If a check of an audit waits for an idle worker, it is sent first."""
        for command in commands:
            if type(command) is Assign:
                ticket = command.ticket
                if self._auditor is not None and self._auditor.waiting:
                    self._auditor.send(ticket.worker)
                worker = self._fleet.ordered(ticket, self._clock.at)
                if worker is not None and worker.send is not None:
                    worker.send(ticket, self._server.slot(ticket), worker.instruction)
            elif isinstance(command, Cancel):
                self._handle(Cancelled(command.worker, command.tickets))
            else:
                heappush(self._timers, command.at)  # type: ignore[union-attr]
                self._next_timer = min(self._next_timer, self._timers[0])

    def _time_of_orders(self) -> float | None:
        """Return the time of an order that is sent now; None after the end."""
        return None if self._session.finished else self._clock.at

    def _tell(self, event: ServerEvent) -> None:
        if not self._session.finished:
            self._obey(self._session.handle(event))

    def _execute(self, actions: Iterable[Action]) -> None:  # noqa: C901, PLR0912 (a branch for each action)
        for action in actions:
            match action:
                case Send(number, ticket):
                    self._send(number, ticket, self._server.slot(ticket))
                case Evaluate(order, slot, step):
                    self._send(EVALUATOR, Ticket(order, EVALUATOR, step, step), slot, KEEP)
                case Instruct(number, instruction, value):
                    ticket_id, job = (value, 0) if instruction == HURRY else (0, value)
                    self._send(number, Ticket(ticket_id, number, 0, job), 0, instruction)
                case Start(host, number, serial):
                    self._attach(host, number, self._source.port(host).start(number, serial, self._clock.began))
                case Adopt(host, number, serial):
                    self._attach(host, number, self._source.port(host).adopt(number, serial, self._clock.began))
                case Kill(host, serial):
                    self._source.port(host).kill(serial)
                case EndHost(host, reason):
                    self._source.end_host(host, reason)
                case OpenHome():
                    self._source.open_home()
                case Lost(number):
                    self._tell(WorkerLost(number, self._clock.now))
                case Joined(number):
                    self._tell(WorkerJoined(number, self._clock.now))
                case Forget(ticket):
                    self._forget(ticket)
                case Identify(details, cause):
                    self._identify(details, cause)
                case Warn(message):
                    logger.warning("%s", message)
                case Note(message):
                    logger.info("%s", message)
                case Stop(reason):
                    self._session.stop(f"{reason} after {self._server.steps} steps")
                case Fail(message, while_running, error):
                    if not (while_running and self._session.finished):
                        raise error or WorkerFailedError(message)

    def _send(self, number: int, ticket: Ticket, slot: int, instruction: int | None = None) -> None:
        worker = self._fleet.workers[number]
        if worker.send is not None:
            worker.send(ticket, slot, worker.instruction if instruction is None else instruction)

    def _attach(self, host: int, number: int, send: Any) -> None:
        self._fleet.attach(number, send)
        if number >= 0:
            device = self._parts.capabilities.device_of(number)
            self._recorder.placed(number, self._clock.now, self._fleet.name_of(host), device)

    def _forget(self, ticket: Ticket) -> None:
        if ticket[0] >= 0:
            self._server.forget(ticket)
        elif self._auditor is not None:
            self._auditor.lost(ticket)

    def _identify(self, details: tuple[Any, ...] | None, cause: str) -> None:
        """Record or compare the fingerprint. Raises ValueError if a run is resumed with another problem."""
        identification, self._parts.identification = self._parts.identification, None
        if identification is not None and details is not None:
            identification.known(Fingerprint(*details))
        elif identification is not None:
            identification.unknown(cause)
        self._source.identified(details)
