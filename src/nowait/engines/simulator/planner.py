"""Makes the plan of a run: a ``Ledger`` whose verbs write instructions instead of computing vectors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, final

import numpy as np

from nowait.core import Arrival, GradientArrived, Method, Ticket, TimerFired, WorkerJoined, WorkerLost
from nowait.core.ledger import INFINITY, Ledger, new
from nowait.core.standstill import Standstill
from nowait.core.types import Vector
from nowait.engines.budget import Budget
from nowait.engines.progress import Progress
from nowait.engines.simulator.alarms import Alarms, why_nothing_happens
from nowait.engines.simulator.plan import (
    APPLY,
    ARRIVE,
    CLEAR,
    EVENT,
    FIRST_SUM,
    MAKES_DIRECTIONS,
    NO_PROGRESS,
    READS_GRADIENTS,
    READS_PARAMS,
    READS_POINTS,
    READS_UPDATE,
    STEP,
    Moments,
    NotPlannable,
    Plan,
    as_array,
    uses_of,
)
from nowait.engines.simulator.planned import PlannedSum, UnknownVersion, unknown
from nowait.recording.rows import RowTable
from nowait.speeds import Clock, Faults, Finished
from nowait.speeds.clock import HeapClock

UNKNOWN: Any = UnknownVersion()


@final
class Planner(Ledger):
    """Stands for the server while a plan is made. Reading params or gradients raises ``NotPlannable``."""

    def __init__(
        self,
        method: Method,
        workers: Sequence[int],
        clock: Clock,
        faults: Faults,
        budget: Budget,
        *,
        seed: int,
        averaging: bool,
    ) -> None:
        self._table = RowTable()
        super().__init__(method, workers, seed=seed, log=self._table)
        self._clock = clock
        self._heap: list[Finished] = []
        self._timing = clock.timing if isinstance(clock, HeapClock) else None
        self._alarms = Alarms(faults, budget.seconds)
        self._budget = budget
        self._averaging = averaging
        self._codes, self._numbers = array("i"), array("d")
        self._free_sums: list[int] = []
        self._num_sums = 0
        self._stepsizes: list[float] = []
        """The stepsize of every step, if the output is an average."""
        self._uses: list[tuple[int, float]] = []
        """The version and the stepsize of every gradient that was used, if the output is an average."""
        self._standstill = Standstill()
        self._tickets, self._running = self.in_flight.tickets, self.in_flight.running
        self.stopped = False
        """Set it to end the plan after the present event."""

    def plan(self, bar: Progress, most_events: float = INFINITY, *, weigh_in_flight: bool = True) -> Plan:
        """Plan up to the end of the budget, or up to ``most_events`` events."""
        seconds, advice = None, ""
        method: Any = self.method
        next_finished, counts = self._next_finished, self.counts
        most_steps, most_gradients = self._budget.steps or INFINITY, self._budget.gradients or INFINITY
        method.start(self)
        if self.steps > 0:
            raise NotPlannable("the method makes a step before the first event")
        if self._averaging:
            method.pending_stepsize(self, 1)
        num_events = 0
        while num_events < most_events and not self.stopped:
            finished = next_finished()
            if finished is not None:
                self._on_gradient(finished)
            elif not self._on_alarm():
                seconds, advice = self._end_of_events()
                break
            num_events += 1
            if self.steps >= most_steps or counts.gradients >= most_gradients:
                break
            if bar.shown:
                bar.tick(self._share_used)
        if self._averaging and weigh_in_flight:
            self._weigh_in_flight()
        return self._plan(seconds, advice)

    def trained(self, vector: Vector) -> Vector:
        """Return the vector: in compiled runs params contain no statistics."""
        return vector

    # What the verbs of a method do

    def sum(self) -> PlannedSum:
        """Return a sum without a vector."""
        if self._free_sums:
            number = self._free_sums.pop()
            self._codes.extend((CLEAR, FIRST_SUM + number))
        else:
            number = self._num_sums
            self._num_sums += 1
        return PlannedSum(self, number, self._codes, self._numbers)

    def free_sum(self, number: int) -> None:
        """Use the number of a sum, which was deleted, for the next one."""
        self._free_sums.append(number)

    def _check_gradient(self) -> None:
        """Raise ``NotPlannable``: only reading a gradient calls it, since verbs have nothing to check in a plan."""
        raise NotPlannable(READS_GRADIENTS)

    def _step_along_gradient(self, arrival: Arrival, stepsize: float, direction: Vector | None) -> None:
        if direction is not None:
            raise NotPlannable(MAKES_DIRECTIONS)
        self._codes.append(APPLY)
        self._numbers.append(stepsize)
        if self._averaging:
            self._stepsizes.append(stepsize)
            self._uses.append((arrival.ticket[2], stepsize))

    def _step_along_sum(self, total: PlannedSum, stepsize: float, scale: float) -> None:
        self._codes.extend((STEP, FIRST_SUM + total.number))
        self._numbers.extend((stepsize, scale))
        if self._averaging:
            self._stepsizes.append(stepsize)
            self._uses.append((self.steps, stepsize))

    def _assigned(self, ticket: Ticket, at: Arrival | None) -> None:
        self._start(ticket)

    def _queued(self, ticket: Ticket, at: Arrival | None) -> None:
        """Do nothing: a plan keeps no points."""

    def _removed(self, tickets: tuple[Ticket, ...], *, cancelled: bool) -> None:
        if self._timing is None:
            self._clock.cancel(tickets[0])
        elif len(self._heap) > 2 * len(self._running) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._tickets]
            heapify(self._heap)

    def _set_timer(self, at: float) -> None:
        self._alarms.add(TimerFired(at))

    def _weigh_pending(self, ticket: Ticket | None, stepsize: float) -> None:
        self._uses.append((self.steps if ticket is None else ticket.version, stepsize))

    # Attributes of the server that have no value in a plan

    memory = unknown(READS_PARAMS)
    params = unknown(READS_PARAMS)
    point = unknown(READS_POINTS)
    update = unknown(READS_UPDATE)
    output = unknown("the method reads server.output")
    start = unknown("the method calls server.start")
    handle = unknown("the method calls server.handle")
    initial_state = unknown("the method calls server.initial_state")
    state = unknown("the method calls server.state")
    live_state = unknown("the method calls server.live_state")
    snapshot = unknown("the method calls server.snapshot")
    resume = unknown("the method calls server.resume")
    finish = unknown("the method calls server.finish")
    close = unknown("the method calls server.close")
    declare_diverged = unknown("the method calls server.declare_diverged")
    retain = unknown("the method calls server.retain")
    release = unknown("the method calls server.release")
    lend = unknown("the method calls server.lend")
    take_back = unknown("the method calls server.take_back")
    lent = unknown("the method calls server.lent")
    slot = unknown("the method calls server.slot")
    forget = unknown("the method calls server.forget")
    rejections = unknown("the method reads server.rejections")
    seed = unknown("the method reads server.seed")

    # Events

    def _next_finished(self) -> Finished | None:
        """Return the next ticket to arrive before the next alarm; cancelled tickets are skipped."""
        limit = self._alarms.limit
        if self._timing is None:
            return self._clock.pop(limit)
        heap, tickets = self._heap, self._tickets
        while heap and heap[0][0] <= limit:
            finished = heappop(heap)
            if finished[1] in tickets:
                return finished
        return None

    def _on_gradient(self, finished: Finished) -> None:
        time, _, ticket, started, seconds = finished
        in_flight = self.in_flight
        self.now = time
        in_flight.take(ticket)
        if in_flight.queued and (successor := in_flight.successor(ticket)) is not None:
            self._start(successor)
        self._codes.append(ARRIVE)
        event = new(GradientArrived, (ticket, None, time, started, seconds))
        arrival = self._arrival = Arrival(event, self.delay_of(ticket), self._rows, UNKNOWN, self)
        self.method.on_arrival(self, arrival)  # type: ignore[arg-type]
        self._arrival = arrival.version_held = None
        self._record_valid(arrival)

    def _on_alarm(self) -> bool:
        """Handle the next alarm. Returns False if there is none."""
        alarm = self._alarms.pop() if self.workers or self._alarms.changes_to_come() else None
        if alarm is None:
            return False
        self._codes.append(EVENT)
        self._accept(alarm)
        method: Any = self.method
        if isinstance(alarm, WorkerJoined):
            method.on_join(self, alarm.worker)
        elif isinstance(alarm, WorkerLost):
            method.on_leave(self, alarm.worker)
        else:
            method.on_timer(self)
            self._standstill.timer_expired(self)
            if self._standstill.reason(self):
                raise NotPlannable(NO_PROGRESS)
        return True

    def _end_of_events(self) -> tuple[float | None, str]:
        """Return the seconds of the budget if time ran out, and otherwise why no event will happen any more."""
        nobody_left = not self.workers and not self._alarms.changes_to_come()
        if self._budget.seconds is None or nobody_left or not (self.in_flight or self._alarms):
            return None, why_nothing_happens(self)
        return self._budget.seconds, ""

    def _start(self, ticket: Ticket) -> None:
        if self._timing is None:
            self._clock.start(ticket, self.now)
        else:
            seconds, finish = self._timing(ticket[1], ticket[3], self.now)
            heappush(self._heap, (finish, ticket[0], ticket, self.now, seconds))

    def _share_used(self) -> float | None:
        return self._budget.share_used(self.steps, self.counts.gradients, self.now)

    # The end

    def _plan(self, seconds: float | None, advice: str) -> Plan:
        arrivals, events = self._table.arrivals(), self._table.events()
        codes = as_array(self._codes, np.int32)
        uses = None
        if self._averaging:
            table = np.array(self._uses, dtype=np.float64).reshape(-1, 2)
            uses = uses_of(table[:, 0].astype(np.int64), table[:, 1], np.array(self._stepsizes))
        return Plan(
            arrivals=arrivals,
            events=events,
            codes=codes,
            numbers=as_array(self._numbers, np.float64),
            num_sums=self._num_sums,
            moments=Moments.of(codes, arrivals, events),
            counts=self.counts,
            num_tickets=self.num_tickets,
            uses=uses,
            seconds=seconds,
            advice=advice,
            notes=tuple(self._table.notes),
        )
