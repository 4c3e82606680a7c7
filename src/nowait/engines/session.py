"""What every engine does around its server: budgets, evaluations, callbacks, checkpoints and the record of the run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar, final

from numpy.typing import NDArray

from nowait.core import Command, TimerFired
from nowait.core.membership import WorkerSet
from nowait.core.memory import to_host
from nowait.core.notes import Note
from nowait.core.problem import TRAINING_LOSS, Evaluation, evaluation
from nowait.core.standstill import Standstill
from nowait.core.types import Vector
from nowait.engines.due import Due
from nowait.engines.hooks import Hooks, SessionControl, WorkerControl
from nowait.engines.parts import Parts
from nowait.engines.results import Ending, build_run, is_reasonable
from nowait.engines.run_server import RunRecorder, RunServer
from nowait.engines.training_losses import TrainingLosses
from nowait.recording import History, HistoryRecorder, Run
from nowait.recording.checkpoints import Checkpoint
from nowait.recording.outlying import Outlier, first_outlier
from nowait.recording.worker_stats import WorkerStats

__all__ = ["Evaluator", "Parts", "Session", "Snapshot", "WorkerControl"]

logger = logging.getLogger("nowait")

EventT = TypeVar("EventT")
"""What the server of a session handles: an ``Event``, or a stretch of a plan."""


class Evaluator(Protocol):
    """Evaluates the loss during the run, and passes it to ``Session.evaluated``."""

    def evaluate(self, snapshot: Snapshot) -> None:
        """Start to evaluate the current params. Called again only after the result."""


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counts and the time at which params were taken for an evaluation."""

    step: int
    gradients: int
    time: float


