"""Scripted workers: they finish when a test says so."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Self, final

import numpy as np

from nowait.core import (
    Command,
    Event,
    GradientArrived,
    Method,
    Resumed,
    Server,
    ServerState,
    Ticket,
    TimerFired,
    Wake,
    WorkerJoined,
    WorkerLost,
)
from nowait.core.log import NoLog
from nowait.core.memory import namespace_of
from nowait.core.randomness import CounterRandom
from nowait.testing.servers import Assignments, OverwritingLog, check_invariants


@final
class ScriptedWorkers:
    """Passes events to a server, and checks its invariants and commands after each event.

    Gradients are those of ½‖x − 1‖²: they depend on the point alone. ``next_arrival`` chooses whose ticket
    finishes by a fixed random order; every event is a second after the last one. Worker m computes for m + 1 seconds.
    After ``on_arrival`` the gradient is overwritten, and so are points that no ticket needs, as in real runs;
    ``overwrite=False`` leaves them.
    """

    def __init__(
        self, method: Method, num_workers: int, dimension: int = 2, *, overwrite: bool = True, **parts: Any
    ) -> None:
        if overwrite:
            parts["log"] = OverwritingLog(parts.get("log") or NoLog())
        self._begin(Server(method, np.zeros(dimension), num_workers, **parts))
        self._take(None, self.server.start())

    def _begin(self, server: Server) -> None:
        self.server = server
        self._timers: list[float] = []
        self._random = CounterRandom(0, "script")
        self._assignments = Assignments()
        self.commands: list[Command] = []
        """The commands of the latest event."""

    def resume(self) -> None:
        """Let the run be resumed here, as a replay sees it: tickets in flight and timers are lost."""
        self._timers.clear()
        self._feed(Resumed(self.server.now))

    def resumed_with(self, method: Method) -> ScriptedWorkers:
        """Return the workers of a new server that continues from a checkpoint of this one, with this method object."""
        state = _stored(self.server.state())
        others = object.__new__(ScriptedWorkers)
        log = OverwritingLog(NoLog())
        others._begin(Server(method, state.params, state.workers, log=log, memory=self.server.memory))
        others._random.draws = self._random.draws
        others._take(None, others.server.resume(state))
        return others

    def after(self, events: int) -> Self:
        """Pass this many events to the server."""
        for _ in range(events):
            self.next_event()
        return self

    def next_event(self) -> None:
        """Let a gradient arrive; without tickets in flight, let a timer expire."""
        if self.server.in_flight:
            self.next_arrival()
        elif self._timers:
            self._feed(TimerFired(max(self._now(), heappop(self._timers))))
        else:
            raise AssertionError("nothing is in flight and no timer is set: the run would hang")

    def next_arrival(self, bad_first: bool = False) -> None:
        """Let a worker finish; with ``bad_first``, it sends a NaN gradient before."""
        busy = self.busy()
        if not busy:
            raise AssertionError("no worker has a ticket: the method must assign one at the start and after arrivals")
        ticket = self.server.in_flight.of(self._random.choice(busy))[0]
        self.finish(self.reject(ticket) if bad_first else ticket)

    def busy(self) -> list[int]:
        """Return the workers with tickets in flight."""
        return [worker for worker in sorted(self.server.workers) if self.server.in_flight.of(worker)]

    def reject(self, ticket: Ticket) -> Ticket:
        """Let a NaN gradient of this ticket arrive; returns the ticket that is issued in its place."""
        nan = namespace_of(self.server.params).full_like(self.server.params, math.nan)
        self._feed(GradientArrived(ticket, nan, self.server.now))
        return self.server.in_flight.of(ticket.worker)[-1]

    def finish(self, ticket: Ticket) -> None:
        """Let the gradient of this ticket arrive."""
        gradient = self.server.point(ticket) - 1.0
        now = self._now()
        self._feed(GradientArrived(ticket, gradient, now, started=now - 1.0, compute_seconds=1.0 + ticket.worker))

    def join(self, worker: int) -> None:
        """Let a worker join."""
        self._feed(WorkerJoined(worker, self._now()))

    def lose(self, worker: int) -> None:
        """Let a worker leave."""
        self._feed(WorkerLost(worker, self._now()))

    def _feed(self, event: Event) -> None:
        assert self.server.diverged is None, f"the run diverged: {self.server.diverged}"
        self._take(event, self.server.handle(event))

    def _take(self, event: Event | None, commands: list[Command]) -> None:
        self.commands = commands
        self._assignments.follow(event, commands)
        if self.server.diverged is None:
            self._assignments.check(self.server)
        for command in commands:
            if isinstance(command, Wake):
                heappush(self._timers, command.at)
        check_invariants(self.server)

    def _now(self) -> float:
        return self.server.now + 1.0


def _stored(state: ServerState) -> ServerState:
    """Return the state as it is read from a checkpoint, which stores all but vectors as JSON."""
    method = {
        name: value if hasattr(value, "shape") else json.loads(json.dumps(value))
        for name, value in state.method.items()
    }
    return replace(state, method=method)
