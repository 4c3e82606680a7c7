"""The engine of real workers: drives the server with processes, wherever they are."""

from __future__ import annotations

import logging
import math
import select
from bisect import insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import final

import numpy as np

from nowait.core import (
    Assign,
    Cancel,
    Command,
    Event,
    GradientArrived,
    Ticket,
    TimerFired,
    Wake,
    WorkerJoined,
    WorkerLost,
)
from nowait.core.errors import WorkerFailedError
from nowait.core.ledger import new
from nowait.core.versions import Version
from nowait.engines.live import LiveView, WorkerView
from nowait.engines.processes.agenda import Agenda
from nowait.engines.processes.desk import Desk
from nowait.engines.processes.failures import NO_DETAILS, Failures, Habits
from nowait.engines.processes.identifier import Identifier
from nowait.engines.processes.places import Died, Gone, News, Opened, Place, Places, Reported
from nowait.engines.processes.wire import EVALUATOR, FINGERPRINTER, REPORT, ZYGOTE, Order, Report
from nowait.engines.session import Parts, Session, Snapshot
from nowait.numerics.compiled import warm_up
from nowait.recording import Run
from nowait.speeds import Speeds

logger = logging.getLogger("nowait")

SECONDS_BETWEEN_LOOKS = 0.25
"""How often the engine looks for workers that hang, and the view is drawn."""
GRADIENT, KEEP, UNDO = int(Report.GRADIENT), int(Order.KEEP), int(Order.UNDO)


@final
@dataclass(frozen=True)
class ProcessOptions:
    """How the workers of a run behave, and what is done when they misbehave."""

    slowdown: dict[int, float] = field(default_factory=dict)
    speeds: Speeds | None = None
    replace_hung: bool = False
    max_failures: int = 5
    log: Path | None = None
    most_workers: int = 0
    """More than the run begins with: the others join when there is room."""


