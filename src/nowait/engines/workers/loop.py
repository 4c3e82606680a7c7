"""The event loop of real workers: polls, translates what arrives, executes what the workforce and the server decide."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, final

import numpy as np

from nowait.core import Assign, Cancel, Command, GradientArrived, Ticket, Wake
from nowait.core.errors import WorkerFailedError
from nowait.core.server import new
from nowait.core.versions import Version
from nowait.engines.live import LiveView
from nowait.engines.session import Parts, Session, Snapshot
from nowait.engines.workers.actions import (
    Abandon,
    Action,
    Ask,
    Began,
    Fail,
    Kill,
    Look,
    Raised,
    Release,
    Reopen,
    Requested,
    Start,
    Stop,
    Tell,
    Tick,
    Warn,
)
from nowait.engines.workers.clock import Clock
from nowait.engines.workers.failures import NO_DETAILS
from nowait.engines.workers.fingerprinting import Fingerprinting
from nowait.engines.workers.records import EVALUATOR, FINGERPRINTER, REPORT, Instruction, ReportKind
from nowait.engines.workers.state import WorkerState
from nowait.engines.workers.transport import HOME, Channel, Died, Gone, Reports, Transport, TransportEvent
from nowait.engines.workers.workforce import Workforce
from nowait.numerics.compiled import warm_up
from nowait.recording import Run

logger = logging.getLogger("nowait")

SECONDS_BETWEEN_LOOKS = 0.25
"""How often the loop checks for workers that hang and redraws the live view."""
SECONDS_BETWEEN_LOOKS_AT_START = 0.05
"""How often it checks for signals while the problem is loaded."""
GRADIENT, KEEP, UNDO = int(ReportKind.GRADIENT), int(Instruction.KEEP), int(Instruction.UNDO)


@final
class Loop:
    """Runs one server with the workers of a transport. Reports are read in batches and handled one by one."""

    def __init__(
        self,
        parts: Parts,
        transport: Transport,
        workforce: Workforce,
        view: LiveView,
        clock: Clock,
        *,
        imitating: bool = False,
    ) -> None:
        self._parts, self._transport, self._view, self._clock = parts, transport, view, clock
        self._server = parts.server
        self.session = Session(parts, self, evaluator=self)
        self._workforce = workforce
        self._fingerprinting = Fingerprinting(parts.identification)
        self._fingerprinter: Channel | None = None
        self._imitating = imitating
        """True if workers imitate slower ones, so that a cancelled ticket can be cut short."""
        self._remembers = hasattr(parts.problem, "gradient_with_memory")
        self._gradients_before = 0 if parts.checkpoint is None else parts.checkpoint.state.counts["gradients"]
        self._snapshot: tuple[Snapshot, Version] | None = None
        self._interrupted = ""
        self._began = self._ended = self._clock.monotonic()
        self._now = self._next_look = 0.0
        """Seconds of the run, as of the last look at the clock."""
        if parts.keeper is not None:
            parts.keeper.wanted_workers = self._workforce.wanted_workers

    # The life of a run

    def open(self, minimum: int = 1) -> None:
        """Open the transport and wait until there is room for ``minimum`` workers, and for the fingerprint."""
        self._transport.open()
        warm_up(self._server.params)
        self._start_the_clock()
        workforce = self._workforce
        while not (workforce.is_home_open and workforce.room >= minimum) and not self._interrupted:
            self._receive(SECONDS_BETWEEN_LOOKS_AT_START)
            for event in self._transport.tick(minimum, 0):
                self._on_transport_event(event)
        if self._fingerprinting.is_wanted and not self._interrupted:
            self._compute_fingerprint()
        if self._interrupted:
            raise KeyboardInterrupt(f"{self._interrupted} came before the run had begun")

    def _compute_fingerprint(self) -> None:
        self._start_the_clock()
        self._fingerprinting.started(self._workforce.next_serial(), self._read_clock())
        serial = self._fingerprinting.serial
        self._fingerprinter = self._transport.start(FINGERPRINTER, serial, HOME, self._began)
        while self._fingerprinting.blocks_the_run(self._read_clock()) and not self._interrupted:
            self._receive(SECONDS_BETWEEN_LOOKS)
        if not self._interrupted and self._fingerprinting.must_be_killed():
            self._transport.kill(serial, HOME)

    def _start_the_clock(self) -> None:
        before = 0.0 if self._parts.checkpoint is None else self._parts.checkpoint.state.time
        self._began = self._clock.monotonic() - before
        self._now = before

    def run(self) -> None:
        """Run until the budget, a callback or a signal ends it."""
        self._start_the_clock()
        self._execute(self._workforce.begin(self._server.workers))
        self._obey(self.session.start())
        self._execute(self._workforce.handle(Began(), self._read_clock()))
        while not self.session.finished:
            self._wait_and_handle()
            if self._workforce.has_requests and not self.session.finished:
                self._execute(self._workforce.handle(Requested(), self._read_clock()))
            if self._interrupted:
                self._receive(0.0)
                self.session.interrupt(self._interrupted)
        self._workforce.finished = True
        self._ended = self._clock.monotonic()
        self._finish_evaluation()

    def result(self) -> Run:
        """Return the finished run."""
        return self.session.result(self._ended - self._began, self._transport.engine)

    def close(self) -> None:
        """Kill all processes and release everything."""
        self._transport.close()
        for state in self._workforce.states.values():
            state.channel.close()
        if self._fingerprinter is not None:
            self._fingerprinter.close()
        self._workforce.states.clear()
        self._snapshot = None
        if self._parts.keeper is not None:
            self._parts.keeper.wanted_workers = list  # break the reference cycle
        self.session.let_go()

    def interrupt(self, signal: str) -> None:
        """End the run after the next events."""
        self._interrupted = signal

    # What the session calls

    def add_worker(self) -> None:
        """Let a worker with the next number join soon."""
        self._workforce.request_join()

    def remove_worker(self, worker: int) -> None:
        """Let this worker leave soon."""
        self._workforce.request_leave(worker)

    def begin(self, snapshot: Snapshot) -> None:
        """Compute the loss of the current params in the evaluator process."""
        version = self._server.retain()
        self._snapshot = (snapshot, version)
        self._execute(self._workforce.evaluate(version.slot))

    def _finish_evaluation(self) -> None:
        """Wait for the loss that is being computed, so that none is lost at the end of a run."""
        while self._snapshot is not None and self._server.diverged is None and not self._interrupted:
            self._wait_and_handle()
        if self._interrupted and not self.session.interrupted:
            self.session.interrupt(self._interrupted)

    # Polling

    def _wait_and_handle(self) -> None:
        """Do what is due, then wait for input and handle it."""
        if self._now >= self._next_look:
            self._look()
        agenda = self._workforce.agenda
        if not agenda.is_empty:
            self._execute(self._workforce.handle(Tick(), self._read_clock()))
        self._receive(max(0.0, min(self._next_look, agenda.next(finished=self._workforce.finished)) - self._now))

    def _receive(self, seconds: float) -> None:
        pending = self._transport.flush()
        ready = self._clock.wait(self._transport.fds, 0.0 if pending else seconds)
        if not ready and not pending:
            self._read_clock()
            return
        for event in self._transport.receive(ready):
            if type(event) is Reports:
                self._handle_reports(event)
            else:
                self._on_transport_event(event)

    def _read_clock(self) -> float:
        self._now = self._clock.monotonic() - self._began
        return self._now

    def _look(self) -> None:
        """Check for workers that hang, let the transport do its periodic work, and redraw the live view."""
        self._next_look = self._now + SECONDS_BETWEEN_LOOKS
        if not self.session.finished:
            self._execute(self._workforce.handle(Look(), self._now))
            for event in self._transport.tick(len(self._workforce.vacant), len(self._workforce.workers)):
                self._on_transport_event(event)
        if self._view.shown:
            views = self._workforce.views(self._now, self._server.jobs_of)
            self._view.update(self._server, self.session.loss, views)

    # Translating

    def _handle_reports(self, event: Reports) -> None:
        """Handle a batch of reports. This is the hot path: everything that happens once per gradient is here."""
        session, states, server = self.session, self._workforce.states, self._server
        handle, first_of, release = session.handle, server.in_flight.first_of, server.release
        versions, remembers, troubled = server.in_flight.versions, self._remembers, self._workforce.failures.troubled
        records, gradients = event
        now = self._now = self._clock.monotonic() - self._began
        for ticket_id, started, seconds, worker, kind in REPORT.iter_unpack(records):
            if kind != GRADIENT:
                self._handle_other(worker, ticket_id, kind, started)
                continue
            state = states.get(worker)
            if state is None or session.finished:
                continue  # the worker was removed, or the run is over
            ticket, version = state.ticket, state.version
            if ticket is None or version is None or ticket[0] != ticket_id:
                continue  # a report of a process that died, or a duplicate
            state.ticket = state.version = None
            state.took = seconds
            state.instruction = KEEP if not remembers or ticket_id in versions else UNDO
            commands = handle(new(GradientArrived, (ticket, gradients[worker], now, started, seconds)))
            if len(commands) != 1 or type(commands[0]) is not Assign or commands[0][0][1] != worker:
                self._obey(commands)
            if state.ticket is None and (following := first_of(worker)) is not None:
                self._send(state, following)
            release(version)
            if troubled:
                self._workforce.delivered(worker, state.place)

    def _handle_other(self, worker: int, ticket_id: int, kind: int, value: float) -> None:
        """Handle a report that is not a gradient."""
        if kind == ReportKind.LOSS:
            self._on_loss(ticket_id, value)
            return
        details = self._transport.details(worker, ticket_id)
        if worker == FINGERPRINTER:
            self._fingerprinting.answered(kind, details)
            return
        error, text = details or NO_DETAILS
        if worker == EVALUATOR:
            raise WorkerFailedError(f"the problem's loss raised:\n{text}")
        state = self._workforce.states.get(worker)
        if state is None or self.session.finished or state.ticket is None or state.ticket.id != ticket_id:
            return
        if kind == ReportKind.MISFIT and details is not None:
            self._on_misfit(state, state.ticket, np.broadcast_to(np.zeros((), np.dtype(details[0])), details[1]))
        else:
            any_gradient = self._server.counts.gradients > self._gradients_before
            self._execute(self._workforce.handle(Raised(worker, error, text, any_gradient), self._now))

    def _on_misfit(self, state: WorkerState, ticket: Ticket, misfit: np.ndarray) -> None:
        """Let the server reject a gradient of the wrong shape or dtype."""
        version, state.ticket, state.version = state.version, None, None
        self._obey(self.session.handle(GradientArrived(ticket, misfit, self._now)))
        if version is not None:
            self._server.release(version)
        self._send_next(state)

    def _on_loss(self, number: int, loss: float) -> None:
        if self._snapshot is not None and self._workforce.take_answer(number):
            (snapshot, version), self._snapshot = self._snapshot, None
            self._server.release(version)
            self.session.evaluated(snapshot, loss)

    def _on_transport_event(self, event: TransportEvent) -> None:
        self._read_clock()
        if type(event) is Reports:
            self._handle_reports(event)
        elif isinstance(event, Died) and event.serial == self._fingerprinting.serial:
            code = event.code
            cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self._fingerprinting.ended(f"the process that computed one gradient {cause}")
        elif not isinstance(event, Reports):
            if isinstance(event, Gone) and event.place == HOME:
                self._fingerprinting.ended(event.cause)
            self._execute(self._workforce.handle(event, self._now))

    # Executing

    def _obey(self, commands: Iterable[Command]) -> None:
        """Execute commands of the server. Tickets of busy workers, and of workers without a process, wait."""
        states = self._workforce.states
        for command in commands:
            if type(command) is Assign:
                state = states.get(command[0][1])
                if state is not None and state.ticket is None:
                    self._send_next(state)
            elif isinstance(command, Cancel):
                self._hurry(states.get(command.worker), command.tickets)
            elif isinstance(command, Wake):
                self._workforce.agenda.wake(command.at)

    def _send_next(self, state: WorkerState) -> None:
        ticket = self._server.in_flight.first_of(state.worker)
        if ticket is not None and state.ticket is None:
            self._send(state, ticket)

    def _send(self, state: WorkerState, ticket: Ticket) -> None:
        """Send one ticket; a second one would overwrite the gradient of the first before the server has read it."""
        version = state.version = self._server.retain(ticket)
        state.ticket, state.sent = ticket, self._now
        state.warned = state.hurried = False
        state.channel.send(ticket[0], ticket[3], version.slot, state.instruction)

    def _hurry(self, state: WorkerState | None, cancelled: tuple[int, ...]) -> None:
        """Tell a worker that imitates a slow one that its ticket was cancelled. Others finish, and report late."""
        if not self._imitating or state is None or state.ticket is None or state.hurried:
            return
        if state.ticket.id in cancelled:
            state.hurried = True
            state.channel.send(state.ticket.id, 0, 0, Instruction.HURRY)

    def _execute(self, actions: Iterable[Action]) -> None:
        """Execute actions of the workforce."""
        for action in actions:
            self._executors[type(action)](self, action)

    def _tell(self, action: Tell) -> None:
        if not self.session.finished:
            self._obey(self.session.handle(action.event))

    def _start(self, action: Start) -> None:
        state = action.state
        state.channel = self._transport.start(state.worker, state.serial, state.place, self._began)

    def _kill(self, action: Kill) -> None:
        self._transport.kill(action.state.serial, action.state.place)

    def _release(self, action: Release) -> None:
        action.state.channel.close()
        self._abandon(action)

    def _abandon(self, action: Abandon | Release) -> None:
        state = action.state
        if state.version is not None:
            self._server.release(state.version)
        state.ticket = state.version = None
        state.instruction = Instruction.FORGET

    def _ask(self, action: Ask) -> None:
        action.state.channel.send(action.number, 0, action.slot, KEEP)

    def _reopen(self, action: Reopen) -> None:
        self._transport.reopen()

    def _warn(self, action: Warn) -> None:
        logger.warning("%s", action.message)

    def _stop(self, action: Stop) -> None:
        self.session.stop(action.reason and f"{action.reason} after {self._server.steps} steps")

    def _fail(self, action: Fail) -> None:
        raise WorkerFailedError(action.message)

    _executors: ClassVar[dict[type, Callable[[Loop, Any], None]]] = {
        Tell: _tell,
        Start: _start,
        Kill: _kill,
        Release: _release,
        Abandon: _abandon,
        Ask: _ask,
        Reopen: _reopen,
        Warn: _warn,
        Stop: _stop,
        Fail: _fail,
    }
