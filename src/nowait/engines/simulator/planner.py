"""Makes the plan of a run: a stand-in for the server, with its verbs, that writes down what the method asks for.

Its verbs are called several times per gradient, so some of what they do is written out where it is needed.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NoReturn, final

import numpy as np

from nowait.core import Method, Ticket, TimerFired, WorkerJoined, WorkerLost
from nowait.core.membership import WorkerSet
from nowait.core.outputs import Uses
from nowait.core.randomness import CounterRandom
from nowait.core.rejections import Counts
from nowait.core.server import new
from nowait.core.sums import Held
from nowait.engines.budget import Budget
from nowait.engines.progress import Progress
from nowait.engines.simulator.alarms import Alarm, Alarms, why_nothing_happens
from nowait.engines.simulator.plan import (
    ADD,
    APPLY,
    ARRIVE,
    CLEAR,
    EVENT,
    FIRST_SUM,
    MERGE,
    STEP,
    Moments,
    NotPlannable,
    Plan,
    as_array,
)
from nowait.engines.simulator.planned import (
    CODE_OF_APPLIED,
    CODE_OF_DROPPED,
    CODE_OF_HELD,
    FirstSteps,
    PlannedArrival,
    PlannedInFlight,
    PlannedSum,
)
from nowait.recording.rows import RowTable
from nowait.speeds import Clock, Faults, Finished
from nowait.speeds.clock import HeapClock

INFINITY = math.inf


@final
class Planner:
    """To a method it is the server. Reading gradients or params raises ``NotPlannable``."""

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
        self._method: Any = method
        self._clock = clock
        self._heap: list[Finished] = []
        self._timing = clock.timing if isinstance(clock, HeapClock) else None
        self._alarms = Alarms(faults, budget.seconds)
        self._budget = budget
        self._averaging = averaging
        self._rows = RowTable()
        self._jobs = dict.fromkeys(workers, 0)
        self._next_ticket = 0
        self._num_gradients = 0
        self._num_dropped = 0
        self._num_cancelled = 0
        self._num_lost = 0
        self._first_steps = FirstSteps()
        self._arrival: PlannedArrival | None = None
        self._stepped_along_sum = False
        self._codes, self._numbers = array("i"), array("d")
        self._free_sums: list[int] = []
        self._num_sums = 0
        self._stepsize_sums = [0.0]
        self._uses: list[tuple[int, float, float]] = []
        self.stopped = False
        """Set it to end the plan after the present event."""
        self.workers = WorkerSet(workers)
        self._places = self.workers.places
        self.num_workers = len(self.workers)
        self.in_flight = PlannedInFlight()
        self._tickets, self._running = self.in_flight.tickets, self.in_flight.running
        self.steps = 0
        self.now = 0.0
        self.random = CounterRandom(seed, "server")

    def plan(self, bar: Progress, most_events: float = INFINITY, *, weigh_in_flight: bool = True) -> Plan:
        """The whole run, up to the end of the budget or so many events."""
        seconds, advice = None, ""
        method, next_finished = self._method, self._next_finished
        most_steps, most_gradients = self._budget.steps or INFINITY, self._budget.gradients or INFINITY
        method.start(self)
        if self.steps > 0:
            raise NotPlannable  # a step before the first event
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
            if self.steps >= most_steps or self._num_gradients >= most_gradients:
                break
            if bar.shown:
                bar.tick(self._share_used)
        if self._averaging and weigh_in_flight and self.steps:
            self._weigh_in_flight()
        return self._plan(seconds, advice)

    # What no plan knows

    @property
    def params(self) -> NoReturn:
        """Not known yet."""
        raise NotPlannable

    def __getattr__(self, name: str) -> NoReturn:
        raise NotPlannable

    # The verbs of a method

    def apply(self, arrival: PlannedArrival, stepsize: float, direction: Any = None) -> None:
        """As the server's."""
        if arrival is not self._arrival or direction is not None or not 0.0 <= stepsize < INFINITY:
            raise NotPlannable
        self._codes.append(APPLY)
        self._numbers.append(stepsize)
        self.steps = step = self.steps + 1
        arrival.code = CODE_OF_APPLIED
        if arrival.row_step == 0:
            arrival.row_step, arrival.row_weight, arrival.row_stepsize = step, 1.0, stepsize
        if arrival.held_as is not None:
            arrival.held_as.stepped = True
        if self._averaging:
            self._weigh_step(arrival.ticket[2], stepsize, along_sum=False)

    def sum(self) -> PlannedSum:
        """As the server's."""
        if self._free_sums:
            number = self._free_sums.pop()
            self._codes.extend((CLEAR, FIRST_SUM + number))
        else:
            number = self._num_sums
            self._num_sums += 1
        return PlannedSum(self, number)

    def step(self, total: PlannedSum, stepsize: float, scale: float = 1.0) -> None:
        """As the server's."""
        if total.planner is not self or not 0.0 <= stepsize < INFINITY:
            raise NotPlannable
        self._codes.extend((STEP, FIRST_SUM + total.number))
        self._numbers.extend((stepsize, scale))
        self.steps = step = self.steps + 1
        if self._averaging:
            self._weigh_step(step - 1, stepsize, along_sum=True)
        self._first_steps.add(total.take_first_steps(scale), step, stepsize)

    def assign(self, worker: int, at: PlannedArrival | None = None) -> Ticket:
        """As the server's."""
        if worker not in self._places or (at is not None and at is not self._arrival):
            raise NotPlannable
        job = self._jobs.get(worker, 0)
        self._jobs[worker] = job + 1
        number = self._next_ticket
        self._next_ticket = number + 1
        ticket = new(Ticket, (number, worker, self.steps if at is None else at.ticket[2], job, self.now))
        self._tickets[number] = ticket
        if worker in self._running:
            self.in_flight.queue(ticket)
        else:
            self._running[worker] = ticket
            self._start(ticket)
        return ticket

    def cancel(self, worker: int) -> None:
        """As the server's."""
        self._num_cancelled += self._forget_tickets(worker)

    def wake(self, at: float) -> None:
        """As the server's."""
        if math.isnan(at):
            raise NotPlannable
        self._alarms.add(TimerFired(max(at, self.now)))

    def jobs_of(self, worker: int) -> int:
        """As the server's."""
        return self._jobs.get(worker, 0)

    # For sums

    def add(self, number: int, arrival: PlannedArrival, weight: float) -> Held:
        """The arrival's gradient enters a sum."""
        if arrival is not self._arrival:
            raise NotPlannable
        self._codes.extend((ADD, FIRST_SUM + number))
        self._numbers.append(weight)
        held = arrival.held_as
        if held is None:
            held = arrival.held_as = Held(arrival.number, arrival.row_step > 0)
        if arrival.code == CODE_OF_DROPPED:
            arrival.code = CODE_OF_HELD
        return held

    def merge(self, number: int, other: int, weight: float) -> None:
        """One sum enters another."""
        self._codes.extend((MERGE, FIRST_SUM + number, FIRST_SUM + other))
        self._numbers.append(weight)

    def clear(self, number: int) -> None:
        """A sum becomes zero."""
        self._codes.extend((CLEAR, FIRST_SUM + number))

    def free(self, number: int) -> None:
        """Nobody uses this sum any more."""
        self._free_sums.append(number)

    # Events

    def _next_finished(self) -> Finished | None:
        """The next ticket to arrive, if that is before the next alarm. Those that run no more were cancelled."""
        limit = self._alarms.limit
        if self._timing is None:
            return self._clock.pop(limit)
        heap, running = self._heap, self._running
        while heap and heap[0][0] <= limit:
            finished = heappop(heap)
            if running.get(finished[2][1]) is finished[2]:
                return finished
        return None

    def _on_gradient(self, finished: Finished) -> None:
        time, number, ticket, started, seconds = finished
        _, worker, version, job, _ = ticket
        self.now = time
        del self._tickets[number], self._running[worker]
        if self.in_flight.queued:
            self._start_queued(worker)
        self._codes.append(ARRIVE)
        row = self._num_gradients
        arrival = self._arrival = PlannedArrival(finished, ticket, self.steps + 1 - version, row)
        self._method.on_arrival(self, arrival)
        self._arrival = None
        self._num_gradients = row + 1
        if arrival.code == CODE_OF_DROPPED:
            self._num_dropped += 1
        self._rows.add_row(
            number,
            worker,
            job,
            version,
            arrival.delay,
            time,
            started,
            seconds,
            self.num_workers,
            0.0,
            arrival.code,
            arrival.row_step,
            arrival.row_weight,
            arrival.row_stepsize,
        )

    def _on_alarm(self) -> bool:
        """Handle the next alarm; False if there is none."""
        alarm: Alarm | None = None
        if self.workers or self._alarms.changes_to_come():
            alarm = self._alarms.pop()
        if alarm is None:
            return False
        self.now = alarm.time
        self._codes.append(EVENT)
        self._rows.happened(alarm)
        if isinstance(alarm, TimerFired):
            self._method.on_timer(self)
        elif isinstance(alarm, WorkerJoined):
            self.workers.add(alarm.worker)
            self.num_workers += 1
            self._method.on_join(self, alarm.worker)
        else:
            self._on_loss(alarm)
        return True

    def _on_loss(self, alarm: WorkerLost) -> None:
        self.workers.remove(alarm.worker)
        self.num_workers -= 1
        self._num_lost += self._forget_tickets(alarm.worker)
        self._method.on_leave(self, alarm.worker)

    def _end_of_events(self) -> tuple[float | None, str]:
        """The seconds that ran out, or the reason why nothing happens any more."""
        nobody_left = not self.workers and not self._alarms.changes_to_come()
        if self._budget.seconds is None or nobody_left or not (self.in_flight or self._alarms):
            return None, why_nothing_happens(self)
        return self._budget.seconds, ""

    # Tickets

    def _start_queued(self, worker: int) -> None:
        ticket = self.in_flight.next_of(worker)
        if ticket is not None:
            self._running[worker] = ticket
            self._start(ticket)

    def _start(self, ticket: Ticket) -> None:
        if self._timing is None:
            self._clock.start(ticket, self.now)
        else:
            seconds, finish = self._timing(ticket[1], ticket[3], self.now)
            heappush(self._heap, (finish, ticket[0], ticket, self.now, seconds))

    def _forget_tickets(self, worker: int) -> int:
        running = self._running.pop(worker, None)
        if running is None:
            return 0
        del self._tickets[running[0]]
        if self._timing is None:
            self._clock.cancel(running)
        elif len(self._heap) > 2 * len(self._running) + 64:
            self._forget_cancelled()
        return 1 + self.in_flight.forget_queue(worker) if self.in_flight.queued else 1

    def _forget_cancelled(self) -> None:
        """Slow tickets that were cancelled must not pile up."""
        running = self._running
        self._heap = [entry for entry in self._heap if running.get(entry[2][1]) is entry[2]]
        heapify(self._heap)

    # The end

    def _weigh_step(self, version: int, stepsize: float, *, along_sum: bool) -> None:
        """A step was made with a gradient at this version, for an averaging output."""
        self._stepped_along_sum = along_sum
        self._stepsize_sums.append(self._stepsize_sums[-1] + stepsize)
        self._weigh(version, stepsize)

    def _weigh(self, version: int, stepsize: float) -> None:
        if version > 0:
            self._uses.append((version, stepsize, self._stepsize_sums[version]))

    def _share_used(self) -> float | None:
        return self._budget.share_used(self.steps, self._num_gradients, self.now)

    def _plan(self, seconds: float | None, advice: str) -> Plan:
        arrivals, events = self._rows.arrivals(), self._rows.events()
        self._first_steps.write(arrivals)
        codes = as_array(self._codes, np.int32)
        return Plan(
            arrivals=arrivals,
            events=events,
            codes=codes,
            numbers=as_array(self._numbers, np.float64),
            num_sums=self._num_sums,
            moments=Moments.of(codes, arrivals, events),
            counts=Counts(
                gradients=self._num_gradients,
                dropped=self._num_dropped,
                lost=self._num_lost,
                cancelled=self._num_cancelled,
            ),
            num_tickets=self._next_ticket,
            uses=self._all_uses() if self._averaging else None,
            seconds=seconds,
            advice=advice,
        )

    def _weigh_in_flight(self) -> None:
        """As ``Server.finish`` does."""
        if self._stepped_along_sum:
            self._weigh(self.steps, self._method.pending_stepsize(self, 1))
            return
        for ticket in self.in_flight.values():
            self._weigh(ticket.version, self._method.pending_stepsize(self, max(1, self.steps - ticket.version)))

    def _all_uses(self) -> Uses:
        table = np.array(self._uses, dtype=np.float64).reshape(-1, 3)
        return Uses(table[:, 0].astype(np.int64), table[:, 1], table[:, 2], self.steps)
