"""What every engine does around its server: budgets, evaluations, callbacks and the record of the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, final

import numpy as np

from nowait.core import Command, Event, GradientArrived, Server, WorkerJoined, WorkerLost, checks
from nowait.core.ledger import Counts
from nowait.core.problem import loss_of, message_bytes
from nowait.core.types import Integers, Vector, norm
from nowait.engines.budget import Budget, EvaluationPlan
from nowait.engines.fingerprint import Identification
from nowait.engines.keeper import Keeper
from nowait.recording import Callback, HistoryRecorder, Run, Stats, TraceRecorder
from nowait.recording.checkpoints import Checkpoint

logger = logging.getLogger("nowait")

HOPELESS = 1e20
"""A loss so many times higher than at the start means that the run diverged."""


def is_reasonable(loss: float, first: float) -> bool:
    """Is a loss finite, and not astronomically higher than the first one?"""
    return math.isfinite(loss) and loss <= HOPELESS * max(1.0, abs(first))


class Workforce(Protocol):
    """The engine's side of ``control``: it lets workers join and leave."""

    def add_worker(self) -> None:
        """A worker with a new number joins."""

    def remove_worker(self, worker: int) -> None:
        """This worker leaves."""


class Evaluator(Protocol):
    """Evaluates the loss beside the run. Its answers come back through ``Session.evaluated``."""

    def begin(self, snapshot: Snapshot) -> None:
        """Evaluate the params as they are now. Called again only after the answer."""


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """When params were evaluated."""

    step: int
    gradients: int
    time: float


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
    quiet: bool = False
    """Advice is not logged: the run is one of many."""
    keeper: Keeper | None = None
    """Who writes the run to disk while it goes on."""
    checkpoint: Checkpoint | None = None
    """Where the run goes on, if it is resumed."""
    identification: Identification | None = None
    """Records the problem's fingerprint, or compares it with that of the run; for engines with worker processes."""
    called: float = field(default_factory=perf_counter)
    """When the user called for the run, by ``perf_counter``; loading, compiling and starting processes come after."""


