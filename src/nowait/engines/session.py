"""What every engine does around its server: budgets, evaluations, callbacks and the record of the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np

from nowait.core import Command, Event, GradientArrived, Server, WorkerJoined, WorkerLost, checks
from nowait.core.problem import message_bytes
from nowait.core.types import Vector, norm
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.recording import Callback, HistoryRecorder, Run, Stats, TraceRecorder

logger = logging.getLogger("nowait")

HOPELESS = 1e20
"""A loss so many times higher than at the start means that the run diverged."""


class Workforce(Protocol):
    """The engine's side of ``control``: it lets workers join and leave."""

    def add_worker(self) -> None:
        """A worker with a new number joins."""

    def remove_worker(self, worker: int) -> None:
        """This worker leaves."""


@final
@dataclass
class Parts:
    """What a run is made of, as the engines need it."""

    problem: Any
    server: Server
    recorder: TraceRecorder
    budget: Budget
    evaluations: EvaluationPlan
    callbacks: tuple[Callback, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    replaying: bool = False
    """A replay ends where its trace does, whatever the losses are."""


@final
class Session:
    """One run from start to end. The engine feeds it events and executes the commands it returns."""

    def __init__(self, parts: Parts, workforce: Workforce) -> None:
        self._parts = parts
        self.server = parts.server
        self._workforce = workforce
        self._history = HistoryRecorder()
        self._hooks = _Hooks(parts.callbacks)
        self._steps_seen = 0
        self._dropped_seen = 0
        self._due = _Due()
        self.loss: float | None = None
        """The latest loss evaluated."""
        self.finished = False
        self.advice = ""

    # What engines call

    def start(self) -> list[Command]:
        """Begin the run and evaluate the initial params."""
        commands = self.server.start()
        self._evaluate()
        return commands

    def handle(self, event: Event) -> list[Command]:
        """Pass an event to the server, then see to evaluations, callbacks and the end of the run."""
        server, due = self.server, self._due
        commands = server.handle(event)
        if self._hooks.any:
            self._call_hooks(event)
        if (
            server.steps >= due.steps
            or server.counts.gradients >= due.gradients
            or server.now >= due.time
            or server.diverged is not None
        ):
            self._look()
        return commands

    def stop(self, advice: str = "") -> None:
        """End the run after this event; say why if that was not the plan."""
        self.finished = True
        if advice and not self.advice:
            self.advice = advice
            logger.warning(advice)

    def result(self, seconds: float, wall_seconds: float, way: str) -> Run:
        """The finished run."""
        server = self.server
        if server.diverged is None and self._history.entries[-1][0] != server.steps:
            self._evaluate()
        if server.steps == 0 and not self.advice:
            self.stop("no step was made: the budget ended before the method had the gradients for one")
        trace = self._parts.recorder.trace(seconds, norm(server.params))
        counts = server.counts
        valid = trace.worker[np.isin(trace.outcome, ("applied", "held", "dropped"))]
        work = np.bincount(valid, minlength=int(max(trace.initial_workers, default=-1)) + 1)
        return Run(
            params=server.finish(),
            last=server.params.copy(),
            trace=trace,
            history=self._history.history(),
            stats=Stats(
                steps=server.steps,
                gradients=counts.gradients,
                dropped=counts.dropped,
                rejected=counts.rejected,
                late=counts.late,
                lost=counts.lost,
                cancelled=counts.cancelled,
                seconds=seconds,
                wall_seconds=wall_seconds,
                work_share=work / max(1, work.sum()),
                way=way,
                diverged=server.diverged is not None or not self._is_reasonable(self._history.entries[-1][3]),
                advice=self.advice,
                bytes_up=len(trace) * message_bytes(self._parts.problem, server.params),
                bytes_down=server.num_tickets * server.params.nbytes,
            ),
            config=self._parts.config,
        )

    # Evaluations and the end of the run

    def _look(self) -> None:
        server, budget = self.server, self._parts.budget
        if server.diverged is not None:
            self._diverge(server.diverged)
            return
        self.finished = self.finished or budget.exhausted(server.steps, server.counts.gradients)
        new_params = server.stepped_at == server.now and self._history.entries[-1][0] != server.steps
        if new_params and (self.finished or self._due.for_evaluation(server)):
            self._evaluate()

    def _evaluate(self) -> None:
        server, budget = self.server, self._parts.budget
        loss = self.loss = _as_number(self._parts.problem.loss(server.params))
        self._history.add(server.steps, server.counts.gradients, server.stepped_at, loss)
        self._due.plan(server, self._parts.evaluations, budget)
        if not self._is_reasonable(loss) and not self._parts.replaying:
            reason = f"the loss at step {server.steps} is {loss:.3g}"
            server.declare_diverged(reason)
            self._diverge(reason)
        elif budget.target_loss is not None and loss <= budget.target_loss:
            self.finished = True
        _call(self._hooks.on_evaluate, SessionControl(self))

    def _is_reasonable(self, loss: float) -> bool:
        """Finite, and not astronomically higher than at the start."""
        first = abs(self._history.entries[0][3])
        return math.isfinite(loss) and loss <= HOPELESS * max(1.0, first)

    def _diverge(self, reason: str) -> None:
        advice = "Try a stepsize ten times smaller" if self.server.steps else "Look at the problem's gradient"
        self.stop(f"diverged after {self.server.steps} steps: {reason}. {advice}")

    # Callbacks

    def _call_hooks(self, event: Event) -> None:
        hooks, server = self._hooks, self.server
        control = SessionControl(self)
        if server.steps != self._steps_seen:
            self._steps_seen = server.steps
            _call(hooks.on_step, control)
        if server.counts.dropped != self._dropped_seen and isinstance(event, GradientArrived):
            self._dropped_seen = server.counts.dropped
            _call(hooks.on_gradient_dropped, control, event.ticket.worker)
        if isinstance(event, WorkerJoined):
            _call(hooks.on_worker_join, control, event.worker)
        if isinstance(event, WorkerLost):
            _call(hooks.on_worker_lost, control, event.worker)

    def add_workers(self, count: int) -> None:
        """For ``control``."""
        for _ in range(checks.at_least(1, count, "count", "it is the number of workers to add")):
            self._workforce.add_worker()

    def remove_worker(self, worker: int) -> None:
        """For ``control``."""
        if worker not in self.server.workers:
            raise ValueError(f"cannot remove worker {worker!r}: the live workers are {list(self.server.workers)}")
        self._workforce.remove_worker(worker)


@final
@dataclass(slots=True)
class _Due:
    """Up to which counts nothing needs to be looked at."""

    steps: float = 0.0
    gradients: float = 0.0
    time: float = 0.0
    evaluation: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def plan(self, server: Server, evaluations: EvaluationPlan, budget: Budget) -> None:
        """The next evaluation, counted from now, and the end of the budget."""
        gradients = server.counts.gradients
        self.evaluation = (
            _next_multiple(server.steps, evaluations.steps),
            _next_multiple(gradients, evaluations.gradients),
            server.now + evaluations.seconds,
        )
        steps, gradients_due, self.time = self.evaluation
        self.steps = min(steps, budget.steps or math.inf)
        self.gradients = min(gradients_due, budget.gradients or math.inf)

    def for_evaluation(self, server: Server) -> bool:
        """Is an evaluation due?"""
        steps, gradients, time = self.evaluation
        return server.steps >= steps or server.counts.gradients >= gradients or server.now >= time


def _next_multiple(count: int, every: float) -> float:
    return (count // every + 1) * every if every < math.inf else math.inf


@final
class _Hooks:
    """The hooks that somebody overrode, found once, so that the others cost nothing."""

    def __init__(self, callbacks: tuple[Callback, ...]) -> None:
        self.on_step = _overridden(callbacks, "on_step")
        self.on_evaluate = _overridden(callbacks, "on_evaluate")
        self.on_worker_join = _overridden(callbacks, "on_worker_join")
        self.on_worker_lost = _overridden(callbacks, "on_worker_lost")
        self.on_gradient_dropped = _overridden(callbacks, "on_gradient_dropped")
        self.any = bool(self.on_step or self.on_worker_join or self.on_worker_lost or self.on_gradient_dropped)


def _overridden(callbacks: tuple[Callback, ...], name: str) -> list[Callable[..., Any]]:
    hooks = [getattr(callback, name) for callback in callbacks]
    return [hook for hook in hooks if getattr(hook, "__func__", None) is not getattr(Callback, name)]


def _as_number(loss: Any) -> float:
    if np.ndim(loss) != 0 or loss is None:
        raise TypeError(f"the problem's loss(point) must return a number, got {type(loss).__name__}")
    return float(loss)


def _call(hooks: list[Callable[..., Any]], *arguments: Any) -> None:
    for hook in hooks:
        hook(*arguments)


@final
class SessionControl:
    """What callbacks receive; see ``nowait.recording.Control``."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def steps(self) -> int:
        """Steps made so far."""
        return self._session.server.steps

    @property
    def gradients(self) -> int:
        """Valid gradients so far."""
        return self._session.server.counts.gradients

    @property
    def time(self) -> float:
        """Seconds since the start."""
        return self._session.server.now

    @property
    def num_workers(self) -> int:
        """The live number of workers."""
        return self._session.server.num_workers

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of the live workers."""
        return tuple(self._session.server.workers)

    @property
    def params(self) -> Vector:
        """The current params, read-only."""
        return self._session.server.params

    @property
    def loss(self) -> float | None:
        """The latest loss evaluated."""
        return self._session.loss

    def add_workers(self, count: int) -> None:
        """Let this many new workers join."""
        self._session.add_workers(count)

    def remove_worker(self, worker: int) -> None:
        """Let a worker leave."""
        self._session.remove_worker(worker)

    def stop(self) -> None:
        """End the run."""
        self._session.stop()
