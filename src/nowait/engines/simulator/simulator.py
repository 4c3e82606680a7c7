"""The reference simulation: drives the server in virtual time, for any problem, method and speeds."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, final

import numpy as np

from nowait.core import (
    Assign,
    Cancel,
    Command,
    GradientArrived,
    Ticket,
    TimerFired,
    Wake,
    WorkerJoined,
    WorkerLost,
    sampler,
)
from nowait.core.capabilities import Capabilities
from nowait.core.ledger import new
from nowait.core.memory import HostMemory, Memory, namespace_of, to_host
from nowait.core.standstill import Standstill
from nowait.core.types import Vector
from nowait.engines.progress import Progress, title_or
from nowait.engines.session import Parts, Session
from nowait.engines.signals import Interruption
from nowait.engines.simulator.alarms import Alarm, Alarms, why_nothing_happens
from nowait.engines.training_losses import TrainingLosses
from nowait.recording import Interrupted, Run
from nowait.speeds import Clock, Faults


def simulate(
    parts: Parts, clock: Clock, faults: Faults, seed: int, progress: bool | None, *, not_compiled: str = ""
) -> Run:
    """Drive the server to the end of the budget. A signal raises ``Interrupted``, which has the run so far.

    ``not_compiled`` is the reason for ``run.stats`` why compiled code was not used.
    """
    simulator = Simulator(parts, clock, faults, seed)
    quiet = np.errstate(over="ignore", invalid="ignore")
    session = simulator.session
    shown = Progress(title_or("simulating"), progress, lambda: parts.recorder.last_decision)
    with session.calling_on_end():
        with quiet, Interruption(session.interrupt), shown as bar:
            simulator.run(bar)
        seconds = session.server.now if simulator.seconds is None else simulator.seconds
        run = session.result(seconds, "reference")
    run = replace(run, stats=replace(run.stats, not_compiled=not_compiled))
    if session.interrupted:
        raise Interrupted.of(run)
    return run


@final
class Simulator:
    """Executes the commands of a server in virtual time. The clock has the running ticket of each worker."""

    def __init__(self, parts: Parts, clock: Clock, faults: Faults, seed: int) -> None:
        self.session = Session(parts, parts.server, parts.recorder, self, standstill=Standstill())
        self._server = parts.server
        self._budget = parts.budget
        self.seconds: float | None = None
        """The virtual seconds of the run, if the time budget ended it."""
        self._clock = clock
        self._worker = virtual_worker(parts, seed, self.session.training_losses)
        self._running: dict[int, Ticket] = {}
        """The tickets that are running on the clock, by worker."""
        self._alarms = Alarms(faults, parts.budget.seconds)
        self._requests: deque[WorkerJoined | WorkerLost] = deque()
        self._highest_worker = max([*parts.server.workers, *(worker for _, _, worker in faults.changes)])

    def run(self, bar: Progress) -> None:
        """Handle events until the run is finished."""
        session, server = self.session, self._server
        session.begin()
        commands, running, start = session.start(), self._running, self._clock.start
        while True:
            for command in commands:
                if type(command) is Assign:
                    ticket = command[0]
                    running[ticket[1]] = ticket
                    start(ticket, server.now)
                else:
                    self._execute(command)
            if session.finished:
                return
            event = self._next_event()
            if event is None:
                return
            commands = session.handle(event)
            if bar.shown:
                bar.tick(self._share_used)

    # Control

    def add_worker(self) -> None:
        """Let a worker with the next unused number join now."""
        self._highest_worker += 1
        self._requests.append(WorkerJoined(self._highest_worker, self._server.now))

    def remove_worker(self, worker: int) -> None:
        """Let a worker leave now."""
        self._requests.append(WorkerLost(worker, self._server.now))

    # Commands

    def _execute(self, command: Command) -> None:
        if isinstance(command, Cancel):
            self._stop(command.worker)
        elif isinstance(command, Wake):
            self._alarms.add(TimerFired(command.at))

    def _stop(self, worker: int) -> None:
        """Remove a worker's ticket from the clock, if it has one."""
        ticket = self._running.pop(worker, None)
        if ticket is not None:
            self._clock.cancel(ticket)

    # Events

    def _next_event(self) -> GradientArrived | Alarm | None:
        while True:
            finished = None if self._requests else self._clock.pop(self._alarms.limit)
            if finished is not None:
                time, _, ticket, started, compute_seconds = finished
                del self._running[ticket[1]]
                gradient = self._worker.gradient(ticket, self._server.point(ticket))
                return new(GradientArrived, (ticket, gradient, time, started, compute_seconds))
            alarm = self._requests.popleft() if self._requests else self._next_alarm()
            if alarm is None or isinstance(alarm, TimerFired) or self._change_workers(alarm):
                return alarm

    def _next_alarm(self) -> Alarm | None:
        nobody_left = not self._server.workers and not self._alarms.changes_to_come()
        alarm = None if nobody_left else self._alarms.pop()
        if alarm is None:
            self._end_of_events(nobody_left)
        return alarm

    def _change_workers(self, change: WorkerJoined | WorkerLost) -> bool:
        """Prepare a join or a loss. Returns False if it has happened already (callbacks and faults may both ask)."""
        leaves = isinstance(change, WorkerLost)
        if leaves != (change.worker in self._server.workers):
            return False
        if leaves:
            self._stop(change.worker)
            self._worker.forget(change.worker)
        return True

    def _end_of_events(self, nobody_left: bool) -> None:
        if self._budget.seconds is None or nobody_left or not (self._server.in_flight or self._alarms):
            self.session.stop(why_nothing_happens(self._server))
        else:
            self.seconds = self._budget.seconds
            self.session.stop()

    def _share_used(self) -> float | None:
        server = self._server
        return self._budget.share_used(server.steps, server.counts.gradients, server.now)