@final
class Session:
    """One run from start to end. The engine feeds it events and executes the commands it returns."""

    def __init__(self, parts: Parts, workforce: Workforce, evaluator: Evaluator | None = None) -> None:
        self._parts = parts
        self.server = parts.server
        self._workforce: Workforce | None = workforce
        self._evaluator = evaluator
        self.interrupted = False
        self._evaluated_step = -1
        self._keeper = parts.keeper
        self._history = HistoryRecorder()
        self._hooks = _Hooks(parts.callbacks)
        self._watched = self._hooks.any or self._keeper is not None
        self._steps_seen = 0
        self._dropped_seen = 0
        self._due = Due()
        self.loss: float | None = None
        """The latest loss evaluated."""
        self.finished = False
        self.advice = ""
        self._last: Vector | None = None
        """The last params, once the run is over."""

    # What engines call

    def start(self) -> list[Command]:
        """Begin the run and evaluate the initial params; or go on where it was resumed."""
        checkpoint = self._parts.checkpoint
        if self._keeper is not None:
            if checkpoint is not None:
                self._keeper.rewind(checkpoint, self._parts.recorder, self._parts.config)
            self._keeper.folder.begin()
        if checkpoint is not None and not checkpoint.is_start:
            return self._resume(checkpoint)
        commands = self.server.start()
        self._evaluate()
        if self._keeper is not None:
            self._announce(self._keeper.start(self.server))
        return commands

    def _resume(self, checkpoint: Checkpoint) -> list[Command]:
        commands = self.server.resume(checkpoint.state)
        self._history = checkpoint.history
        self._steps_seen, self._dropped_seen = self.server.steps, self.server.counts.dropped
        if self._history.entries:
            self._evaluated_step, self.loss = self._history.entries[-1][0], self._history.entries[-1][3]
        if self._evaluated_step != self.server.steps:
            self._evaluate()
        else:
            self._due.plan(self.server, self._parts.evaluations, self._parts.budget)
        if self._keeper is not None:
            self._keeper.plan(self.server)
        self.finished = self.finished or self._parts.budget.exhausted(self.server.steps, self.server.counts.gradients)
        return commands

    def handle(self, event: Event) -> list[Command]:
        """Pass an event to the server, then see to evaluations, callbacks and the end of the run."""
        server, due = self.server, self._due
        commands = server.handle(event)
        if self._watched:
            self._watch(event)
        if (
            server.steps >= due.steps
            or server.counts.gradients >= due.gradients
            or server.now >= due.time
            or server.diverged is not None
        ):
            self._look()
        return commands

    def _watch(self, event: Event) -> None:
        if self._keeper is not None and self._keeper.is_due(self.server):
            self._checkpoint(in_background=True)
        if self._hooks.any:
            self._call_hooks(event)

    def stop(self, advice: str = "") -> None:
        """End the run after this event; say why if that was not the plan."""
        self.finished = True
        if advice and not self.advice:
            self.advice = advice
            if not self._parts.quiet:
                logger.warning(advice)

    @property
    def due(self) -> tuple[float, float, float]:
        """How many steps, gradients and seconds may pass until something has to be looked at."""
        return self._due.steps, self._due.gradients, self._due.time

    @property
    def loss_step(self) -> int | None:
        """How many steps the params contained that the latest loss was evaluated at."""
        return self._history.entries[-1][0] if self._history.entries else None

    def let_go(self) -> None:
        """The run is over: break the reference cycle with the engine, and release the memory of params."""
        self._workforce = self._evaluator = None
        self.server.close(self._last)

    def interrupt(self, signal: str) -> None:
        """A signal asks the run to end."""
        self.interrupted = True
        self.stop(f"{signal} ended the run after {self.server.steps} steps")

    def _checkpoint(self, *, in_background: bool = False) -> None:
        if self._keeper is None or self.server.diverged is not None:
            return
        made = self._keeper.checkpoint(self.server, self._parts.recorder, self._history, in_background=in_background)
        self._announce(made)

    def _announce(self, checkpoints: list[Path]) -> None:
        for path in checkpoints:
            _call(self._hooks.on_checkpoint, SessionControl(self), path)

    def result(self, seconds: float, way: str) -> Run:
        """The finished run."""
        server = self.server
        self._checkpoint()
        if server.diverged is None and self._evaluated_step != server.steps and not self._may_skip_the_last_loss():
            self._evaluator = None
            self._evaluate()
        if server.steps == 0 and not self.advice and self._parts.budget.target_loss is None:
            self.stop("no step was made: the budget ended before the method had the gradients for one")
        counts, tally, last_norm = server.counts, self._parts.recorder.tally(), norm(server.params)
        if self._keeper is not None:
            self._parts.recorder.finish(seconds, last_norm)
        trace = self._parts.recorder.trace(seconds, last_norm)
        work = _padded(tally.valid, int(max(trace.initial_workers, default=-1)) + 1)
        run = Run(
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
                wall_seconds=perf_counter() - self._parts.called,
                work_share=work / max(1, work.sum()),
                way=way,
                diverged=server.diverged is not None or not self._is_reasonable(self.loss or 0.0),
                advice=self.advice,
                bytes_up=tally.arrivals * message_bytes(self._parts.problem, server.params),
                interrupted=self.interrupted,
                bytes_down=(server.num_tickets - tally.repeats) * server.params.nbytes,
            ),
            config=self._parts.config,
        )
        self._last = run.last
        if self._keeper is not None:
            self._keeper.folder.finish(run)
            self._write_files(run)
        return run

    def _write_files(self, run: Run) -> None:
        """What the problem itself has to write; the run is safe by now."""
        write_files = getattr(self._parts.problem, "write_files", None)
        if write_files is None or run.stats.diverged or self._keeper is None:
            return
        try:
            write_files(run.params, self._keeper.folder.path)
        except Exception as error:
            logger.warning("the run is saved, but %s.write_files failed: %r", type(self._parts.problem).__name__, error)

    # Evaluations and the end of the run

    def _may_skip_the_last_loss(self) -> bool:
        """Somebody who ended the run by a signal does not want to wait for it, if there is an earlier one."""
        return self.interrupted and self.loss is not None

    def _look(self) -> None:
        server, budget = self.server, self._parts.budget
        if server.diverged is not None:
            self._diverge(server.diverged, server.steps)
            return
        self.finished = self.finished or budget.exhausted(server.steps, server.counts.gradients)
        new_params = server.stepped_at == server.now and self._evaluated_step != server.steps
        if self._due.paused or (self.finished and self._evaluator is not None):
            return
        if new_params and (self.finished or self._due.for_evaluation(server)):
            self._evaluate()

    def _evaluate(self) -> None:
        server = self.server
        snapshot = Snapshot(server.steps, server.counts.gradients, server.stepped_at)
        self._evaluated_step = server.steps
        self._due.plan(server, self._parts.evaluations, self._parts.budget)
        if self._evaluator is None:
            self.evaluated(snapshot, loss_of(self._parts.problem, server.params))
        else:
            self._due.pause()
            self._evaluator.begin(snapshot)

    def evaluated(self, snapshot: Snapshot, loss: float) -> None:
        """The loss of the params of a snapshot."""
        server, budget = self.server, self._parts.budget
        self.loss = loss
        self._history.add(snapshot.step, snapshot.gradients, snapshot.time, loss)
        if self._keeper is not None:
            self._keeper.folder.evaluated(snapshot.step, snapshot.gradients, snapshot.time, loss)
        self._due.go_on()
        if not self._is_reasonable(loss) and not self._parts.replaying:
            reason = f"the loss at step {snapshot.step} is {loss:.3g}"
            server.declare_diverged(reason)
            self._diverge(reason, snapshot.step)
        elif budget.target_loss is not None and loss <= budget.target_loss:
            self.finished = True
        _call(self._hooks.on_evaluate, SessionControl(self))

    def _is_reasonable(self, loss: float) -> bool:
        return is_reasonable(loss, self._history.entries[0][3] if self._history.entries else 0.0)

    def _diverge(self, reason: str, step: int) -> None:
        """End the run; ``step`` is how many steps the params contain whose loss or gradients are the reason."""
        if step == 0:
            self.stop(f"not finite before the first step: {reason}. Look at the problem's gradient and loss")
        else:
            self.stop(f"diverged after {self.server.steps} steps: {reason}. Try a stepsize ten times smaller")

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
            self._the_workforce().add_worker()

    def remove_worker(self, worker: int) -> None:
        """For ``control``."""
        if worker not in self.server.workers:
            raise ValueError(f"cannot remove worker {worker!r}: the live workers are {list(self.server.workers)}")
        self._the_workforce().remove_worker(worker)

    def _the_workforce(self) -> Workforce:
        if self._workforce is None:
            raise RuntimeError("the run is over: workers cannot be added or removed any more")
        return self._workforce


