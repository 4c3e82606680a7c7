"""Translates what arrives into events of the server and the workforce, and executes what they decide."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, final

import numpy as np

from nowait.core import Assign, Cancel, Command, GradientArrived, Ticket, Wake, WorkerLost
from nowait.core.errors import BadWorkerError, WorkerFailedError
from nowait.core.ledger import new
from nowait.core.standstill import Standstill
from nowait.core.versions import Version
from nowait.engines.session import Parts, Session, Snapshot
from nowait.engines.workers.actions import (
    Abandon,
    Action,
    Ask,
    Dismiss,
    Fail,
    Faulty,
    Kill,
    Note,
    Raised,
    Release,
    Reopen,
    Retire,
    Start,
    Stop,
    Tell,
    Warn,
    WorkerLeaving,
    WorkforceEvent,
)
from nowait.engines.workers.auditor import Auditor
from nowait.engines.workers.clock import RunClock
from nowait.engines.workers.failures import NO_DETAILS
from nowait.engines.workers.fingerprinting import Fingerprinting
from nowait.engines.workers.options import WorkerOptions
from nowait.engines.workers.records import EVALUATOR, FINGERPRINTER, REPORT, Instruction, ReportKind, check_number
from nowait.engines.workers.retired import RetiredChannel
from nowait.engines.workers.starting import StartingLine
from nowait.engines.workers.state import WorkerState
from nowait.engines.workers.transport import HOME, Channel, Died, Gone, Reports, Transport, TransportEvent
from nowait.engines.workers.workforce import Workforce

logger = logging.getLogger("nowait")

GRADIENT, KEEP, UNDO = int(ReportKind.GRADIENT), int(Instruction.KEEP), int(Instruction.UNDO)
AUDITED = int(ReportKind.AUDITED)


@final
class Dispatcher:
    """Stands between the transport, the workforce and the session of one run."""

    def __init__(
        self,
        parts: Parts,
        transport: Transport,
        workforce: Workforce,
        clock: RunClock,
        *,
        imitating: bool,
        options: WorkerOptions,
    ) -> None:
        self._transport, self._workforce, self._clock = transport, workforce, clock
        self._server, self._recorder, self._device_of = parts.server, parts.recorder, parts.capabilities.device_of
        standstill = Standstill(real=True)
        self.session = Session(parts, parts.server, parts.recorder, self, evaluator=self, standstill=standstill)
        self.fingerprinting = Fingerprinting(parts.identification)
        self._imitating = imitating
        """True if workers imitate slower ones, so that a cancelled ticket can be cut short."""
        self.line = StartingLine(holding=options.together)
        self.auditor = Auditor.of(parts, workforce, options.audit, self._time_of_orders)
        self._remembers = parts.capabilities.gradient_with_memory is not None
        self._gradients_before = 0 if parts.checkpoint is None else parts.checkpoint.state.counts["gradients"]
        memory = parts.server.memory
        self._wait = memory.wait if memory.is_queued else None
        parts.server.rejections.machine_of = workforce.place_of
        self._next: dict[int, Ticket] = {}
        """The tickets that were assigned and not sent yet, by worker."""
        self._snapshot: tuple[Snapshot, Version] | None = None
        self._channels: set[Channel] = set()
        """All channels that were opened and not closed."""

    @property
    def is_evaluating(self) -> bool:
        """True while a loss is being computed."""
        return self._snapshot is not None

    def close(self) -> None:
        """Close all channels and the session."""
        while self._channels:
            self._channels.pop().close()
        self._workforce.states.clear()
        self._snapshot = None
        self.auditor = None  # break the reference cycles
        self._server.rejections.forget_machines()
        self.session.close()

    # What the session calls

    def add_worker(self) -> None:
        """Let a worker with the next number join soon."""
        self._workforce.request_join()

    def remove_worker(self, worker: int) -> None:
        """Let this worker leave soon."""
        self._workforce.request_leave(worker)

    def begin(self, snapshot: Snapshot) -> None:
        """Evaluate the current params in the evaluator process."""
        version = self._server.retain()
        self._snapshot = (snapshot, version)
        self.execute(self._workforce.evaluate(version.slot, snapshot.step, self._clock.now))

    # Starting together

    @property
    def is_ready(self) -> bool:
        """True if every worker process is ready and the first loss is known, unless the evaluator is gone."""
        return not self.line.missing and not (self.is_evaluating and EVALUATOR in self._workforce.states)

    def release_workers(self, began_later: float) -> None:
        """Send the first tickets, after all workers were told by how many seconds the run has begun later."""
        self.line.holding = False
        for state in [state for state in self._workforce.states.values() if state.worker >= 0]:
            if state.channel is not None:
                state.channel.send(0, round(1e9 * began_later), 0, Instruction.BEGIN)
            self._send_next(state)

    # Translating

    def handle_reports(self, event: Reports) -> None:  # noqa: C901, PLR0912 (a call more for each gradient would cost time)
        """Handle a batch of reports. This is the hot path: everything that happens once per gradient is here."""
        session, states, server = self.session, self._workforce.states, self._server
        handle, release, remembers, wait = session.handle, server.release, self._remembers, self._wait
        tickets, next_tickets = server.in_flight.tickets, self._next
        troubled = self._workforce.failures.troubled
        auditor = self.auditor
        chooses = None if auditor is None else auditor.chooses
        records, gradients = event
        now = self._clock.read()
        for ticket_id, started, seconds, worker, kind in REPORT.iter_unpack(records):
            if kind != GRADIENT:
                if kind < AUDITED:
                    self._handle_other(worker, ticket_id, kind, started, seconds)
                else:
                    self._handle_audit(worker, ticket_id, gradients if kind == AUDITED else started)
                continue
            state = states.get(worker)
            if state is None or session.finished:
                continue  # the worker was removed, or the run is over
            ticket, version = state.ticket, state.version
            if ticket is None or version is None or ticket[0] != ticket_id:
                self._on_stray(worker, ticket_id)
                continue
            state.ticket = state.version = None
            state.took = now - state.sent  # with what the network needs, as the time since an order is
            state.instruction = KEEP if not remembers or ticket_id in tickets else UNDO
            commands, check = [], None
            try:
                if auditor is not None and (chooses is not None or not state.checked):
                    check = auditor.begin(state, ticket, version, gradients[worker])
                commands = handle(new(GradientArrived, (ticket, gradients[worker], now, started, seconds)))
                if check is not None:
                    auditor.end(check, gradients[worker])  # type: ignore[union-attr]
            except BadWorkerError as error:
                release(version)
                self.obey(commands)
                self._give_up(error)
                continue
            if wait is not None:
                wait()  # the worker will write to its gradient's memory again
            if len(commands) == 1 and type(commands[0]) is Assign and commands[0][0][1] == worker:
                next_tickets[worker] = commands[0][0]
            else:
                self.obey(commands)
            if state.ticket is None and (following := next_tickets.get(worker)) is not None:
                self._send(state, following)
            release(version)
            if troubled:
                self._workforce.delivered(worker, state.place)

    def _handle_other(self, worker: int, ticket_id: int, kind: int, value: float, second: float) -> None:
        """Handle a report that is not a gradient, with two values whose meaning depends on its kind."""
        if kind in (ReportKind.TRAINING_LOSS, ReportKind.LOADING):
            self._on_more_about_a_gradient(worker, ticket_id, kind, value, second)
            return
        if kind == ReportKind.LOSS:
            self._on_loss(ticket_id, value)
        elif kind == ReportKind.LEAVING:
            self.decide(WorkerLeaving(ticket_id))
        elif kind == ReportKind.READY:
            self.line.ready(worker)
        else:
            self._handle_failure(worker, ticket_id, kind)

    def _handle_failure(self, worker: int, ticket_id: int, kind: int) -> None:
        """Handle a report whose details are elsewhere: a fingerprint, an error, or a gradient that does not fit."""
        details = self._transport.details(worker, ticket_id)
        if worker == FINGERPRINTER:
            self.fingerprinting.answered(kind, details)
            return
        misfit = details if details is not None and isinstance(details[1], tuple) else None
        error, text = NO_DETAILS if details is None or misfit else details
        if worker == EVALUATOR:
            raise WorkerFailedError(f"the problem's loss raised:\n{text}")
        state = self._state_with(worker, ticket_id)
        if state is None or state.ticket is None:
            return
        if ticket_id < 0:
            self._on_failed_audit(state, f"{error}\n{text}")
        elif kind == ReportKind.MISFIT and misfit is not None:
            self._on_misfit(state, state.ticket, np.broadcast_to(np.zeros((), np.dtype(misfit[0])), misfit[1]))
        else:
            self.decide(Raised(worker, error, text, self._has_gradients()))

    def _handle_audit(self, worker: int, number: int, value: Any) -> None:
        """Handle a gradient that was computed again, which is in ``value``, or the checksum of one."""
        auditor, state = self.auditor, self._workforce.states.get(worker)
        if auditor is None or state is None:
            return
        if isinstance(value, float):
            auditor.reported(worker, number, int(value))
        elif state.ticket is not None and state.ticket.id == number:
            state.ticket = None
            error = None if self.session.finished else auditor.audited(state, number, value[worker])
            if error is not None:
                self._give_up(error)
            if not state.released:
                self._send_next(state)

    def _on_failed_audit(self, state: WorkerState, text: str) -> None:
        assert self.auditor is not None
        self.auditor.failed(state, text)
        self._send_next(state)

    def _state_with(self, worker: int, ticket_id: int) -> WorkerState | None:
        """Return the state of a worker that computes this ticket; None if the report is not to be used."""
        state = self._workforce.states.get(worker)
        if state is None or self.session.finished:
            return None
        if state.ticket is None or state.ticket.id != ticket_id:
            self._on_stray(worker, ticket_id)
            return None
        return state

    def _on_stray(self, worker: int, ticket_id: int) -> None:
        """Count and show a report on a ticket that its worker was never given.

        Others come from a process that died, or are duplicates: both are usual.
        """
        server, failures = self._server, self._workforce.failures
        in_flight = server.in_flight.tickets.get(ticket_id)
        number = check_number(ticket_id) if ticket_id < 0 and self.auditor is not None else ticket_id
        if 0 <= number < server.num_tickets and (in_flight is None or in_flight.worker == worker):
            return
        failures.strays += 1
        if failures.strays & (failures.strays - 1) == 0:  # a power of two
            node = self._workforce.label_of(self._workforce.states[worker].place)
            logger.warning(
                "worker %d%s reported on ticket %d, which it was never given: the report is dropped (%d such reports "
                "so far). Its host is faulty or hostile",
                worker,
                node and f" on {node}",
                ticket_id,
                failures.strays,
            )

    def _on_misfit(self, state: WorkerState, ticket: Ticket, misfit: np.ndarray) -> None:
        """Let the server reject a gradient of the wrong shape or dtype."""
        version, state.ticket, state.version = state.version, None, None
        try:
            self.obey(self.session.handle(GradientArrived(ticket, misfit, self._clock.now)))
            self._send_next(state)
        except BadWorkerError as error:
            self._give_up(error)
        finally:
            if version is not None:
                self._server.release(version)

    def _give_up(self, error: BadWorkerError) -> None:
        """Go on without a worker that keeps sending what cannot be used, or end the run if there is no other."""
        if self.auditor is not None and error is self.auditor.final:
            raise error
        if error.worker in self._workforce.states:
            self.decide(Faulty(error, self._has_gradients()))
        else:
            logger.warning("%s: it has left already", error)

    def _has_gradients(self) -> bool:
        return self._server.counts.gradients > self._gradients_before

    def _on_more_about_a_gradient(self, worker: int, ticket_id: int, kind: int, value: float, second: float) -> None:
        state = self._workforce.states.get(worker)
        if state is None or state.ticket is None or state.ticket.id != ticket_id:
            return
        if kind == ReportKind.TRAINING_LOSS:
            self.session.training_losses.add(value, worker)
        elif 0 <= value < math.inf and 0 <= second < math.inf:
            self._recorder.loaded(worker, value, second)

    def _on_loss(self, number: int, loss: float) -> None:
        (metrics,) = self._transport.details(EVALUATOR, number) or ({},)
        if self._snapshot is not None and self._workforce.take_answer(number, self._clock.now):
            (snapshot, version), self._snapshot = self._snapshot, None
            self._server.release(version)
            self.session.evaluated(snapshot, loss, metrics)

    def handle(self, event: TransportEvent) -> None:
        """Handle an event of the transport."""
        self._clock.read()
        if isinstance(event, Reports):
            self.handle_reports(event)
        elif isinstance(event, Died) and event.serial == self.fingerprinting.serial:
            self.fingerprinting.ended(f"the process that computed one gradient {event.cause}")
        else:
            if isinstance(event, Gone) and event.place == HOME:
                self.fingerprinting.ended(event.cause)
            self.decide(event)

    # Executing

    def decide(self, event: WorkforceEvent) -> None:
        """Pass an event to the workforce, and execute what it decides."""
        self._workforce.finished = self.session.finished
        self.execute(self._workforce.handle(event, self._clock.now))

    def obey(self, commands: Iterable[Command]) -> None:
        """Execute commands of the server. Tickets of busy workers, and of workers without a process, wait."""
        states = self._workforce.states
        for command in commands:
            if type(command) is Assign:
                ticket = command[0]
                self._next[ticket[1]] = ticket
                state = states.get(ticket[1])
                if state is not None and state.ticket is None:
                    self._send_next(state)
            elif isinstance(command, Cancel):
                self._cancel(command)
            elif isinstance(command, Wake):
                self._workforce.agenda.wake(command.at)

    def _time_of_orders(self) -> float | None:
        """Return the time of an order that is sent now; None before the start and after the end."""
        return None if self.line.holding or self.session.finished else self._clock.now

    def _send_next(self, state: WorkerState) -> None:
        """Send the next ticket of an idle worker. One whose process is about to be started has to join first."""
        if self.line.holding:
            return
        ticket = self._next.get(state.worker)
        if ticket is not None and state.ticket is None and state.channel is not None:
            self._send(state, ticket)

    def _send(self, state: WorkerState, ticket: Ticket) -> None:
        """Send one ticket; a second one would overwrite the gradient of the first before the server has read it.

        If a gradient of another worker waits to be computed again, that is sent first.
        """
        auditor = self.auditor
        if auditor is not None and auditor.waiting and auditor.send(state):
            return
        del self._next[state.worker]
        version = state.version = self._server.retain(ticket)
        state.ordered(ticket, self._clock.now)
        state.channel.send(ticket[0], ticket[3], version.slot, state.instruction)  # type: ignore[union-attr]

    def _cancel(self, command: Cancel) -> None:
        """Do not send a cancelled ticket, or hurry the worker that has it."""
        waiting = self._next.get(command.worker)
        if waiting is not None and waiting.id in command.tickets:
            del self._next[command.worker]
        self._hurry(self._workforce.states.get(command.worker), command.tickets)

    def _hurry(self, state: WorkerState | None, cancelled: tuple[int, ...]) -> None:
        """Tell a worker that imitates a slow one that its ticket was cancelled. Others finish, and report late."""
        if not self._imitating or state is None or state.ticket is None or state.hurried:
            return
        if state.ticket.id in cancelled and state.channel is not None:
            state.hurried = True
            state.channel.send(state.ticket.id, 0, 0, Instruction.HURRY)

    def execute(self, actions: Iterable[Action]) -> None:
        """Execute actions of the workforce."""
        for action in actions:
            self._executors[type(action)](self, action)

    def _tell(self, action: Tell) -> None:
        if self.session.finished:
            return
        if isinstance(action.event, WorkerLost):
            self._next.pop(action.event.worker, None)
        self.obey(self.session.handle(action.event))

    def _start(self, action: Start) -> None:
        state = action.state
        channel = self._transport.start(state.worker, state.serial, state.place, self._clock.began)
        self._channels.add(channel)
        state.channel, state.checked = channel, False
        if state.worker >= 0:
            node, device = self._workforce.node_of(state.place), self._device_of(state.worker)
            self._recorder.placed(state.worker, self._clock.now, node, device)
            if self.line.holding:
                self.line.started(state.worker)
                channel.send(0, 0, 0, Instruction.ANNOUNCE)

    def _kill(self, action: Kill) -> None:
        self._transport.kill(action.state.serial, action.state.place)

    def _retire(self, action: Retire) -> None:
        """Replace the channel by one that sends no orders. So ``handle_reports`` need not know who is leaving."""
        state, workforce = action.state, self._workforce
        if state.channel is not None:
            self._channels.discard(state.channel)
            state.channel = RetiredChannel(state.channel, lambda: workforce.retired(state))
            self._channels.add(state.channel)

    def _dismiss(self, action: Dismiss) -> None:
        self._transport.dismiss(action.place, action.reason)

    def _release(self, action: Release) -> None:
        channel = action.state.channel
        self.line.gone(action.state.worker)
        if channel is not None:
            self._channels.discard(channel)
            channel.close()
        self._abandon(action)

    def _abandon(self, action: Abandon | Release) -> None:
        state = action.state
        if self.auditor is not None:
            self.auditor.lost(state.ticket)
        if state.version is not None:
            self._server.release(state.version)
        state.ticket = state.version = None
        state.instruction = Instruction.FORGET

    def _ask(self, action: Ask) -> None:
        if action.state.channel is not None:
            action.state.channel.send(action.number, action.step, action.slot, KEEP)

    def _reopen(self, action: Reopen) -> None:
        self._transport.reopen()

    def _warn(self, action: Warn) -> None:
        logger.warning("%s", action.message)

    def _note(self, action: Note) -> None:
        logger.info("%s", action.message)

    def _stop(self, action: Stop) -> None:
        if not self.session.finished:
            self.session.stop(action.reason and f"{action.reason} after {self._server.steps} steps")

    def _fail(self, action: Fail) -> None:
        if not (action.while_running and self.session.finished):
            raise action.error or WorkerFailedError(action.message)

    _executors: ClassVar[dict[type, Callable[[Dispatcher, Any], None]]] = {
        Tell: _tell,
        Start: _start,
        Kill: _kill,
        Retire: _retire,
        Release: _release,
        Abandon: _abandon,
        Ask: _ask,
        Reopen: _reopen,
        Dismiss: _dismiss,
        Warn: _warn,
        Note: _note,
        Stop: _stop,
        Fail: _fail,
    }