@final
class Engine:
    """One server, many processes. It reads reports in batches, and hands the server one event after the other."""

    def __init__(self, parts: Parts, places: Places, options: ProcessOptions, view: LiveView) -> None:
        self._parts = parts
        self._places = places
        self._view = view
        self._server = parts.server
        self._options = options
        self.session = Session(parts, self, evaluator=self)
        self._desks: dict[int, Desk] = {}
        """By worker."""
        self._hired: dict[int, Desk] = {}
        """By serial number: all whose death will be told."""
        self._serial = 0
        self._imitating = bool(options.slowdown) or options.speeds is not None
        self._agenda = Agenda(math.inf if parts.budget.seconds is None else parts.budget.seconds)
        self._vacant: list[int] = []
        """Workers that wait for room, in order."""
        self._requests: deque[WorkerJoined | WorkerLost] = deque()
        self._highest_worker = max([*parts.server.workers, *self._numbers_used()], default=-1)
        self._failures = Failures(options.max_failures)
        self._gradients_before = 0 if parts.checkpoint is None else parts.checkpoint.state.counts["gradients"]
        self._snapshot: tuple[Snapshot, Version] | None = None
        self._evaluation = 0
        """The number of the latest request to the evaluator."""
        self._identifier = Identifier(parts.identification)
        self._began = self._ended = monotonic()
        self._next_look = 0.0
        self._interrupted = ""
        if parts.keeper is not None:
            parts.keeper.wanted_workers = self.wanted_workers
        self._remembers = hasattr(parts.problem, "gradient_with_memory")
        self._now = 0.0
        """Seconds since the start, as of the last look at the clock."""
        self._habits: dict[int, Habits] = {}
        self._poller = select.poll()
        self._reports = places.reports

    def open(self) -> None:
        """Have the places opened, and meanwhile load what the server needs."""
        self._places.open()
        warm_up(self._server.params)
        self._places.wait_until_ready(self._poller, lambda: bool(self._interrupted))
        if self._identifier.is_wanted and not self._interrupted:
            self._identify()
        if self._interrupted:
            raise KeyboardInterrupt(f"{self._interrupted} came before the run had begun")

    def _identify(self) -> None:
        """Have the fingerprint of the problem computed, and wait for it, but not for long."""
        self._start_the_clock()
        self._serial += 1
        self._identifier.begin(self._places.home, self._serial)
        while self._identifier.blocks_the_run and not self._interrupted:
            self._hear_all([fd for fd, _ in self._poller.poll(1000 * SECONDS_BETWEEN_LOOKS)])
        if not self._interrupted:
            self._identifier.stop_blocking()

    def _start_the_clock(self) -> None:
        self._began = monotonic() - (0.0 if self._parts.checkpoint is None else self._parts.checkpoint.state.time)

    def run(self) -> None:
        """Until the budget ends, or something else ends it."""
        self._start_the_clock()
        self._hire_evaluator()
        homeless = [worker for worker in self._server.workers if not self._find_place(worker)]
        self._vacant = sorted({*self._vacant, *self._missing()})
        self._execute_but_for(homeless, self.session.start())
        self._now = monotonic() - self._began
        for worker in homeless:
            if not self.session.finished:
                self._execute_but_for(homeless, self.session.handle(WorkerLost(worker, self._now)))
        while not self.session.finished:
            self._handle_reports(self._next_reports())
            if self._requests and not self.session.finished:
                self._change_workers()
            if self._interrupted:
                self._hear_all(())
                self.session.interrupt(self._interrupted)
        self._ended = monotonic()
        self._await_evaluation()

    def result(self) -> Run:
        """The finished run."""
        seconds = self._ended - self._began
        return self.session.result(seconds, self._places.way)

    def close(self) -> None:
        """Nothing is left of the workers."""
        self._places.close()
        for desk in self._desks.values():
            desk.line.close()
        self._identifier.close()
        self._desks.clear()
        self._hired.clear()
        self._snapshot = None
        if self._parts.keeper is not None:
            self._parts.keeper.wanted_workers = list  # break the reference cycle with the engine
        self.session.let_go()

    def interrupt(self, signal: str) -> None:
        """End the run soon, and well."""
        self._interrupted = signal

    def _missing(self) -> list[int]:
        """Workers that join as soon as there is room; of a run that is resumed, also those that were being replaced."""
        checkpoint = self._parts.checkpoint
        wanted = range(self._options.most_workers) if checkpoint is None else checkpoint.wanted
        return [worker for worker in wanted if worker not in self._server.workers]

    def _numbers_used(self) -> list[int]:
        """Of workers to come, and of those before the checkpoint, also if they are gone: new ones get new numbers."""
        checkpoint = self._parts.checkpoint
        before = [] if checkpoint is None else [*checkpoint.wanted, *checkpoint.state.jobs]
        return [*before, self._options.most_workers - 1]

    def wanted_workers(self) -> list[int]:
        """The live workers and those that are about to be replaced: what a run that is resumed should have."""
        joining = [request.worker for request in self._requests if isinstance(request, WorkerJoined)]
        return sorted({*self._server.workers, *self._vacant, *self._agenda.to_replace, *joining})

    # Control, and evaluation beside the run

    def add_worker(self) -> None:
        """A worker with the next number joins."""
        self._highest_worker += 1
        self._requests.append(WorkerJoined(self._highest_worker, 0.0))

    def remove_worker(self, worker: int) -> None:
        """This worker leaves."""
        self._requests.append(WorkerLost(worker, 0.0))

    def begin(self, snapshot: Snapshot) -> None:
        """Have the evaluator look at the params of now."""
        self._snapshot = (snapshot, self._server.retain())
        self._ask_evaluator()

    def _hire_evaluator(self) -> None:
        if self._places.home_is_ready and EVALUATOR not in self._desks:  # else ``Opened`` will tell
            self._hire(EVALUATOR, self._places.home)
            self._ask_evaluator()

    def _ask_evaluator(self) -> None:
        if self._snapshot is not None and EVALUATOR in self._desks:
            self._evaluation += 1  # so an answer to an earlier request is not taken for this one's
            self._desks[EVALUATOR].line.order(self._evaluation, 0, self._snapshot[1], Order.KEEP)

    def _evaluated(self, number: int, loss: float) -> None:
        if self._snapshot is not None and self._evaluation == number:
            self._forgive(EVALUATOR, self._places.home)
            (snapshot, version), self._snapshot = self._snapshot, None
            self._server.release(version)
            self.session.evaluated(snapshot, loss)

    def _await_evaluation(self) -> None:
        """The run is over: let the evaluator finish, so that no loss it was asked for is lost."""
        while self._snapshot is not None and self._server.diverged is None and not self._interrupted:
            self._handle_reports(self._next_reports())
        if self._interrupted and not self.session.interrupted:
            self.session.interrupt(self._interrupted)

    # Reports

    def _next_reports(self) -> bytes:
        """Reports that are there; waits for them, or until there is something else to do."""
        if self._now >= self._next_look:
            self._look_around()
        if not self._agenda.is_empty:
            self._look_at_the_clock()
        self._places.flush()
        pending = self._places.pending()
        ready = [fd for fd, _ in self._poller.poll(0.0 if pending else 1000 * self._seconds_to_wait())]
        if ready == [self._reports] and not pending:
            return self._places.read()
        if not ready and not pending:
            return b""
        self._hear_all(ready)
        return b""

    def _hear_all(self, ready: Collection[int]) -> None:
        """News from these files, and all that travels or lies in the mailbox."""
        for news in self._places.hear(ready):
            self._hear(news)
        self._handle_reports(self._places.drain())

    def _handle_reports(self, reports: bytes) -> None:
        """The hot path: everything that happens once per gradient is here."""
        session, desks, handle, release = self.session, self._desks, self.session.handle, self._server.release
        began, in_flight, remembers = self._began, self._server.in_flight, self._remembers
        now = self._now = monotonic() - began
        troubled = self._failures.troubled
        for ticket_id, started, seconds, worker, kind in REPORT.iter_unpack(reports):
            if kind != GRADIENT:
                self._handle_other(worker, ticket_id, kind, started)
                now = self._now
                continue
            desk = desks.get(worker)
            if desk is None or session.finished:
                continue  # it was let go; or nobody needs it any more
            ticket, version = desk.running, desk.version
            if ticket is None or version is None or ticket[0] != ticket_id:
                continue  # from a process that died since
            desk.running = None
            desk.order = KEEP if not remembers or ticket_id in in_flight else UNDO
            commands = handle(new(GradientArrived, (ticket, desk.gradient, now, started - desk.began, seconds)))
            if len(commands) == 1 and type(commands[0]) is Assign and commands[0][0][1] == worker and not desk.queue:
                self._send(desk, commands[0][0])  # by far the most frequent case
            else:
                self._execute(commands)
            release(version)
            desk.took = seconds
            if desk.queue and desk.running is None:
                self._send(desk, desk.queue.popleft())
            if troubled:
                self._forgive(worker, desk.place)

    def _forgive(self, worker: int, place: Place) -> None:
        """A worker delivered: reset its failures, and those of the home if it works there."""
        self._failures.delivered(worker)
        if place is self._places.home:
            self._failures.delivered(ZYGOTE)

    def _execute_but_for(self, homeless: list[int], commands: list[Command]) -> None:
        """Execute, but for workers that are about to be lost, because they found no room."""
        self._execute([command for command in commands if not _is_for(command, homeless)])

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            if type(command) is Assign:
                ticket = command[0]
                desk = self._desks[ticket[1]]
                if desk.running is None and not desk.queue:
                    self._send(desk, ticket)
                else:
                    desk.queue.append(ticket)
            elif isinstance(command, Cancel):
                self._cancel(self._desks[command.worker])
            elif isinstance(command, Wake):
                self._agenda.wake(command.at)

    def _send(self, desk: Desk, ticket: Ticket) -> None:
        """One ticket at a time: the next gradient would overwrite the one the server has not read."""
        version = desk.version = self._server.retain(ticket)
        desk.running = ticket
        desk.sent = self._now
        desk.warned = desk.hurried = False
        desk.line.order(ticket[0], ticket[3], version, desk.order)

    def _cancel(self, desk: Desk) -> None:
        """The worker finishes what it computes; the result will be late. One that plays slow need not go on."""
        desk.queue.clear()
        if self._imitating and desk.running is not None and desk.version is not None and not desk.hurried:
            desk.hurried = True
            desk.line.order(desk.running.id, 0, desk.version, Order.HURRY)

    def _handle_other(self, worker: int, ticket_id: int, kind: int, value: float) -> None:
        if kind == Report.LOSS:
            self._evaluated(ticket_id, value)
            return
        letter = self._places.letter(worker, ticket_id)
        if worker == FINGERPRINTER:
            self._identifier.answered(kind, letter)
            return
        if worker == EVALUATOR:
            raise WorkerFailedError(f"the problem's loss raised:\n{(letter or NO_DETAILS)[1]}")
        desk = self._desks.get(worker)
        if desk is None or self.session.finished:
            return
        ticket, version = desk.running, desk.version
        if ticket is None or version is None or ticket.id != ticket_id:
            return
        if kind == Report.MISFIT and letter is not None:
            misfit = np.broadcast_to(np.zeros((), np.dtype(letter[0])), letter[1])
            desk.running = None
            self._execute(self.session.handle(GradientArrived(ticket, misfit, self._now)))
            self._server.release(version)
            if desk.queue and desk.running is None:
                self._send(desk, desk.queue.popleft())
        else:
            self._on_error(desk, *(letter or NO_DETAILS))

    # Workers come and go

    def _find_place(self, worker: int) -> bool:
        """Hire a worker where there is room; if there is none, it waits."""
        place = self._places.find()
        if place is None:
            insort(self._vacant, worker)
            return False
        self._hire(worker, place)
        return True

    def _hire(self, worker: int, place: Place) -> None:
        self._serial += 1
        line = place.hire(worker, self._serial, self._began)
        habits = self._habits.setdefault(worker, Habits())
        desk = Desk(worker, self._serial, place, line, line.gradient, self._began + place.clock_ahead, habits)
        self._desks[worker] = self._hired[self._serial] = desk

    def _handle(self, event: Event) -> None:
        if not self.session.finished:
            self._execute(self.session.handle(event))

    def _change_workers(self) -> None:
        """What callbacks asked for."""
        self._now = monotonic() - self._began
        while self._requests and not self.session.finished:
            worker, joins = self._requests[0].worker, isinstance(self._requests.popleft(), WorkerJoined)
            if joins and worker not in self._server.workers:
                self._join(worker)
            elif not joins and worker in self._server.workers:
                self._desks[worker].kill()
                self._leave(self._desks[worker])
            self._agenda.do_not_replace(worker)
            if not joins:
                self._vacant = [other for other in self._vacant if other != worker]
        if not self.session.finished and not self._server.workers and not (self._agenda.to_replace or self._vacant):
            self.session.stop(f"every worker was removed after {self._server.steps} steps")

    def _join(self, worker: int) -> None:
        if self._find_place(worker):
            self._handle(WorkerJoined(worker, self._now))

    def _leave(self, desk: Desk) -> None:
        """Its process is gone, or as good as gone."""
        del self._desks[desk.worker]
        desk.line.close()
        desk.gone = True
        self._places.release(desk.place)
        if desk.running is not None and desk.version is not None:
            self._server.release(desk.version)
        self._handle(WorkerLost(desk.worker, self._now))

    def _hear(self, news: News) -> None:
        if type(news) is Reported:
            self._take_vectors(news)
            self._handle_reports(news.records)
            self._places.flush()
        elif isinstance(news, Died):
            self._hear_of_death(news)
        elif isinstance(news, Gone):
            self._handle_reports(self._places.drain())
            self._on_place_gone(news)
        elif isinstance(news, Opened):
            if news.place is self._places.home:
                self._hire_evaluator()
            self._fill_vacancies()

    def _hear_of_death(self, news: Died) -> None:
        desk = self._hired.pop(news.serial, None)
        if desk is not None and not desk.gone:
            self._handle_reports(self._places.drain())
            self._on_death(desk, news.code)
        elif self._identifier.owns(news.serial):
            self._handle_reports(self._places.drain())
            self._identifier.ended(f"the process that computed one gradient {_cause(news.code)}")

    def _take_vectors(self, news: Reported) -> None:
        """Gradients that travelled are wherever they arrived."""
        vectors = iter(news.vectors)
        for _, _, _, worker, kind in REPORT.iter_unpack(news.records):
            if kind == GRADIENT:
                vector, desk = next(vectors), self._desks.get(worker)
                if desk is not None and desk.place is news.place:
                    desk.gradient = vector

    def _fill_vacancies(self) -> None:
        """There may be room again."""
        self._now = monotonic() - self._began
        while self._vacant and not self.session.finished and (place := self._places.find()) is not None:
            worker = self._vacant.pop(0)
            self._hire(worker, place)
            self._handle(WorkerJoined(worker, self._now))

    def _on_place_gone(self, news: Gone) -> None:
        """All workers of a place died with it. That is no fault of theirs: they are replaced where there is room."""
        self._now = monotonic() - self._began
        desks = [desk for desk in self._desks.values() if desk.place is news.place]
        numbers = sorted(desk.worker for desk in desks if desk.worker != EVALUATOR)
        also = f", and workers {numbers} with it: they are replaced" if numbers else ": it is started again"
        logger.warning("%s%s", news.cause, also)
        for desk in desks:
            desk.gone = True
            del self._hired[desk.serial]
            if desk.worker != EVALUATOR:
                self._agenda.replace(desk.worker, self._now)
        for desk in desks:
            if desk.worker != EVALUATOR:
                self._leave(desk)
        if self._identifier.is_at(news.place):
            self._identifier.ended(news.cause)
        if news.place is self._places.home:
            self._lose_home(news.cause)
        self._look_at_the_clock()

    def _lose_home(self, cause: str) -> None:
        """Plan to start it again. Workers, and the evaluator, follow when it is ready: nobody waits for it here."""
        if EVALUATOR in self._desks:
            self._desks.pop(EVALUATOR).line.close()
        pause = self._failures.died(ZYGOTE)
        if pause is None:
            raise WorkerFailedError(f"the process that starts workers ended again and again, at last because {cause}")
        self._agenda.reopening = self._now + pause

    def _on_death(self, desk: Desk, code: int) -> None:
        self._now = monotonic() - self._began
        cause = _cause(code)
        pause = self._failures.died(desk.worker)
        if desk.worker == EVALUATOR:
            self._replace_evaluator(cause, give_up=pause is None)
            return
        if pause is not None:
            logger.warning("worker %d %s: it is replaced", desk.worker, cause)
            self._agenda.replace(desk.worker, self._now + pause)
            self._leave(desk)
            self._replace_those_whose_time_has_come()
        else:
            logger.warning("worker %d %s again and again: it is not replaced any more", desk.worker, cause)
            self._leave(desk)
            self._check_that_somebody_is_left(f"worker {desk.worker}, the last one, {cause}")

    def _replace_evaluator(self, cause: str, *, give_up: bool) -> None:
        if give_up:
            raise WorkerFailedError(
                f"the process that computes losses {cause} again and again: look at the problem's loss"
            )
        logger.warning("the process that computes losses %s: it is replaced", cause)
        self._desks.pop(EVALUATOR).line.close()
        self._hire_evaluator()

    def _replace_those_whose_time_has_come(self) -> None:
        while not self.session.finished and (worker := self._agenda.take_replacement(self._now)) is not None:
            self._join(worker)

    def _check_that_somebody_is_left(self, reason: str) -> None:
        if not self._server.workers and not (self._agenda.to_replace or self._requests or self._vacant):
            raise WorkerFailedError(f"no worker is left: {reason}")

    def _on_error(self, desk: Desk, kind: str, text: str) -> None:
        """The problem raised. The gradient is lost; the worker goes on with another ticket."""
        any_gradient = self._server.counts.gradients > self._gradients_before
        if self._failures.raised(desk.worker, kind, any_gradient=any_gradient):
            raise WorkerFailedError(f"worker {desk.worker} raised, not for the first time:\n{text}")
        logger.warning("worker %d raised:\n%s", desk.worker, text)
        if desk.version is not None:
            self._server.release(desk.version)
        desk.running, desk.order = None, Order.FORGET
        desk.queue.clear()
        self._handle(WorkerLost(desk.worker, self._now))
        self._handle(WorkerJoined(desk.worker, self._now))

    # The clock

    def _look_around(self) -> None:
        """Now and then: workers that hang, and the view."""
        self._next_look = self._now + SECONDS_BETWEEN_LOOKS
        if not self.session.finished:
            for desk in self._desks.values():
                if desk.seems_to_hang(self._now):
                    self._on_hang(desk)
            for news in self._places.look(len(self._vacant), len(self._server.workers)):
                self._hear(news)
            if self._vacant:
                self._fill_vacancies()
        if self._view.shown:
            self._view.update(self._server, self.session.loss, self._views())

    def _on_hang(self, desk: Desk) -> None:
        usual = "" if desk.habits.mean < 0 else f"; its gradients take {desk.habits.mean:.3g} s on average"
        fate = ": it is replaced" if self._options.replace_hung else ""
        logger.warning("worker %d has computed for %.3g s%s%s", desk.worker, self._now - desk.sent, usual, fate)
        if self._options.replace_hung:
            desk.kill()

    def _views(self) -> list[WorkerView]:
        """What the view shows of each worker; ``gradients`` is what it was given before its present ticket."""
        states = {worker: (desk.habits.mean, desk.state(self._now)) for worker, desk in self._desks.items()}
        states |= dict.fromkeys(self._agenda.to_replace, (-1.0, "lost, to be replaced"))
        states |= dict.fromkeys(self._vacant, (-1.0, "waits for room"))
        states.pop(EVALUATOR, None)
        return [
            WorkerView(worker, max(0, self._server.jobs_of(worker) - 1), seconds, state)
            for worker, (seconds, state) in states.items()
        ]

    def _look_at_the_clock(self) -> None:
        """Timers, the end of the time, the home and workers to replace."""
        now = self._now = monotonic() - self._began
        while not self.session.finished and self._agenda.take_timer(now):
            self._handle(TimerFired(now))
        if self._agenda.take_reopening(now):
            self._places.reopen_home()
        self._replace_those_whose_time_has_come()
        if now >= self._agenda.end and not self.session.finished:
            self.session.stop()

    def _seconds_to_wait(self) -> float:
        return max(0.0, min(self._next_look, self._agenda.next(finished=self.session.finished)) - self._now)


def _cause(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _is_for(command: Command, workers: list[int]) -> bool:
    if isinstance(command, Assign):
        return command.ticket.worker in workers
    return isinstance(command, Cancel) and command.worker in workers