class Standing(Protocol):
    """How far a run has come."""

    @property
    def steps(self) -> int:
        """Steps made."""

    @property
    def counts(self) -> Counts:
        """Among them the gradients."""

    @property
    def now(self) -> float:
        """The time of the latest event."""


@final
@dataclass(slots=True)
class Due:
    """Up to which counts nothing needs to be looked at."""

    steps: float = 0.0
    gradients: float = 0.0
    time: float = 0.0
    evaluation: tuple[float, float, float] = (0.0, 0.0, 0.0)
    end: tuple[float, float] = (math.inf, math.inf)
    paused: bool = False

    def plan(self, server: Standing, evaluations: EvaluationPlan, budget: Budget) -> None:
        """The next evaluation, counted from now, and the end of the budget."""
        self.evaluation = (
            _next_multiple(server.steps, evaluations.steps),
            _next_multiple(server.counts.gradients, evaluations.gradients),
            server.now + evaluations.seconds,
        )
        self.end = (budget.steps or math.inf, budget.gradients or math.inf)
        self.go_on()

    def pause(self) -> None:
        """An evaluation is under way: the next one has to wait for it."""
        self.paused = True
        self.steps, self.gradients, self.time = *self.end, math.inf

    def go_on(self) -> None:
        """Evaluate again when it is time."""
        self.paused = False
        steps, gradients, self.time = self.evaluation
        self.steps, self.gradients = min(steps, self.end[0]), min(gradients, self.end[1])

    def for_evaluation(self, server: Standing) -> bool:
        """Is an evaluation due?"""
        steps, gradients, time = self.evaluation
        due = server.steps >= steps or server.counts.gradients >= gradients or server.now >= time
        return due and not self.paused


def _next_multiple(count: int, every: float) -> float:
    return (count // every + 1) * every if every < math.inf else math.inf


@final
class _Hooks:
    """The hooks that somebody overrode, found once, so that the others cost nothing."""

    def __init__(self, callbacks: tuple[Callback, ...]) -> None:
        self.on_step = _overridden(callbacks, "on_step")
        self.on_evaluate = _overridden(callbacks, "on_evaluate")
        self.on_checkpoint = _overridden(callbacks, "on_checkpoint")
        self.on_worker_join = _overridden(callbacks, "on_worker_join")
        self.on_worker_lost = _overridden(callbacks, "on_worker_lost")
        self.on_gradient_dropped = _overridden(callbacks, "on_gradient_dropped")
        self.any = bool(self.on_step or self.on_worker_join or self.on_worker_lost or self.on_gradient_dropped)


def _overridden(callbacks: tuple[Callback, ...], name: str) -> list[Callable[..., Any]]:
    hooks = [getattr(callback, name) for callback in callbacks]
    return [hook for hook in hooks if getattr(hook, "__func__", None) is not getattr(Callback, name)]


def _padded(counts: Integers, size: int) -> Integers:
    """The counts, with zeros up to a size."""
    return np.concatenate([counts, np.zeros(max(0, size - len(counts)), counts.dtype)])


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

    @property
    def loss_step(self) -> int | None:
        """The step of the params it was evaluated at."""
        return self._session.loss_step

    def add_workers(self, count: int) -> None:
        """Let this many new workers join."""
        self._session.add_workers(count)

    def remove_worker(self, worker: int) -> None:
        """Let a worker leave."""
        self._session.remove_worker(worker)

    def stop(self) -> None:
        """End the run."""
        self._session.stop()