@final
class Session(Generic[EventT]):
    """One run from start to end. The engine feeds it events and executes the commands it returns.

    ``server`` and ``recorder`` are those of the parts, or the playback of a plan.
    """

    def __init__(
        self,
        parts: Parts,
        server: RunServer[EventT],
        recorder: RunRecorder,
        worker_control: WorkerControl,
        evaluator: Evaluator | None = None,
        standstill: Standstill | None = None,
    ) -> None:
        self._parts = parts
        self.server = server
        self._recorder = recorder
        self._worker_control: WorkerControl | None = worker_control
        self._evaluator = evaluator
        self._has_real_workers = evaluator is not None
        """False in a simulation, where no worker can compute wrongly."""
        self.interrupted = False
        self._signal = ""
        """The signal that ended the run."""
        self._saved = self._is_resumed = False
        self._evaluated_step = -1
        self._keeper = parts.keeper
        self._history = HistoryRecorder()
        self._evaluation = evaluation(parts.problem, parts.capabilities)
        self._hooks = Hooks(parts.callbacks)
        self._watched = self._hooks.follow_events or self._keeper is not None
        self._due = Due()
        self._standstill = standstill
        """None: nobody looks for a standstill, because the events are those of a plan or a trace."""
        self._told = False
        """Whether the warning of a standstill was given."""
        self._first_commands: list[Command] = []
        self.loss: float | None = None
        """The latest loss evaluated."""
        self.metrics: Mapping[str, float] = {}
        """The other metrics of the same evaluation."""
        self.training_losses = TrainingLosses()
        self.finished = False
        self.advice = ""
        self._last: Vector | None = None
        """The last params, once the run is over."""

    # What engines call

    def begin(self) -> None:
        """Start the server, or let it continue from a checkpoint, and call the ``on_start`` hooks.

        Engines call it before their clock starts: hooks may take seconds.
        """
        checkpoint = self._parts.checkpoint
        if checkpoint is not None:
            self._parts.checkpoint = checkpoint.without_vectors()
            if self._keeper is not None:
                self._keeper.rewind(checkpoint, self._parts.recorder, self._parts.config)
        if checkpoint is None or checkpoint.is_start:
            self._first_commands = self.server.start()
        else:
            self._first_commands = self._parts.server.resume(checkpoint.state)
            self._continue(checkpoint)
        self._hooks.started(SessionControl(self))

    def _continue(self, checkpoint: Checkpoint) -> None:
        """Take over the evaluations of a resumed run."""
        self._is_resumed = True
        self._history = checkpoint.history
        self._hooks.resumed(self.server)
        if self._history.entries:
            self._evaluated_step, self.loss = self._history.entries[-1][0], self._history.entries[-1][3]
            self.metrics = self._history.metrics[-1]

    def start(self) -> list[Command]:
        """Return the first commands. Evaluates the initial params, or those of the checkpoint if nobody did."""
        if self._keeper is not None:
            self._keeper.folder.begin()
        if self._standstill is not None:
            self._due.look = self._standstill.next_look(self._parts.server)
        if self._evaluated_step != self.server.steps:
            self._evaluate()
        else:
            self._due.plan(self.server, self._parts.evaluations, self._parts.budget)
        if self._is_resumed:
            self._start_again()
        elif self._keeper is not None:
            self._hooks.checkpointed(SessionControl(self), self._keeper.start(self._parts.server))
        return self._first_commands

    def _start_again(self) -> None:
        if self._keeper is not None:
            self._keeper.plan(self._parts.server)
        self.finished = self.finished or self._parts.budget.exhausted(self.server.steps, self.server.counts.gradients)

    def handle(self, event: EventT) -> list[Command]:
        """Pass an event to the server; then call hooks, write checkpoints, evaluate and end the run where due."""
        server, due = self.server, self._due
        commands = server.handle(event)
        if self._watched:
            self._watch(event)
        if type(event) is TimerFired and self._standstill is not None:
            self._standstill.timer_expired(self._parts.server)
            self._look_for_standstill()
        if (
            server.steps >= due.steps
            or server.counts.gradients >= due.gradients
            or server.now >= due.time
            or server.diverged is not None
        ):
            self._check()
        return commands

    def _watch(self, event: EventT) -> None:
        if self._keeper is not None and self._keeper.is_due(self._parts.server):
            self._checkpoint(in_background=True)
        if self._hooks.follow_events:
            self._hooks.handled(event, self.server, SessionControl(self))

    def _look_for_standstill(self) -> None:
        """Warn once of a method that makes no progress; end a simulation that would never end."""
        assert self._standstill is not None
        server, budget = self._parts.server, self._parts.budget
        if not self._told and (reason := self._standstill.reason(server)):
            self._told = True
            if not self._parts.quiet:
                logger.warning(reason)
        if self._standstill.is_hopeless(
            server, seconds_end_it=budget.seconds is not None, gradients_end_it=budget.gradients is not None
        ):
            self.stop(f"the run was ended, because it would never end: {self._standstill.reason(server)}")

    def stop(self, advice: str = "") -> None:
        """End the run after this event. ``advice`` says why, if it ends before its budget is used up."""
        self.finished = True
        if advice and not self.advice:
            self.advice = advice
            if not self._parts.quiet:
                logger.warning(advice, extra={"by_signal": self.interrupted})

    @property
    def due(self) -> tuple[float, float, float]:
        """The steps, gradients and seconds below which nothing needs to be checked."""
        return self._due.steps, self._due.gradients, self._due.time

    @property
    def loss_step(self) -> int | None:
        """The k of the x_k that the latest loss was evaluated at."""
        return self._history.entries[-1][0] if self._history.entries else None

    @property
    def shown_metrics(self) -> dict[str, float]:
        """The latest metrics and the current training loss, for the live view."""
        training_loss = self.training_losses.latest
        return {**self.metrics, **({} if training_loss is None else {TRAINING_LOSS: training_loss})}

    @property
    def workers(self) -> WorkerSet:
        """The live workers."""
        return self._parts.server.workers

    @property
    def history(self) -> History:
        """The evaluations so far."""
        return self._history.history()

    @property
    def config(self) -> dict[str, Any]:
        """What is run, as text and numbers."""
        return dict(self._parts.config)

    @property
    def folder(self) -> Path | None:
        """The folder of the run; None without one."""
        return None if self._keeper is None else self._keeper.folder.path

    def recent(self, column: str, count: int) -> NDArray[Any]:
        """Return a column of the trace for the latest arrivals."""
        return self._parts.recorder.recent(column, count)

    @property
    def last_note(self) -> Note | None:
        """The latest decision that the method noted."""
        return self._parts.recorder.last_note

    def by_worker(self, now: float) -> tuple[WorkerStats, ...]:
        """Return where each worker is, how much it has delivered, and where its time goes."""
        return self._parts.recorder.by_worker(now)

    @property
    def worker_control(self) -> WorkerControl:
        """The engine's functions to add and remove workers; an error once the run is over."""
        if self._worker_control is None:
            raise RuntimeError("the run is over: workers cannot be added or removed any more")
        return self._worker_control

    def close(self) -> None:
        """Break the reference cycle with the engine, and release the memory of params."""
        self._worker_control = self._evaluator = None
        self._parts.server.close(self._last)

    def interrupt(self, signal: str) -> None:
        """End the run because of a signal."""
        self.interrupted = self.finished = True
        self._signal = self._signal or signal

    def save(self) -> None:
        """Write the last checkpoint, once."""
        if not self._saved:
            self._checkpoint()
            self._saved = True

    def result(self, seconds: float, engine: str) -> Run:
        """Return the finished run, and write it to its folder."""
        server = self.server
        if self._signal:  # only now the number of steps is final
            self.stop(f"{self._signal} ended the run after {server.steps} steps")
        self.save()
        if server.diverged is None and self.loss_step != server.steps:
            self._evaluate_last()
        if server.steps == 0 and not self.advice and not self._parts.budget.has_target:
            in_time = server.counts.gradients or not server.counts.cancelled
            cause = "" if in_time else self._parts.server.method.why_no_step()
            text = "no step was made: the budget ended before the method had the gradients for one"
            self.stop(f"{text}. {cause}" if cause else text)
        ending = Ending(
            seconds=seconds,
            wall_seconds=perf_counter() - self._parts.called,
            engine=engine,
            diverged=server.diverged is not None or not self._is_reasonable(self.loss or 0.0),
            advice=self.advice,
            interrupted=self.interrupted,
        )
        run = build_run(self._parts, server, self._recorder, self._history, ending)
        self._last = run.last
        if self._keeper is not None:
            self._keeper.folder.finish(run)
            self._write_files(run)
        self._hooks.ended(SessionControl(self), run)
        return run

    @contextlib.contextmanager
    def calling_on_end(self) -> Iterator[None]:
        """Call the ``on_end`` hooks if an exception leaves the block before ``result`` has called them."""
        try:
            yield
        except BaseException:
            self._hooks.failed(SessionControl(self))
            raise

    def _write_files(self, run: Run) -> None:
        """Let the problem write its own files, after the run itself is saved."""
        write_files = self._parts.capabilities.write_files
        if write_files is None or run.stats.diverged or self._keeper is None:
            return
        try:
            write_files(run.params, self._keeper.folder.path)
        except Exception as error:
            logger.warning("the run is saved, but %s.write_files failed: %r", type(self._parts.problem).__name__, error)

    def _checkpoint(self, *, in_background: bool = False) -> None:
        if self._keeper is None or self.server.diverged is not None:
            return
        made = self._keeper.checkpoint(
            self._parts.server, self._parts.recorder, self._history, in_background=in_background
        )
        self._hooks.checkpointed(SessionControl(self), made)

    # Evaluations and the end of the run

    def _evaluate_last(self) -> None:
        """Evaluate the last params in this process. If a signal ended the run, a second signal skips this."""
        self._evaluator = None
        try:
            self._evaluate()
        except KeyboardInterrupt:
            if not self.interrupted:
                raise

    def _check(self) -> None:
        """Evaluate the loss if it is due, and end the run if the budget is used up or the run diverged."""
        server, budget = self.server, self._parts.budget
        if server.diverged is not None:
            self._diverge(server.diverged, server.steps)
            return
        if self._standstill is not None and server.counts.gradients >= self._due.look:
            self._standstill.gradients_arrived(self._parts.server)
            self._due.look_at(self._standstill.next_look(self._parts.server))
            self._look_for_standstill()
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
            self._evaluate_here(snapshot, to_host(server.params))
        else:
            self._due.pause()
            self._evaluator.evaluate(snapshot)

    def _evaluate_here(self, snapshot: Snapshot, params: Vector) -> None:
        """Evaluate params in this process."""
        found = self._evaluation(params)
        if self._parts.best is not None:
            self._parts.best.offer(snapshot.step, found, params, self._parts.capabilities.write_model)
        self.evaluated(snapshot, found.loss, found.metrics)

    def evaluated(self, snapshot: Snapshot, loss: float, metrics: Mapping[str, float] | None = None) -> None:
        """Record the evaluation of a snapshot; end the run if it reached its target or diverged."""
        server, training_loss = self.server, self.training_losses.take()
        of_workers = {} if training_loss is None else {TRAINING_LOSS: training_loss}
        extra = self._hooks.extra_metrics(SessionControl(self), snapshot.step)
        self.loss, self.metrics = loss, {**(metrics or {}), **of_workers, **extra}
        self._history.add(snapshot.step, snapshot.gradients, snapshot.time, loss, self.metrics)
        if self._keeper is not None:
            self._keeper.folder.evaluated(snapshot.step, snapshot.gradients, snapshot.time, loss, self.metrics)
        self._due.unpause()
        if not self._is_reasonable(loss) and not self._parts.replaying:
            reason = f"the loss at step {snapshot.step} is {loss:.3g}"
            server.declare_diverged(reason)
            self._diverge(reason, snapshot.step)
        elif self._parts.budget.reached(Evaluation(loss, dict(self.metrics))):
            self.finished = True
        self._hooks.evaluated(SessionControl(self), lambda: self.finished)

    def _is_reasonable(self, loss: float) -> bool:
        return is_reasonable(loss, self._history.entries[0][3] if self._history.entries else 0.0)

    def _diverge(self, reason: str, step: int) -> None:
        """End the run; ``step`` is the k of the x_k whose loss or gradients are the reason."""
        if step == 0:
            self.stop(f"not finite before the first step: {reason}. Look at the problem's gradient and loss")
        else:
            self.stop(f"diverged after {self.server.steps} steps: {reason}. {self._what_to_try()}")

    def _outlier(self) -> Outlier | None:
        recorder = self._parts.recorder
        names = ("worker", "version", "delay", "gradient_norm")
        return first_outlier(*(recorder.recent(name, recorder.num_arrivals) for name in names))

    def _what_to_try(self) -> str:
        """Return what to do about a run that diverged: a worker whose gradients are far too large may be the cause."""
        outlier = self._outlier() if self._has_real_workers else None
        if outlier is None:
            return "Try a stepsize ten times smaller"
        return (
            f"Before that, worker {outlier.worker} sent a gradient {outlier.times:.0e} times as large as those of the "
            f"other workers at points of the same age: check its data and its machine, then try a smaller stepsize"
        )