def virtual_worker(parts: Parts, seed: int, losses: TrainingLosses) -> VirtualWorker | CopyingWorker:
    """Return what computes the gradients of a run, as vectors of the server's memory, and counts their losses.

    A problem that has a memory of its own gets vectors of it, as in real workers: local steps, for instance, are
    rounded differently on a GPU.
    """
    server, capabilities = parts.server, parts.capabilities
    if isinstance(server.memory, HostMemory) or capabilities.device_memory() is not None:
        return VirtualWorker(capabilities, seed, like=server.params, losses=losses)
    worker = VirtualWorker(capabilities, seed, like=to_host(server.params), losses=losses)
    return CopyingWorker(worker, server.memory)


@final
class VirtualWorker:
    """Computes gradients at their arrival, so that cancelled tickets take no time."""

    def __init__(self, capabilities: Capabilities, seed: int, like: Vector, losses: TrainingLosses) -> None:
        self._gradient_into, self._in_place = capabilities.gradient_function()
        self._gradient_with_memory = capabilities.gradient_with_memory
        self._training_loss, self._losses = capabilities.training_loss, losses
        self._memories: dict[int, Vector] = {}
        self._samples = sampler(seed)
        self._out = namespace_of(like).empty_like(like)

    def gradient(self, ticket: Ticket, point: Vector) -> Any:
        """Return the gradient of a ticket, in an array that the next call overwrites."""
        out = self._out
        sample = self._samples.sample(ticket[1], ticket[3], ticket[0])
        try:
            gradient = None
            if self._gradient_with_memory is not None:
                self._gradient_with_memory(point, sample, self._memory_of(ticket[1]), out)
            else:
                gradient = self._gradient_into(point, sample, out)
            if self._training_loss is not None and (loss := self._training_loss()) is not None:
                self._losses.add(loss, ticket[1])
            return out if self._in_place or gradient is None else gradient
        except Exception as error:
            error.add_note(f"while worker {ticket.worker} computed its job {ticket.job} at version {ticket.version}")
            raise

    def forget(self, worker: int) -> None:
        """Discard the memory of a worker that left."""
        self._memories.pop(worker, None)

    def forget_all(self) -> None:
        """Discard the memory of all workers."""
        self._memories.clear()

    def _memory_of(self, worker: int) -> Vector:
        memory = self._memories.get(worker)
        if memory is None:
            memory = self._memories[worker] = np.zeros_like(self._out)
        return memory


@final
class CopyingWorker:
    """Computes gradients on the host for a server with another memory: points are copied there, and gradients back."""

    def __init__(self, worker: VirtualWorker, memory: Memory) -> None:
        self._worker, self._memory = worker, memory
        self.forget, self.forget_all = worker.forget, worker.forget_all

    def gradient(self, ticket: Ticket, point: Any) -> Any:
        """Return the gradient of a ticket in a new vector. An array of another kind is passed on, to be rejected."""
        values = to_host(point)
        gradient = self._worker.gradient(ticket, values)
        is_like_params = (gradient.dtype, gradient.shape) == (values.dtype, values.shape)
        return self._memory.from_host(gradient) if is_like_params else gradient
