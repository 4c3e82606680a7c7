"""The server: a state machine. Events in, commands out; no clock, no input or output, no global randomness.

Invariants:

* Only the server changes params, and only by publishing a next version.
* A gradient is checked before the first verb of ``on_arrival`` takes effect. A bad one changes nothing but
  the counts; its ticket is issued again at its own point (after five tries, at the current params).
* An illegal event raises ``IllegalEvent`` and changes nothing.
* The same events in the same order give the same params, bit for bit.

The verbs of a method and the bookkeeping are in ``ledger.py``; this file adds the arithmetic and the checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import final

from nowait.core import checks
from nowait.core.errors import BadWorkerError, IllegalEvent
from nowait.core.layout import Layout, Sections, checked_layout
from nowait.core.ledger import INFINITY, Arrival, Counts, InFlight, Ledger, new
from nowait.core.log import Log, NoLog, Outcome
from nowait.core.memory import HOST, Memory, Stepper
from nowait.core.messages import (
    EVENTS,
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
from nowait.core.rejections import Diverged, GradientRejected, Rejections
from nowait.core.scaled_gradients import scaling
from nowait.core.state import ServerState, State, copies, flat_state, snapshots, state_for
from nowait.core.statistics import lengthened, lengthening, merging
from nowait.core.stepsizes import Stepsize
from nowait.core.sums import GradientSum
from nowait.core.types import Vector, checked_params
from nowait.core.updates import Sgd, Update
from nowait.core.versions import Version, Versions

__all__ = ["Arrival", "Server"]


@final
class Server(Ledger):
    """Holds params and the tickets in flight, and lets a method decide.

    Engines call ``start`` once, then ``handle`` with every event, and execute the commands returned. ``initial`` is a
    NumPy array. ``memory`` says where params and all other vectors are, and gradients must be vectors of it; the
    default is the host. ``allocate`` returns memory for one more version of params, if it must be special. The last
    ``statistics`` entries of params are statistics, which a worker moves by ``statistics_momentum`` towards those of
    its batch; ``layout`` says where the tensors of a model are in the other entries. ``keep_cancelled`` is for workers
    that finish cancelled tickets, see ``forget``.

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
        memory: Memory | None = None,
        allocate: Callable[[], Vector] | None = None,
        statistics: int = 0,
        statistics_momentum: float = 1.0,
        layout: Layout | None = None,
        keep_cancelled: bool = False,
    ) -> None:
        initial = checked_params(initial, "initial")
        numbers = range(workers) if isinstance(workers, int) else workers
        super().__init__(method, numbers, seed=seed, log=NoLog() if log is None else log)
        self._sections = Sections(checked_layout(layout, len(initial) - statistics), statistics, statistics_momentum)
        self._gradients_in_step = 1
        self.update = Sgd() if update is None else update
        self.output = LastIterate() if output is None else output
        self._make_step: Stepper = self.update.checked
        self._averaging = not isinstance(self.output, LastIterate)
        self._seed = seed
        self.memory = memory = HOST if memory is None else memory
        allocate = allocate or (lambda: memory.empty(initial))
        self._versions = Versions(initial, memory, allocate, keep_cancelled=keep_cancelled)
        self._gradient_kind = memory.kind, initial.shape, self.params.dtype
        self._scratch: Vector | None = None
        self._commands: list[Command] = []
        self.rejections = Rejections()

    @property
    def params(self) -> Vector:
        """The current params, for reading: a vector of the server's memory, which later steps overwrite.

        After ``close`` it is a NumPy array. ``nowait.core.memory.to_host`` makes one of any vector.
        """
        return self._versions.current.point

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self._seed

    def trained(self, vector: Vector) -> Vector:
        """The parameters in a vector like params: all entries but the statistics at its end."""
        count = self._sections.num_statistics
        return vector[: len(vector) - count] if count else vector

    # What engines call

    def start(self) -> list[Command]:
        """Start the run at time 0. Returns the first commands."""
        self._begin()
        commands = self._decide(self.method.start)
        if self._averaging:
            self.method.pending_stepsize(self, 1)  # raises now, not at the end, if the method has no stepsize
        return commands

    def handle(self, event: Event) -> list[Command]:
        """Handle one event. Returns the commands for the engine, in order."""
        if type(event) is GradientArrived:
            return self._on_gradient(event)
        if type(event) not in EVENTS:
            raise _no_event(event)
        if not event.time >= self.now or self.diverged is not None:
            raise self._illegal(event)
        if type(event) is WorkerJoined:
            return self._on_join(event)
        if type(event) is WorkerLost:
            return self._on_loss(event)
        if type(event) is TimerFired:
            self._accept(event)
            return self._decide(self.method.on_timer)
        if type(event) is Resumed:
            return self._on_resume(event, copies(self._state_of_method()))
        raise _no_event(event)

    def initial_state(self) -> ServerState:
        """Return the state for a checkpoint of a run that is about to start, to be written before it does."""
        self._begin()
        return self.live_state()

    def state(self) -> ServerState:
        """Return the state for a checkpoint, with all vectors as new NumPy arrays. Call it between events only."""
        return self._state(self.memory.copy_to_host(self.params), copies)

    def live_state(self) -> ServerState:
        """Return the state without copies: the vectors are the server's own, which the next event may change."""
        return self._state(self.params, lambda state: state)

    def snapshot(self) -> ServerState:
        """Return the state in less time: params are those of the current version, and vectors may be on a device.

        Use it as ``snapshot().on_host()``, and ``retain`` the version until then.
        """
        return self._state(self.params, snapshots)

    def _state(self, params: Vector, taken: Callable[[State], State]) -> ServerState:
        counts = asdict(self.counts)
        counts["lost"] += len(self.in_flight)
        return ServerState(
            params=params,
            steps=self.steps,
            time=self.now,
            stepped_at=self.stepped_at,
            stepsize_sum=self._versions.current.stepsize_sum,
            next_ticket=self.num_tickets,
            rows=self._rows,
            jobs=dict(self._jobs),
            workers=list(self.workers),
            draws=self.random.draws,
            counts=counts,
            weight_of_last=self._weight_of_last() if self._averaging else None,
            update=taken(self.update.state()),
            output=taken(self.output.state()),
            method=taken(self._state_of_method()),
        )

    def _state_of_method(self) -> State:
        """Return what the method keeps if the run is resumed; nothing before the start, when it has no state."""
        return flat_state(self.method, self.method.state()) if self.num_tickets else {}

    def resume(self, state: ServerState) -> list[Command]:
        """Continue from a checkpoint, instead of ``start``. The server must have its params and workers."""
        self._begin()
        current = self._versions.current
        current.number, current.stepsize_sum = state.steps, state.stepsize_sum
        self.steps, self.now, self.stepped_at = state.steps, state.time, state.stepped_at
        self.num_tickets, self._rows, self._jobs = state.next_ticket, state.rows, dict(state.jobs)
        self.random.draws = state.draws
        self.counts = Counts(**state.counts)
        if state.weight_of_last is not None:
            self._weighs_last = state.weight_of_last
        self.update.restore(state.update)
        self.output.restore(state.output)
        return self._on_resume(Resumed(state.time), state.method)

    def finish(self, last: Vector | None = None) -> Vector:
        """Return the answer of the output rule as a NumPy array, with the gradients in flight weighed in.

        Call it once only. ``last`` is a copy of params on the host; it is returned itself if it is the answer.
        """
        if last is not None and not self._averaging:
            return last
        if self._averaging and self.diverged is None:
            self._weigh_in_flight()
        answer = self.memory.copy_to_host(self.output.result(self.params))
        return answer.astype(self.memory.to_host(self.params[:1]).dtype, copy=False)

    def close(self, last: Vector | None = None) -> None:
        """Release the memory of params and the references to method and log. No event can be handled afterwards.

        Sums of the method, and callbacks that kept their ``control``, may refer to the server after the run. Its
        ``params`` are ``last`` then, a NumPy array, or else a copy of the current ones.
        """
        self._versions.close(self.memory.copy_to_host(self.params) if last is None else last)
        self.in_flight = InFlight()
        self._make_step = self.update.checked
        self._commands = []
        self._log = NoLog()
        del self.method

    def declare_diverged(self, reason: str) -> None:
        """Record that the run cannot continue, because an engine found that the loss is not finite."""
        self.diverged = reason

    def point(self, ticket: Ticket) -> Vector:
        """The read-only params a ticket in flight is computed at."""
        return self._versions.by_ticket[ticket[0]].point

    def slot(self, ticket: Ticket) -> int:
        """Return the number of the vector with the point of a ticket in flight, or of a cancelled one that is kept.

        Vectors are numbered from 0, in the order in which ``allocate`` returned them.
        """
        return self._versions.by_ticket[ticket[0]].slot

    def forget(self, ticket: Ticket) -> None:
        """Release the point of a cancelled ticket, because its worker will not report on it.

        With ``keep_cancelled`` the point of a ticket that was assigned before it was cancelled stays as it is until its
        gradient arrives late, its worker is lost, or this is called. Of other tickets there is nothing to forget.
        """
        self._versions.forget(ticket[0])

    def retain(self) -> Version:
        """Keep the current version until ``release``, for evaluations and snapshots."""
        return self._versions.retain(self._versions.current)

    def release(self, version: Version) -> None:
        """Release a version that ``retain`` returned."""
        self._versions.release(version)

    def lend(self, number: int, ticket: Ticket) -> None:
        """Keep the point of a ticket under a number below 0 until ``take_back``: its gradient is computed once more."""
        self._versions.lent[number] = self._versions.retain(self._versions.by_ticket[ticket[0]])

    def take_back(self, number: int) -> None:
        """Release a version that was lent."""
        self._versions.release(self._versions.lent.pop(number))

    def lent(self, number: int) -> Version:
        """Return a version that was lent."""
        return self._versions.lent[number]

    # What the verbs of a method do

    def sum(self) -> GradientSum:
        """Return a zero vector owned by the server, to add gradients to."""
        return GradientSum(self, self.memory, self.params)

    def _step_along_gradient(self, arrival: Arrival, stepsize: float, direction: Vector | None) -> None:
        vector = arrival.raw_gradient if direction is None else self._fitting(direction, arrival)
        versions = self._versions
        spare = versions.spare or versions.choose_spare()
        squared_norm, zero = self._make_step(versions.current.point, vector, stepsize, spare.array)
        if not squared_norm < INFINITY or zero != 0.0:
            self._check_step(vector, zero, GradientRejected if direction is None else Diverged)
        versions.publish(spare, stepsize)
        if direction is None:
            arrival.logged_norm = math.sqrt(squared_norm)
            self._unchecked = None
        if self._averaging:
            self.output.on_iterate(versions.current.point)
            self._weigh(arrival.version_held, stepsize)

    def _step_along_sum(self, total: GradientSum, stepsize: float, scale: float) -> None:
        direction = total.vector
        if scale != 1.0:
            direction = self._scratch = self.memory.scaled(direction, scale, self._scratch)
        versions = self._versions
        self._gradients_in_step = max(1, total.count)
        spare = versions.spare or versions.choose_spare()
        squared_norm, zero = self._make_step(versions.current.point, direction, stepsize, spare.array)
        self._gradients_in_step = 1
        if not squared_norm < INFINITY or zero != 0.0:
            self._check_step(direction, zero, Diverged)
        before = versions.retain(versions.current)
        versions.publish(spare, stepsize)
        if self._averaging:
            self.output.on_iterate(versions.current.point)
            self._weigh(before, stepsize)
        versions.release(before)

    def _assigned(self, ticket: Ticket, at: Arrival | None) -> None:
        versions = self._versions
        versions.hold(ticket[0], versions.current if at is None else at.version_held)
        self._commands.append(new(Assign, (ticket,)))

    def _queued(self, ticket: Ticket, at: Arrival | None) -> None:
        versions = self._versions
        versions.hold(ticket[0], versions.current if at is None else at.version_held)

    def _removed(self, tickets: tuple[Ticket, ...], *, cancelled: bool) -> None:
        versions, (ticket_id, worker, *_) = self._versions, tickets[0]
        if cancelled and not self._is_assigned_now(tickets[0]):
            self._commands.append(new(Cancel, (worker, (ticket_id,))))
            versions.cancel(ticket_id, worker)
        else:
            if cancelled:
                self._commands.remove(Assign(tickets[0]))
            versions.drop(ticket_id)
        for queued in tickets[1:]:
            versions.drop(queued.id)

    def _is_assigned_now(self, ticket: Ticket) -> bool:
        """Whether the event being handled has assigned this ticket: it issued it, or the ticket before has arrived."""
        commands = self._commands
        return ticket[0] >= self.in_flight.first_new or (bool(commands) and commands[0] == (ticket,))

    def _set_timer(self, at: float) -> None:
        self._commands.append(Wake(at))

    # Events

    def _begin(self) -> None:
        trained = self.trained(self.params)
        self.update.start_with_layout(trained, self._sections.trained)
        self._make_step = self.update.stepper(trained)
        if self.update.scales_gradient:
            self._make_step = scaling(self._make_step, self._fresh_stepsize)
        if count := self._sections.num_statistics:
            self._make_step = merging(self._make_step, count, self._weight_of_statistics)
        self.output.start(self.params, CounterRandom(self._seed, "output"))

    def _on_resume(self, event: Resumed, kept: State) -> list[Command]:
        """Let the method continue with what it keeps, or start again if that was another kind of method."""
        if self._averaging and (weight := self._weight_of_last()) is not None:
            self._weighs_last = weight
        self._accept(event)
        self._versions.forget_all()
        self.rejections.forget_all()
        state = state_for(self.method, kept)
        return self._decide(self.method.start if state is None else lambda server: self.method.resume(server, state))

    def _on_gradient(self, event: GradientArrived) -> list[Command]:  # noqa: C901 (a call more would cost time)
        ticket, gradient, time, _, _ = event
        if not time >= self.now or self.diverged is not None:
            raise self._illegal(event)
        self.now = time
        in_flight = self.in_flight
        if not in_flight.take(ticket):
            return self._late(event)
        in_flight.first_new = self.num_tickets
        versions = self._versions
        version = versions.by_ticket.pop(ticket[0])
        arrival = Arrival(event, self.delay_of(ticket), self._rows, version, self)
        commands = self._commands = []
        if in_flight.queued and (successor := in_flight.successor(ticket)) is not None:
            commands.append(new(Assign, (successor,)))
        self._arrival = arrival
        try:
            kind, shape, dtype = self._gradient_kind
            if (
                not isinstance(gradient, kind)
                or gradient.shape != shape
                or (gradient.dtype is not dtype and gradient.dtype != dtype)  # most often the same object
            ):
                raise GradientRejected
            if self._sections.num_statistics:
                self._lengthen_statistics(arrival, version)
            self._unchecked = arrival
            self.method.on_arrival(self, arrival)
            if self._unchecked is not None:
                self._check_gradient()
            if self.rejections.in_a_row:
                self.rejections.good(arrival.worker, ticket[2])
            self._record_valid(arrival)
            return commands
        except GradientRejected:
            return self._reject(arrival)
        except Diverged as reason:
            arrival.logged_norm = math.sqrt(self.memory.squared_norm(self.trained(gradient)))
            self.counts.rejected += 1
            return self._stop(arrival, str(reason))
        finally:
            self._arrival = self._unchecked = arrival.version_held = arrival.raw_gradient = None
            versions.release(version)

    def _late(self, event: GradientArrived) -> list[Command]:
        """Count and log a gradient whose ticket is not in flight."""
        if self._versions.cancelled.get(event.ticket.id) == event.ticket.worker:
            self._versions.forget(event.ticket.id)
        arrival = Arrival(event, self.delay_of(event.ticket), self._rows, None, self)
        arrival.outcome = Outcome.LATE
        self.counts.late += 1
        self._record(arrival)
        return []

    def _illegal(self, event: Event) -> IllegalEvent:
        """Return the error for an event in the past, or after the run diverged."""
        if not event.time >= self.now:
            return IllegalEvent(f"{_brief(event)} was handled at time {self.now}: time must not run backwards")
        return IllegalEvent(f"{_brief(event)} comes after the run diverged")

    def _on_join(self, event: WorkerJoined) -> list[Command]:
        if not isinstance(event.worker, int) or event.worker < 0:
            raise IllegalEvent(f"{_brief(event)}: workers are numbered from 0")
        if event.worker in self.workers:
            raise IllegalEvent(f"{_brief(event)}: the worker has joined already")
        self._accept(event)
        return self._decide(lambda server: self.method.on_join(server, event.worker))

    def _on_loss(self, event: WorkerLost) -> list[Command]:
        if event.worker not in self.workers:
            raise IllegalEvent(f"{_brief(event)}: there is no such worker")
        self._accept(event)
        self._versions.forget_all(event.worker)
        self.rejections.forget(event.worker)
        return self._decide(lambda server: self.method.on_leave(server, event.worker))

    def _decide(self, handler: Callable[[Server], None]) -> list[Command]:
        commands = self._commands = []
        self.in_flight.first_new = self.num_tickets
        try:
            handler(self)
        except Diverged as reason:
            self.diverged = str(reason)
            return []
        return commands

    # Bad gradients

    def _check_gradient(self) -> None:
        """Reject the gradient of the arrival being handled if it is not finite."""
        arrival = self._unchecked
        if arrival is None:
            return
        squared_norm = self.memory.squared_norm(self.trained(arrival.raw_gradient))
        if not squared_norm < INFINITY and not self.memory.is_finite(arrival.raw_gradient):
            raise GradientRejected
        arrival.logged_norm = math.sqrt(squared_norm)
        self._unchecked = None

    def _reject(self, arrival: Arrival) -> list[Command]:
        """Issue the ticket of a bad gradient again, or stop the run; ``BadWorkerError`` leaves the ticket in flight."""
        self._unchecked = None
        arrival.logged_norm = math.nan
        reason = self._verdict(arrival)
        self.counts.rejected += 1
        if reason is not None:
            return self._stop(arrival, reason)
        ticket = self.assign(arrival.worker, at=None if self.rejections.tried_enough(arrival.worker) else arrival)
        self._arrival = None
        self.method.on_reissue(self, arrival.ticket, ticket)
        arrival.outcome = Outcome.REJECTED
        self._record(arrival)
        return self._commands

    def _verdict(self, arrival: Arrival) -> str | None:
        """Return the reason if the run diverged, else None. Raises ``BadWorkerError`` if the worker is broken."""
        ticket = arrival.ticket
        try:
            return self.rejections.bad(ticket, arrival.raw_gradient, self.params, self.workers)
        except BadWorkerError:
            self.in_flight.put_back(ticket)
            self._versions.hold(ticket[0], arrival.version_held)
            raise

    def _stop(self, arrival: Arrival, reason: str) -> list[Command]:
        """Declare the run diverged at an arrival whose gradient was not used."""
        self.diverged = reason
        arrival.outcome = Outcome.REJECTED
        arrival.step, arrival.weight, arrival.stepsize = 0, 0.0, 0.0
        self._record(arrival)
        return []

    # Steps

    def _check_step(self, direction: Vector, zero: float, bad: type[Exception]) -> None:
        """Raise ``bad`` if the direction is not finite, and ``Diverged`` if the next params are not."""
        if not self.memory.is_finite(direction):
            raise bad(f"the direction of step {self.steps + 1} is not finite")
        if zero != 0.0:
            raise Diverged(f"params after step {self.steps + 1} would not be finite")

    def _fresh_stepsize(self) -> float:
        """Return the stepsize of a fresh gradient in the next step; 0 if the method has no stepsize rule."""
        rule = getattr(self.method, "stepsize", None)
        return rule.fresh(self) if isinstance(rule, Stepsize) else 0.0

    def _weight_of_statistics(self) -> float:
        """Return by what fraction a step moves the statistics: 1/M for each gradient in it, and 1/k at least in step k.

        So the first M steps take a mean, whose weights are equal, instead of one that starts at the initial statistics.
        """
        return min(1.0, max(self._gradients_in_step / max(1, self.num_workers), 1 / (self.steps + 1)))

    def _lengthen_statistics(self, arrival: Arrival, version: Version) -> None:
        """Make the change of the statistics longer if there are several workers."""
        sections = self._sections
        factor = lengthening(sections.statistics_momentum, self.num_workers)
        if factor > 1:
            arrival.raw_gradient = lengthened(arrival.raw_gradient, version.point, sections.num_statistics, factor)

    def _weigh(self, version: Version | None, stepsize: float) -> None:
        if version is not None and version.number > 0:
            self.output.on_gradient(version.point, stepsize, version.stepsize_sum)

    def _weigh_pending(self, ticket: Ticket | None, stepsize: float) -> None:
        versions = self._versions
        self._weigh(versions.current if ticket is None else versions.by_ticket[ticket.id], stepsize)

    def _fitting(self, direction: Vector, arrival: Arrival) -> Vector:
        """Return a method's direction with the dtype of params, and with the statistics of the arrival."""
        _, shape, _ = self._gradient_kind
        if direction.shape != shape:
            raise ValueError(f"a direction must have the shape of params {shape}, got {tuple(direction.shape)}")
        fitted: Vector = self.memory.fitted(direction, self.params)
        if count := self._sections.num_statistics:
            measured = arrival.raw_gradient[-count:]
            fitted = self.memory.namespace.concatenate([self.trained(fitted), measured])
        return fitted


def _no_event(event: object) -> TypeError:
    names = ", ".join(kind.__name__ for kind in EVENTS)
    return TypeError(f"a server handles events of these classes: {names}; got {checks.shown(event)}")


def _brief(event: Event) -> str:
    if isinstance(event, GradientArrived):
        return f"the gradient of {event.ticket} at time {event.time}"
    return str(event)
