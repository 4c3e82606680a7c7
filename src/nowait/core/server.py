"""The server: a state machine. An event in, commands out; no clock, no input or output, no global randomness.

The law of this file:

* Only the server changes params, and only by publishing a next version.
* A gradient is checked before the first verb of ``on_arrival`` takes effect. A bad one changes nothing but
  the counts; its ticket is issued again at its own point (after five tries, at the current params).
* An illegal event raises ``IllegalEvent`` and changes nothing.
* The same events in the same order give the same params, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import final

import numpy as np

from nowait.core.arrival import Arrival
from nowait.core.errors import IllegalEvent
from nowait.core.in_flight import InFlight
from nowait.core.log import APPLIED, DROPPED, HELD, Log, NoLog, Outcome
from nowait.core.membership import WorkerSet
from nowait.core.messages import (
    Assign,
    Cancel,
    Command,
    Event,
    GradientArrived,
    Resumed,
    Ticket,
    TimerFired,
    Wake,
    WorkerJoined,
    WorkerLost,
)
from nowait.core.method import Method
from nowait.core.outputs import LastIterate, Output
from nowait.core.randomness import CounterRandom
from nowait.core.rejections import Counts, Diverged, GradientRejected, Rejections
from nowait.core.state import ServerState, copies
from nowait.core.statistics import merging
from nowait.core.sums import GradientSum, Held
from nowait.core.types import Vector, checked_params
from nowait.core.updates import Sgd, Stepper, Update
from nowait.core.versions import Version, Versions
from nowait.numerics.compiled import kernels

__all__ = ["Arrival", "Server"]

Array = np.ndarray
INFINITY = math.inf
new = tuple.__new__
"""Makes a NamedTuple in half the time its own constructor takes; used where one is made per gradient."""


@final
class Server:
    """Holds params and the tickets in flight, and lets a method decide.

    Engines call ``start`` once, then ``handle`` with every event, and execute the commands returned.

    >>> import nowait as nw, numpy as np
    >>> server = Server(nw.AsynchronousSGD(nw.Constant(0.5)), np.zeros(2), workers=1)
    >>> [assign] = server.start()
    >>> server.handle(GradientArrived(assign.ticket, np.array([2.0, -4.0]), time=1.0))
    [Assign(ticket=Ticket(id=1, worker=0, version=1, job=1, time=1.0))]
    >>> server.params
    array([-1.,  2.])
    """

    def __init__(
        self,
        method: Method,
        initial: Vector,
        workers: int | Sequence[int],
        *,
        update: Update | None = None,
        output: Output | None = None,
        seed: int = 0,
        log: Log | None = None,
        allocate: Callable[[], Vector] | None = None,
        statistics: int = 0,
    ) -> None:
        initial = checked_params(initial, "initial")
        self._statistics = statistics
        self._gradients_in_step = 1
        self.method = method
        self.update = Sgd() if update is None else update
        self.output = LastIterate() if output is None else output
        self._make_step: Stepper = self.update.checked
        self._averaging = not isinstance(self.output, LastIterate)
        self._log = NoLog() if log is None else log
        self._seed = seed
        self._shape, self._dtype = initial.shape, initial.dtype
        self._versions = Versions(initial, allocate or (lambda: np.empty_like(initial)))
        self._scratch: Vector | None = None
        self._jobs: dict[int, int] = {}
        self._next_ticket = 0
        self._rows = 0
        self._commands: list[Command] = []
        self._arrival: Arrival | None = None
        self._unchecked: Arrival | None = None
        self._stepped_along_sum = False
        self._rejections = Rejections()
        self.workers = WorkerSet(range(workers) if isinstance(workers, int) else workers)
        """The live workers."""
        self.num_workers = len(self.workers)
        """The live number of workers, M."""
        self.in_flight = InFlight()
        """The tickets workers have, by id."""
        self.steps = 0
        """How many steps were made."""
        self.now = 0.0
        """The time of the event being handled."""
        self.stepped_at = 0.0
        """The time of the latest step."""
        self.random = CounterRandom(seed, "server")
        """Randomness for the method; counter-based, so that a replay draws the same."""
        self.counts = Counts()
        self.diverged: str | None = None
        """Why the run cannot go on, once params or gradients stopped being finite."""

    @property
    def params(self) -> Vector:
        """The current params: a read-only view, overwritten some steps later."""
        return self._versions.current.point

    @property
    def num_tickets(self) -> int:
        """How many tickets were issued."""
        return self._next_ticket

    def jobs_of(self, worker: int) -> int:
        """How many tickets a worker number has had."""
        return self._jobs.get(worker, 0)

    def trained(self, vector: Vector) -> Vector:
        """What of a vector like params are parameters: all but the statistics at its end."""
        return vector[: len(vector) - self._statistics] if self._statistics else vector

    # What engines call

    def start(self) -> list[Command]:
        """Begin the run at time 0."""
        self._begin()
        commands = self._decide(self.method.start)
        if self._averaging:
            self.method.pending_stepsize(self, 1)  # a method that cannot tell is told so now, not at the end
        return commands

    def handle(self, event: Event) -> list[Command]:
        """Deal with one event; the commands that follow, in order."""
        if not event.time >= self.now:
            raise IllegalEvent(f"{_brief(event)} was handled at time {self.now}: time must not run backwards")
        if self.diverged is not None:
            raise IllegalEvent(f"{_brief(event)} comes after the run diverged")
        if type(event) is GradientArrived:
            return self._on_gradient(event)
        if type(event) is WorkerJoined:
            return self._on_join(event)
        if type(event) is WorkerLost:
            return self._on_loss(event)
        if type(event) is TimerFired:
            self._accept(event)
            return self._decide(self.method.on_timer)
        if type(event) is Resumed:
            return self._on_resume(event)
        raise TypeError(f"not an event: {event!r}")

    def initial_state(self) -> ServerState:
        """What a checkpoint keeps of a run that is about to start."""
        self._begin()
        return self.state()

    def state(self, *, copy_params: bool = True) -> ServerState:
        """What a checkpoint keeps, with copies of all vectors. Between events only.

        Without ``copy_params`` the params are those of the current version: ``retain`` it for as long as they are used.
        """
        counts = asdict(self.counts)
        counts["lost"] += len(self.in_flight)
        return ServerState(
            params=self.params.copy() if copy_params else self.params,
            steps=self.steps,
            time=self.now,
            stepped_at=self.stepped_at,
            stepsize_sum=self._versions.current.stepsize_sum,
            next_ticket=self._next_ticket,
            rows=self._rows,
            jobs=dict(self._jobs),
            workers=list(self.workers),
            draws=self.random.draws,
            counts=counts,
            update=copies(self.update.state()),
            output=copies(self.output.state()),
        )

    def resume(self, state: ServerState) -> list[Command]:
        """Begin where a checkpoint was made, instead of ``start``. The server was made with its params and workers."""
        self._begin()
        current = self._versions.current
        current.number, current.stepsize_sum = state.steps, state.stepsize_sum
        self.steps, self.now, self.stepped_at = state.steps, state.time, state.stepped_at
        self._next_ticket, self._rows, self._jobs = state.next_ticket, state.rows, dict(state.jobs)
        self.random.draws = state.draws
        self.counts = Counts(**state.counts)
        self.update.restore(state.update)
        self.output.restore(state.output)
        return self.handle(Resumed(state.time))

    def finish(self) -> Vector:
        """The answer of the output rule, gradients in flight weighed as the paper's appendix does. Once only.

        A method that steps along sums has no stepsize of its own for each gradient in flight: the last params
        count once, as the point its next step would start from.
        """
        if self._averaging and self.diverged is None and self.steps > 0:
            if self._stepped_along_sum:
                self._weigh(self._versions.current, self.method.pending_stepsize(self, 1))
            else:
                for ticket in self.in_flight.values():
                    delay = max(1, self.steps - ticket.version)
                    version = self.in_flight.versions[ticket.id]
                    self._weigh(version, self.method.pending_stepsize(self, delay))
        return self.output.result(self.params).astype(self._dtype)

    def close(self, last: Vector | None = None) -> None:
        """Release the memory of params, and let go of method and log. No event can be handled afterwards.

        Sums of the method, and callbacks that kept their control, may hold the server for longer than the run.
        They find ``last`` as its params, or else a copy of the current ones.
        """
        self._versions.close(self.params.copy() if last is None else last)
        self.in_flight = InFlight()
        self._make_step = self.update.checked
        self._commands = []
        self._log = NoLog()
        del self.method

    def declare_diverged(self, reason: str) -> None:
        """An engine found that the run cannot go on: the loss is not finite."""
        self.diverged = reason

    def point(self, ticket: Ticket) -> Vector:
        """The read-only params a ticket in flight is computed at."""
        return self.in_flight.versions[ticket.id].point

    def retain(self, ticket: Ticket | None = None) -> Version:
        """Keep the version of a ticket in flight (without one, the current version) until ``release``.

        For engines whose workers read the point while the ticket may be cancelled, and for snapshots.
        """
        version = self._versions.current if ticket is None else self.in_flight.versions[ticket.id]
        version.references += 1
        return version

    def release(self, version: Version) -> None:
        """Give up what ``retain`` returned."""
        self._versions.release(version)

    @property
    def free_versions(self) -> list[Version]:
        """Where a version goes whose last reference was given up: for engines that count without a call."""
        return self._versions.free

    # The verbs of a method

    def apply(self, arrival: Arrival, stepsize: float, direction: Vector | None = None) -> None:
        """One step along the gradient of this arrival, or along a direction made from it."""
        if arrival is not self._arrival:
            raise _not_open(arrival)
        if direction is None:
            arrival.norm = self._step(arrival.raw_gradient, stepsize, GradientRejected)
            self._unchecked = None
        else:
            self._check_gradient()
            direction = self._fitting(direction)
            if self._statistics:
                direction = np.concatenate([self.trained(direction), arrival.raw_gradient[-self._statistics :]])
            self._step(direction, stepsize, Diverged)
        arrival.outcome = APPLIED
        if arrival.step == 0:
            arrival.step, arrival.weight, arrival.stepsize = self.steps, 1.0, stepsize
        if arrival.held is not None:
            arrival.held.stepped = True
        self._stepped_along_sum = False
        if self._averaging:
            self._weigh(arrival.version_held, stepsize)

    def sum(self) -> GradientSum:
        """A zero vector owned by the server, to add gradients to."""
        return GradientSum(self, self.params)

    def step(self, total: GradientSum, stepsize: float, scale: float = 1.0) -> None:
        """One step along ``scale * total``."""
        self._check_gradient()
        if total._server is not self:
            raise ValueError("a sum of another server cannot make a step of this one")
        direction = total.vector
        if scale != 1.0:
            direction = self._scratch = np.multiply(direction, self._dtype.type(scale), out=self._scratch)
        before = self._versions.current
        before.references += 1
        self._gradients_in_step = max(1, total.count)
        try:
            self._step(direction, stepsize, Diverged)
            self._weigh(before, stepsize)
        finally:
            self._gradients_in_step = 1
            self._versions.release(before)
        self._stepped_along_sum = True
        self._log_first_steps(total, stepsize, scale)

    def assign(self, worker: int, at: Arrival | None = None) -> Ticket:
        """Give a worker a ticket at the current params, or at the point of the arrival being handled.

        A busy worker computes it after those it has.
        """
        if self._unchecked is not None:
            self._check_gradient()
        if worker not in self.workers.places:
            raise ValueError(f"cannot assign to worker {worker}: it is not among the live workers")
        if at is None:
            return self._issue(worker, self._versions.current)
        if at is not self._arrival or at.version_held is None:
            raise _not_open(at)
        return self._issue(worker, at.version_held)

    def cancel(self, worker: int) -> None:
        """Take back all tickets of a worker, running and queued; late results will be ignored."""
        self._check_gradient()
        tickets = self._forget_tickets(worker)
        if tickets:
            self.counts.cancelled += len(tickets)
            self._commands.append(Cancel(worker, tickets))

    def wake(self, at: float) -> None:
        """Have ``on_timer`` called at this time."""
        self._check_gradient()
        if math.isnan(at):
            raise ValueError("cannot wake at time nan")
        self._commands.append(Wake(max(at, self.now)))

    # For GradientSum

    def hold(self, arrival: Arrival) -> Held:
        """The arrival's gradient, checked, is about to enter a sum."""
        if arrival is not self._arrival:
            raise _not_open(arrival)
        self._check_gradient()
        if arrival.held is None:
            arrival.held = Held(arrival.row, stepped=arrival.step > 0)
        if arrival.outcome is DROPPED:
            arrival.outcome = HELD
        return arrival.held

    # Events

    def _begin(self) -> None:
        trained = self.trained(self.params)
        self.update.start(trained)
        self._make_step = self.update.stepper(trained)
        if self._statistics:
            self._make_step = merging(self._make_step, self._statistics, self._weight_of_statistics)
        self.output.start(self.params, CounterRandom(self._seed, "output"))

    def _on_resume(self, event: Resumed) -> list[Command]:
        self._accept(event)
        self._rejections = Rejections()
        for worker in self.workers:
            self.counts.lost += len(self._forget_tickets(worker))
        return self._decide(self.method.start)

    def _on_gradient(self, event: GradientArrived) -> list[Command]:
        ticket, gradient, self.now, _, _ = event
        version = self.in_flight.take(ticket)
        arrival = Arrival(event, self.steps + 1 - ticket[2], self._rows, version, self._check_gradient)
        if version is None:
            self.counts.late += 1
            return self._record(arrival, Outcome.LATE, [])
        commands = self._commands = []
        try:
            if not isinstance(gradient, Array) or gradient.shape != self._shape or gradient.dtype != self._dtype:
                raise GradientRejected
            self._arrival = self._unchecked = arrival
            self.method.on_arrival(self, arrival)
            if self._unchecked is not None:
                self._check_gradient()
            self.counts.gradients += 1
            if arrival.outcome is DROPPED:
                self.counts.dropped += 1
            if self._rejections.in_a_row:
                self._rejections.good(arrival.worker, ticket[2])
            self._rows += 1
            self._log.arrived(arrival, self.num_workers)
            return commands
        except GradientRejected:
            return self._reject(arrival, version)
        except Diverged as reason:
            arrival.norm = math.sqrt(kernels().squared_norm(self.trained(gradient)))
            self.counts.rejected += 1
            return self._stop(arrival, str(reason))
        finally:
            self._arrival = self._unchecked = arrival.version_held = arrival.raw_gradient = None
            version.references -= 1
            if version.references == 0:
                self._versions.free.append(version)

    def _on_join(self, event: WorkerJoined) -> list[Command]:
        if not isinstance(event.worker, int) or event.worker < 0:
            raise IllegalEvent(f"{_brief(event)}: workers are numbered from 0")
        if event.worker in self.workers:
            raise IllegalEvent(f"{_brief(event)}: the worker is already there")
        self._accept(event)
        self.workers.add(event.worker)
        self.num_workers += 1
        return self._decide(lambda server: self.method.on_join(server, event.worker))

    def _on_loss(self, event: WorkerLost) -> list[Command]:
        if event.worker not in self.workers:
            raise IllegalEvent(f"{_brief(event)}: there is no such worker")
        self._accept(event)
        self.workers.remove(event.worker)
        self.num_workers -= 1
        self.counts.lost += len(self._forget_tickets(event.worker))
        self._rejections.forget(event.worker)
        return self._decide(lambda server: self.method.on_leave(server, event.worker))

    def _accept(self, event: WorkerJoined | WorkerLost | TimerFired | Resumed) -> None:
        self.now = event.time
        self._log.happened(event)

    def _decide(self, handler: Callable[[Server], None]) -> list[Command]:
        commands = self._commands = []
        try:
            handler(self)
        except Diverged as reason:
            self.diverged = str(reason)
            return []
        return commands

    # Bad gradients

    def _check_gradient(self) -> None:
        """Before any verb takes effect: is the gradient of the arrival being handled finite?"""
        arrival = self._unchecked
        if arrival is None:
            return
        squared_norm = kernels().squared_norm(self.trained(arrival.raw_gradient))
        if not squared_norm < INFINITY and not np.isfinite(arrival.raw_gradient).all():
            raise GradientRejected
        arrival.norm = math.sqrt(squared_norm)
        self._unchecked = None

    def _reject(self, arrival: Arrival, version: Version) -> list[Command]:
        self.counts.rejected += 1
        self._arrival = self._unchecked = None
        arrival.norm = math.nan
        reason = self._rejections.bad(arrival.ticket, arrival.raw_gradient, self.params, self.num_workers)
        if reason is not None:
            return self._stop(arrival, reason)
        commands = self._commands = []
        if self._rejections.tried_enough(arrival.worker):
            version = self._versions.current
        ticket = self._issue(arrival.worker, version)
        self.method.on_reissue(self, arrival.ticket, ticket)
        return self._record(arrival, Outcome.REJECTED, commands)

    def _stop(self, arrival: Arrival, reason: str) -> list[Command]:
        self.diverged = reason
        arrival.step, arrival.weight, arrival.stepsize = 0, 0.0, 0.0
        return self._record(arrival, Outcome.REJECTED, [])

    # Steps and tickets

    def _step(self, direction: Vector, stepsize: float, bad: type[Exception]) -> float:
        """Publish the next version; the norm of the direction. ``bad`` is raised if that is not finite."""
        if not 0.0 <= stepsize < INFINITY:
            raise ValueError(f"a step needs a finite stepsize of at least 0, got {stepsize!r}")
        versions = self._versions
        squared_norm, zero = self._make_step(versions.current.point, direction, stepsize, versions.spare.array)
        if not squared_norm < INFINITY and not np.isfinite(direction).all():
            raise bad(f"the direction of step {self.steps + 1} is not finite")
        if zero != 0.0:
            raise Diverged(f"params after step {self.steps + 1} would not be finite")
        version = versions.publish(stepsize)
        self.steps += 1
        self.stepped_at = self.now
        if self._averaging:
            self.output.on_iterate(version.point)
        return math.sqrt(squared_norm)

    def _weight_of_statistics(self) -> float:
        """1/M for each gradient in the step."""
        return min(1.0, self._gradients_in_step / max(1, self.num_workers))

    def _weigh(self, version: Version | None, stepsize: float) -> None:
        if version is not None and version.number > 0:
            self.output.on_gradient(version.point, stepsize, version.stepsize_sum)

    def _log_first_steps(self, total: GradientSum, stepsize: float, scale: float) -> None:
        arrival = self._arrival
        for held, weight in total.take_first_steps(scale):
            if arrival is not None and held is arrival.held:
                arrival.step, arrival.weight, arrival.stepsize = self.steps, weight, stepsize
            else:
                self._log.stepped(held.row, self.steps, weight, stepsize)

    def _issue(self, worker: int, version: Version) -> Ticket:
        job = self._jobs.get(worker, 0)
        self._jobs[worker] = job + 1
        ticket = new(Ticket, (self._next_ticket, worker, version.number, job, self.now))
        self._next_ticket += 1
        self.in_flight.add(ticket, version)
        self._commands.append(new(Assign, (ticket,)))
        return ticket

    def _forget_tickets(self, worker: int) -> tuple[int, ...]:
        tickets = self.in_flight.take_all_of(worker)
        for _, version in tickets:
            self._versions.release(version)
        return tuple(ticket.id for ticket, _ in tickets)

    def _record(self, arrival: Arrival, outcome: Outcome, commands: list[Command]) -> list[Command]:
        arrival.outcome = outcome
        self._rows += 1
        self._log.arrived(arrival, self.num_workers)
        return commands

    def _fitting(self, direction: Vector) -> Vector:
        if direction.shape != self._shape:
            raise ValueError(f"a direction must have the shape of params {self._shape}, got {direction.shape}")
        if direction.dtype.kind == "c":
            raise TypeError(f"a direction must have real entries, got {direction.dtype}: params are {self._dtype}")
        return np.ascontiguousarray(direction, dtype=self._dtype)


def _not_open(arrival: Arrival) -> ValueError:
    return ValueError(f"{arrival} is not being handled now: use an arrival inside its on_arrival only")


def _brief(event: Event) -> str:
    if isinstance(event, GradientArrived):
        return f"the gradient of {event.ticket} at time {event.time}"
    return str(event)
