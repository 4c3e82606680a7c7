"""Decides which processes run: who is started, replaced, killed or given up. No clock, no input or output.

``Workforce.handle(event, now)`` returns actions, which the event loop executes in order. Times are seconds of the run.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, final

from nowait.core import Ticket, TimerFired, WorkerJoined, WorkerLost
from nowait.engines.live import WorkerView
from nowait.engines.workers.actions import (
    Abandon,
    Action,
    Ask,
    Began,
    Dismiss,
    Fail,
    Faulty,
    Kill,
    Look,
    Note,
    Raised,
    Release,
    Reopen,
    Requested,
    Retire,
    Start,
    Stop,
    Tell,
    Tick,
    Warn,
    WorkerLeaving,
    WorkforceEvent,
)
from nowait.engines.workers.agenda import Agenda
from nowait.engines.workers.failures import Durations, Failures
from nowait.engines.workers.places import Places
from nowait.engines.workers.records import EVALUATOR, ZYGOTE
from nowait.engines.workers.state import WorkerState
from nowait.engines.workers.transport import HOME, Died, Gone, Leaving, Opened
from nowait.recording.worker_stats import WorkerStats

SECONDS_TO_DIE = 10.0
"""How long a process that was killed may take to end."""
LONG_PAUSE = 5.0
"""If the engine has not looked for this long, deaths may have been reported that it has not seen yet."""


@final
class Workforce:
    """Who is wanted, working, vacant, to be replaced, hanging or given up; and the evaluator.

    ``wanted`` workers that the server does not have at the start join as soon as there is room. A place that has had no
    workers for ``idle_seconds`` is dismissed.
    """

    def __init__(
        self,
        *,
        wanted: Iterable[int] = (),
        numbers_used: Iterable[int] = (),
        max_failures: int = 5,
        replace_hung: bool = False,
        end: float = math.inf,
        idle_seconds: float = math.inf,
    ) -> None:
        self.states: dict[int, WorkerState] = {}
        """The running processes by worker number; the evaluator is ``EVALUATOR``."""
        self.vacant: list[int] = []
        """Workers that wait for room, sorted."""
        self.agenda = Agenda(end)
        self.failures = Failures(max_failures)
        self.finished = False
        """True once the run is over: then only the evaluator is still needed."""
        self._begun = False
        self._wanted = list(wanted)
        self._replace_hung, self._idle_seconds = replace_hung, idle_seconds
        self._by_serial: dict[int, WorkerState] = {}
        """All processes whose death has not been reported."""
        self._last_serial = 0
        self._last_worker = max([*self._wanted, *numbers_used], default=-1)
        self._places = Places()
        self._dying: dict[int, tuple[WorkerState, float]] = {}
        """The processes that were killed, and until when they should be dead, by serial number."""
        self._looked = 0.0
        """When the engine looked last."""
        self._given_up: set[int] = set()
        """The workers that were given up once, and went on in another place."""
        self._requests: deque[WorkerJoined | WorkerLost] = deque()
        self._retired: list[WorkerState] = []
        """Leaving workers that have reported on their last order."""
        self._unplaced: list[int] = []
        """Workers of the server for which there was no room at the start."""
        self._durations: dict[int, Durations] = {}
        self._evaluation = 0
        """The number of the latest order to the evaluator."""
        self._evaluated: tuple[int, int] | None = None
        """The slot and the step of the params that are being evaluated."""

    def handle(self, event: WorkforceEvent, now: float) -> list[Action]:
        """Change the state as an event requires; returns what has to be done, in order."""
        actions = self._handlers[type(event)](self, event, now)
        for action in actions:
            if type(action) is Kill:
                self._dying[action.state.serial] = action.state, now + SECONDS_TO_DIE
            elif type(action) is Dismiss:
                self._forget_dying(action.place)
        return actions

    def clock_turned_back(self, seconds: float) -> None:
        """Move all times, because the clock of the run starts again."""
        self.agenda.clock_turned_back(seconds)
        self._places.clock_turned_back(seconds)
        self._dying = {serial: (state, until - seconds) for serial, (state, until) in self._dying.items()}
        self._looked -= seconds

    # What is asked

    @property
    def workers(self) -> list[int]:
        """The workers that have a process."""
        return [worker for worker in self.states if worker >= 0]

    @property
    def room(self) -> float:
        """How many more workers could be started now."""
        return self._places.room

    @property
    def is_home_open(self) -> bool:
        """True while processes can be started in HOME."""
        return HOME in self._places

    @property
    def has_requests(self) -> bool:
        """True if callbacks asked for changes that were not made yet, or leaving workers have delivered."""
        return bool(self._requests or self._retired)

    def wanted_workers(self) -> list[int]:
        """Return the workers that a resumed run should have: those that work, wait, join or will be replaced."""
        joining = [request.worker for request in self._requests if isinstance(request, WorkerJoined)]
        return sorted({*self.workers, *self._unplaced, *self.vacant, *self.agenda.to_replace, *joining})

    def views(
        self, now: float, jobs_of: Callable[[int], int], by_worker: Iterable[WorkerStats] = ()
    ) -> list[WorkerView]:
        """Return what the live view shows of each worker; ``jobs_of`` counts the tickets it was given."""
        known = {stats.worker: stats for stats in by_worker}

        def delivered(worker: int) -> int:
            return known[worker].gradients if worker in known else max(0, jobs_of(worker) - 1)

        def seconds(worker: int, computing: float) -> float:
            stats = known.get(worker)
            return computing if stats is None or not stats.gradients else stats.seconds_per_gradient

        absent = dict.fromkeys(self.agenda.to_replace, "lost, to be replaced")
        absent |= dict.fromkeys(self.vacant, "waits for room")
        present = {
            worker: (state, seconds(worker, state.durations.mean))
            for worker, state in self.states.items()
            if worker >= 0 and worker not in absent
        }
        views = [
            WorkerView(
                worker,
                delivered(worker),
                usual,
                state.describe(now, usual),
                known.get(worker),
                computing=state.computing(now),
            )
            for worker, (state, usual) in present.items()
        ]
        return views + [
            WorkerView(worker, delivered(worker), -1.0, text, known.get(worker), present=False)
            for worker, text in absent.items()
        ]

    def place_of(self, worker: int) -> int:
        """Return the place of a worker; HOME if it has no process."""
        return self.states[worker].place if worker in self.states else HOME

    def node_of(self, place: int) -> str:
        """Return the name of a place; empty if it is gone or has none."""
        return self._places.name_of(place)

    def label_of(self, place: int) -> str:
        """Return how messages call a place; empty if it is gone or has no name."""
        return self._places.label_of(place)

    def next_serial(self) -> int:
        """Return a new serial number."""
        self._last_serial += 1
        return self._last_serial

    # What is requested

    def begin(self, workers: Iterable[int], now: float) -> list[Action]:
        """Start the evaluator, and the workers that the server has as far as there is room."""
        self._begun = True
        actions, workers = self._start_evaluator(now), list(workers)
        self._last_worker = max([self._last_worker, *workers])
        for worker in workers:
            place = self._places.with_room()
            if place is None:
                self._unplaced.append(worker)
                insort(self.vacant, worker)
            else:
                actions.append(self._start(worker, place))
        self.vacant = sorted({*self.vacant, *(worker for worker in self._wanted if worker not in workers)})
        return actions

    def request_join(self) -> None:
        """Let a worker with a new number join at the next ``Requested`` event."""
        self._last_worker += 1
        self._requests.append(WorkerJoined(self._last_worker, 0.0))

    def request_leave(self, worker: int) -> None:
        """Let a worker leave at the next ``Requested`` event."""
        self._requests.append(WorkerLost(worker, 0.0))

    def retired(self, state: WorkerState) -> None:
        """Let a leaving worker that has delivered leave at the next ``Requested`` event."""
        self._retired.append(state)

    def evaluate(self, slot: int, step: int, now: float) -> list[Action]:
        """Order an evaluation of the params of a step; if there is no evaluator now, as soon as there is one."""
        self._evaluated = (slot, step)
        return self._ask_evaluator(now)

    def take_answer(self, number: int, now: float) -> bool:
        """Return True if the loss with this number is the one that was ordered last and not answered yet."""
        if self._evaluated is None or number != self._evaluation:
            return False
        self._evaluated = None
        if EVALUATOR in self.states:  # its answer may be the last that is known of it
            self.states[EVALUATOR].delivered(now)
        self.delivered(EVALUATOR, HOME)
        return True

    def delivered(self, worker: int, place: int) -> None:
        """Reset the failures of a worker that delivered, and those of HOME if it runs there."""
        self.failures.delivered(worker)
        if place == HOME:
            self.failures.delivered(ZYGOTE)

    # Places and processes

    def _start(self, worker: int, place: int) -> Start:
        if worker != EVALUATOR:
            self._places.take(place)
        state = WorkerState(worker, self.next_serial(), place, self._durations.setdefault(worker, Durations()))
        self.states[worker] = self._by_serial[state.serial] = state
        return Start(state)

    def _join(self, worker: int, now: float) -> list[Action]:
        """Start a worker and tell the server; without room it becomes vacant."""
        place = self._places.with_room()
        if place is None:
            insort(self.vacant, worker)
            return []
        return [self._start(worker, place), Tell(WorkerJoined(worker, now))]

    def _fill_vacancies(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self.vacant and not self.finished and self._places.with_room() is not None:
            actions += self._join(self.vacant.pop(0), now)
        return actions

    def _leave(self, state: WorkerState, now: float) -> list[Action]:
        """Give up a worker whose process is gone or about to be killed."""
        del self.states[state.worker]
        state.released = True
        self._places.give(state.place, now)
        return [Release(state), Tell(WorkerLost(state.worker, now))]

    def _replace_due(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while not self.finished and (worker := self.agenda.take_replacement(now)) is not None:
            actions += self._join(worker, now)
        return actions

    # Giving up

    def _give_up(self, state: WorkerState, cause: str, fail: Fail, now: float) -> list[Action]:
        """Give up a worker that keeps failing; in HOME for good, else it goes on in another place, once.

        A place whose workers keep failing is given up too, unless all workers are there. The run ends with ``fail`` if
        no worker is left.
        """
        worker, place = state.worker, state.place
        for_good = place == HOME or worker in self._given_up
        self._given_up.add(worker)
        fate = "it is no longer replaced" if for_good else "it goes on with another host, if there is room"
        actions: list[Action] = [Warn(f"worker {worker} {cause}: {fate}"), *self._remove(state, now)]
        if not for_good:
            self.failures.delivered(worker)
            self.agenda.replace(worker, now)
        faulty = place != HOME and self._places.give_up_a_worker(place)
        if faulty and {self.place_of(other) for other in self.workers} != {place}:
            actions += self._give_up_place(place, f"worker {worker} {cause}", now)
        actions += self._replace_due(now)
        if not self.finished and (self._nobody_left() if place == HOME else self._nobody_works()):
            actions.append(fail)
        return actions

    def _remove(self, state: WorkerState, now: float) -> list[Action]:
        """Kill a process, unless it is dead, and give up its worker."""
        kill = [] if self._by_serial.pop(state.serial, None) is None else [Kill(state)]
        return [*kill, *self._leave(state, now)]

    def _give_up_place(self, place: int, cause: str, now: float) -> list[Action]:
        """Dismiss a place for good. Its other workers are replaced where there is room."""
        states = self._states_of(place)
        numbers = sorted(state.worker for state in states)
        also = f"; its workers {numbers} are replaced" if numbers else ""
        name = self._places.label_of(place)
        actions: list[Action] = [Warn(f"the host{name and ' '}{name} is given up, because {cause}{also}")]
        for state in states:
            self.agenda.replace(state.worker, now)
            actions += self._remove(state, now)
        self._places.remove(place)
        return [*actions, Dismiss(place, cause)]

    def _forget_dying(self, place: int) -> None:
        self._dying = {serial: entry for serial, entry in self._dying.items() if entry[0].place != place}

    def _give_up_undead(self, now: float) -> list[Action]:
        """Give up the processes that were killed and do not die; elsewhere than in HOME with their whole place."""
        paused, self._looked = now - self._looked > LONG_PAUSE, now
        if paused:
            self._dying = {serial: (state, now + SECONDS_TO_DIE) for serial, (state, _) in self._dying.items()}
        actions: list[Action] = []
        for serial, (state, deadline) in list(self._dying.items()):
            if now < deadline or serial not in self._dying:
                continue
            del self._dying[serial]
            cause = f"was killed, but its process did not end within {SECONDS_TO_DIE:.0f} s"
            if state.place != HOME and state.place in self._places:
                self._forget_dying(state.place)
                actions += self._give_up_place(state.place, f"worker {state.worker} {cause}", now)
            elif not state.released:
                self._by_serial.pop(serial, None)
                self.agenda.replace(state.worker, now)
                actions += [Warn(f"worker {state.worker} {cause}: another replaces it"), *self._leave(state, now)]
        return [*actions, *self._replace_due(now)]

    def _nobody_works(self) -> bool:
        return not (self.workers or self.agenda.to_replace or self._requests)

    def _nobody_left(self) -> bool:
        return not (self.workers or self.agenda.to_replace or self.vacant or self._requests)

    # The evaluator

    def _start_evaluator(self, now: float) -> list[Action]:
        if EVALUATOR in self.states or not self.is_home_open or not self._begun:
            return []
        return [self._start(EVALUATOR, HOME), *self._ask_evaluator(now)]

    def _ask_evaluator(self, now: float) -> list[Action]:
        if self._evaluated is None or EVALUATOR not in self.states:
            return []
        self._evaluation += 1  # an answer to an earlier order is not taken for this one's
        slot, step = self._evaluated
        state = self.states[EVALUATOR]
        state.ordered(Ticket(self._evaluation, EVALUATOR, step, 0, now), now)
        return [Ask(state, self._evaluation, slot, step)]

    # Events

    def _on_began(self, event: Began, now: float) -> list[Action]:
        lost, self._unplaced = self._unplaced, []
        return [Tell(WorkerLost(worker, now)) for worker in lost]

    def _on_opened(self, event: Opened, now: float) -> list[Action]:
        self._places.open(event, now)
        if not self._begun:
            return []
        return [*(self._start_evaluator(now) if event.place == HOME else []), *self._fill_vacancies(now)]

    def _on_death(self, event: Died, now: float) -> list[Action]:
        state = self._by_serial.pop(event.serial, None)
        self._dying.pop(event.serial, None)
        if state is None or state.released:
            return []
        if state.leaving:
            return self._depart([state], now, f"worker {state.worker}, which was leaving, {event.cause}")
        cause = event.cause
        pause = self.failures.died(state.worker)
        if state.worker == EVALUATOR:
            return self._replace_evaluator(state, cause, now, give_up=pause is None)
        if pause is not None:
            self.agenda.replace(state.worker, now + pause)
            warning = Warn(f"worker {state.worker} {cause}: it is replaced")
            return [warning, *self._leave(state, now), *self._replace_due(now)]
        message = f"no worker is left: worker {state.worker}, the last one, {cause}"
        return self._give_up(state, f"{cause} repeatedly", Fail(message, while_running=True), now)

    def _replace_evaluator(self, state: WorkerState, cause: str, now: float, *, give_up: bool) -> list[Action]:
        if give_up:
            return [
                Fail(f"the process that computes losses {cause} repeatedly: look at the problem's loss"),
            ]
        del self.states[EVALUATOR]
        warning = Warn(f"the process that computes losses {cause}: it is replaced")
        return [warning, Release(state), *self._start_evaluator(now)]

    def _on_gone(self, event: Gone, now: float) -> list[Action]:
        """Handle the loss of a place. Its workers have not failed: they are replaced where there is room."""
        if self._places.is_leaving(event.place):
            return self._close(event.place, now, event.cause)
        if event.place == HOME and not self._begun and not self.is_home_open:
            return [Fail(f"workers could not load the problem:\n{event.cause}")]
        self._places.remove(event.place)
        self._forget_dying(event.place)
        states = [state for state in self.states.values() if state.place == event.place]
        for state in states:
            del self._by_serial[state.serial]
            if state.worker != EVALUATOR:
                self.agenda.replace(state.worker, now)
        numbers = sorted(state.worker for state in states if state.worker != EVALUATOR)
        restarted = ": it is started again" if event.place == HOME else ""
        also = f", and workers {numbers} with it: they are replaced" if numbers else restarted
        actions: list[Action] = [Warn(f"{event.cause}{also}")]
        for state in states:
            if state.worker != EVALUATOR:
                actions += self._leave(state, now)
        if event.place == HOME:
            actions += self._on_home_gone(event.cause, now)
        return [*actions, *self._replace_due(now)]

    def _on_home_gone(self, cause: str, now: float) -> Iterator[Action]:
        """Schedule the restart of HOME; ``Opened`` says when the evaluator and workers can be started there."""
        evaluator = self.states.pop(EVALUATOR, None)
        if evaluator is not None:
            evaluator.released = True
            yield Release(evaluator)
        pause = self.failures.died(ZYGOTE)
        if pause is None:
            yield Fail(f"the process that starts workers ended repeatedly, last because {cause}")
        else:
            self.agenda.reopening = now + pause

    def _on_raised(self, event: Raised, now: float) -> list[Action]:
        """The gradient is lost; the worker gets another ticket."""
        state = self.states[event.worker]
        if state.leaving:
            return [*self._warnings_of(event), *self._depart([state], now)]
        if self.failures.ran_out_of_memory(event.worker, event.kind):
            self.agenda.replace(event.worker, now)
            times = self.failures.times_seen(event.kind)
            which = f"\n{event.text}" if times == 1 else f" ({event.kind}: {times} times in this run)"
            warning = Warn(f"worker {event.worker} ran out of memory: its process is replaced{which}")
            return [warning, Kill(state), *self._leave(state, now), *self._replace_due(now)]
        if self.failures.raised(event.worker, event.kind, any_gradient=event.any_gradient):
            fail = Fail(f"worker {event.worker} raised, not for the first time:\n{event.text}")
            if not event.any_gradient and self._in_one_place():
                return [fail]
            return self._give_up(state, f"raised {event.kind} again and again", fail, now)
        told = (Tell(WorkerLost(event.worker, now)), Tell(WorkerJoined(event.worker, now)))
        return [*self._warnings_of(event), Abandon(state), *told]

    def _on_faulty(self, event: Faulty, now: float) -> list[Action]:
        """Give up a worker that keeps sending what cannot be used; before any gradient, the problem is at fault."""
        error = event.error
        fail = Fail(str(error), while_running=True, error=error)
        if not event.any_gradient and self._in_one_place():
            return [fail]
        return self._give_up(self.states[error.worker], error.reason, fail, now)

    def _in_one_place(self) -> bool:
        return len({state.place for state in self.states.values() if state.worker != EVALUATOR}) == 1

    def _warnings_of(self, event: Raised) -> Iterator[Warn]:
        """Show the traceback of the first error of a kind, and after that how many there were, more and more rarely.

        Before the first gradient there is no traceback: if the problem is broken, the run soon fails with it.
        """
        if not event.any_gradient:
            yield Warn(f"worker {event.worker} raised {event.kind} before the first gradient, and tries again")
            return
        times = self.failures.times_seen(event.kind)
        if times == 1:
            yield Warn(f"worker {event.worker} raised:\n{event.text}")
        elif times & (times - 1) == 0:  # a power of two
            yield Warn(f"worker {event.worker} raised {event.kind}: {times} times in this run, the first one is above")

    def _on_requests(self, event: Requested, now: float) -> list[Action]:
        """Let workers join and leave as callbacks asked."""
        retired, self._retired = self._retired, []
        actions = self._depart([state for state in retired if not state.released], now)
        while self._requests:
            request = self._requests.popleft()
            worker = request.worker
            self.agenda.do_not_replace(worker)
            if isinstance(request, WorkerJoined):
                actions += self._join(worker, now)
            else:
                self.vacant = [other for other in self.vacant if other != worker]
                state = self.states.get(worker)
                if state is not None:
                    actions += [Kill(state), *self._leave(state, now)]
        if self._nobody_left():
            actions.append(Stop("every worker was removed"))
        return actions

    def _on_tick(self, event: Tick, now: float) -> list[Action]:
        """Perform all actions that are due: fire timers, restart HOME, replace workers, end the run."""
        actions: list[Action] = []
        if not self.finished:
            actions += [Tell(TimerFired(now))] * self.agenda.take_timers(now)
        if self.agenda.take_reopening(now):
            actions.append(Reopen())
        actions += self._replace_due(now)
        if now >= self.agenda.end and not self.finished:
            actions.append(Stop(""))
        return actions

    def _on_look(self, event: Look, now: float) -> list[Action]:
        """Name processes that hang, and kill them if that was asked for."""
        actions: list[Action] = []
        for state in self.states.values():
            is_needed = state.worker == EVALUATOR or not self.finished
            if is_needed and state.starts_to_hang(now):
                actions += self._on_hanging(state, now)
        if self.finished:
            return actions
        actions += self._give_up_undead(now)
        return [*actions, *self._see_off(now), *self._fill_vacancies(now), *self._give_back(now)]

    def _on_hanging(self, state: WorkerState, now: float) -> list[Action]:
        """Name a process that hangs, and kill it if that was asked for; a first evaluation may take any time."""
        mean, seconds = state.durations.mean, now - state.sent
        kill = self._replace_hung and not (state.worker == EVALUATOR and mean < 0)
        fate = ": it is replaced" if kill else ""
        if state.worker == EVALUATOR:
            usual = "" if mean < 0 else f"; it takes {mean:.3g} s on average"
            text = f"the loss has been computed for {seconds:.3g} s{usual}{fate}"
        else:
            usual = "" if mean < 0 else f"; its gradients take {mean:.3g} s on average"
            text = f"worker {state.worker} has computed for {seconds:.3g} s{usual}{fate}"
        return [Warn(text), Kill(state)] if kill else [Warn(text)]

    # Leaving

    def _on_leaving(self, event: Leaving, now: float) -> list[Action]:
        """Send the workers of a place no more orders. Those without one leave at once."""
        if event.place not in self._places:
            return [Dismiss(event.place)]
        known = self._places.is_leaving(event.place)
        self._places.leave(event.place, now + event.seconds)
        if known:
            return []
        states = self._states_of(event.place)
        numbers = sorted(state.worker for state in states)
        note = Note(f"a host leaves within {event.seconds:.0f} s: its workers {numbers} deliver what they compute")
        return [note, *self._retire(states, now), *self._dismiss(self._places.left())]

    def _on_worker_leaving(self, event: WorkerLeaving, now: float) -> list[Action]:
        state = self._by_serial.get(event.serial)
        if state is None or state.released or state.leaving:
            return []
        return [Note(f"worker {state.worker} was told to leave"), *self._retire([state], now)]

    def _retire(self, states: Iterable[WorkerState], now: float) -> list[Action]:
        actions: list[Action] = []
        for state in [state for state in states if not state.leaving]:
            state.leaving = True
            actions += self._depart([state], now) if state.ticket is None else [Retire(state)]
        return actions

    def _depart(self, states: Iterable[WorkerState], now: float, note: str = "") -> list[Action]:
        """Let workers leave in order: nobody has failed, and their numbers are wanted elsewhere."""
        actions: list[Action] = [Note(note)] if note else []
        for state in states:
            if self._by_serial.pop(state.serial, None) is not None:
                actions.append(Kill(state))
            actions += self._leave(state, now)
            self.agenda.replace(state.worker, now)
        return [*actions, *self._dismiss(self._places.left()), *self._replace_due(now)]

    def _see_off(self, now: float) -> list[Action]:
        """Let leaving workers go that have no order, and all those whose time is over."""
        overdue = self._places.overdue(now)
        leaving = [state for state in self.states.values() if state.leaving]
        late = [state for state in leaving if state.ticket is not None and state.place in overdue]
        numbers = sorted(state.worker for state in late)
        note = f"a host leaves before workers {numbers} have delivered what they compute" if late else ""
        return self._depart([*late, *(state for state in leaving if state.ticket is None)], now, note)

    def _close(self, place: int, now: float, cause: str) -> list[Action]:
        """Handle the end of a leaving place that came before all its workers had left."""
        states = self._states_of(place)
        self._places.remove(place)
        for state in states:
            del self._by_serial[state.serial]
        lost = f", and workers {sorted(state.worker for state in states)} with it" if states else ""
        return self._depart(states, now, f"{cause}{lost}, as announced")

    def _dismiss(self, places: Iterable[int]) -> list[Action]:
        actions: list[Action] = []
        for place in places:
            self._places.remove(place)
            actions.append(Dismiss(place))
        return actions

    def _give_back(self, now: float) -> list[Action]:
        """Dismiss places that have had no workers for a while."""
        idle = self._places.idle(now, self._idle_seconds)
        note = Note(f"a host has had no workers for {self._idle_seconds:g} s: it is given back")
        return [*[note] * len(idle), *self._dismiss(idle)]

    def _states_of(self, place: int) -> list[WorkerState]:
        return [state for state in self.states.values() if state.place == place]

    _handlers: ClassVar[dict[type, Callable[[Workforce, Any, float], list[Action]]]] = {
        Began: _on_began,
        Raised: _on_raised,
        Faulty: _on_faulty,
        Requested: _on_requests,
        Tick: _on_tick,
        Look: _on_look,
        Died: _on_death,
        Opened: _on_opened,
        Gone: _on_gone,
        Leaving: _on_leaving,
        WorkerLeaving: _on_worker_leaving,
    }
