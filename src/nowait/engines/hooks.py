"""The user's callbacks: which hooks are called after an event, and the ``control`` object they receive."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

from numpy.typing import NDArray

from nowait.core import GradientArrived, WorkerJoined, WorkerLost, checks
from nowait.core.ledger import Counts
from nowait.core.memory import to_host
from nowait.core.notes import Note
from nowait.core.problem import checked_metrics
from nowait.core.types import Vector
from nowait.engines.run_server import RunCounters
from nowait.recording import Callback, Control, History, Run
from nowait.recording.worker_stats import WorkerStats

if TYPE_CHECKING:
    from nowait.engines.session import Session

logger = logging.getLogger("nowait")


class WorkerControl(Protocol):
    """What an engine offers to ``control``: adding and removing workers."""

    def add_worker(self) -> None:
        """Add a worker with a new number."""

    def remove_worker(self, worker: int) -> None:
        """Remove this worker."""


@final
class FixedWorkers:
    """The ``WorkerControl`` of a run whose workers cannot be changed; the errors say why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def add_worker(self) -> None:
        """Raise a RuntimeError."""
        raise RuntimeError(f"{self._reason}: workers cannot be added")

    def remove_worker(self, worker: int) -> None:
        """Raise a RuntimeError."""
        raise RuntimeError(f"{self._reason}: worker {worker} cannot be removed")


@final
class Hooks:
    """Calls the hooks that callbacks override. They are looked up once, so that the others cost nothing."""

    def __init__(self, callbacks: tuple[Callback, ...]) -> None:
        self._on_start = _overridden(callbacks, "on_start")
        self._on_end = _overridden(callbacks, "on_end")
        self._on_step = _overridden(callbacks, "on_step")
        self._on_evaluate = _overridden(callbacks, "on_evaluate")
        self._extra_metrics = _overridden(callbacks, "extra_metrics")
        self._on_checkpoint = _overridden(callbacks, "on_checkpoint")
        self._on_worker_join = _overridden(callbacks, "on_worker_join")
        self._on_worker_lost = _overridden(callbacks, "on_worker_lost")
        self._on_gradient_dropped = _overridden(callbacks, "on_gradient_dropped")
        self.follow_events = bool(
            self._on_step or self._on_worker_join or self._on_worker_lost or self._on_gradient_dropped
        )
        """True if ``handled`` has anything to call."""
        self._steps = 0
        self._dropped = 0
        self._is_running = False
        """True from ``started`` to ``ended`` or ``failed``."""
        self._ended_by: Callable[..., Any] | None = None
        """The hook of ``on_evaluate`` that ended the run."""

    def started(self, control: Control) -> None:
        """Call the hooks for the start of the run."""
        self._is_running = True
        _call(self._on_start, control)

    def ended(self, control: Control, run: Run) -> None:
        """Call the hooks for the end of the run."""
        self._is_running = False
        _call(self._on_end, control, run)

    def failed(self, control: Control) -> None:
        """Call the hooks for a run that an exception ended. Their own exceptions are logged, not raised."""
        if not self._is_running:
            return
        self._is_running = False
        for hook in self._on_end:
            try:
                hook(control, None)
            except Exception as error:
                logger.warning("the run failed, and then a callback's on_end did as well: %r", error)

    def resumed(self, server: RunCounters) -> None:
        """Take the counts of a resumed run as already reported."""
        self._steps, self._dropped = server.steps, server.counts.dropped

    def handled(self, event: object, server: RunCounters, control: Control) -> None:
        """Call the hooks for what an event changed."""
        if server.steps != self._steps:
            self._steps = server.steps
            _call(self._on_step, control)
        if server.counts.dropped != self._dropped and isinstance(event, GradientArrived):
            self._dropped = server.counts.dropped
            _call(self._on_gradient_dropped, control, event.ticket.worker)
        if isinstance(event, WorkerJoined):
            _call(self._on_worker_join, control, event.worker)
        if isinstance(event, WorkerLost):
            _call(self._on_worker_lost, control, event.worker)

    def evaluated(self, control: Control, is_finished: Callable[[], bool]) -> None:
        """Call the hooks for a new evaluation, but not the one that ended the run: it has seen its last evaluation."""
        for hook in self._on_evaluate:
            if hook is self._ended_by:
                continue
            was_finished = is_finished()
            hook(control)
            if is_finished() and not was_finished:
                self._ended_by = hook

    def extra_metrics(self, control: Control, step: int) -> dict[str, float]:
        """Return the metrics that callbacks add to an evaluation."""
        found: dict[str, float] = {}
        for hook in self._extra_metrics:
            found |= checked_metrics(hook(control, step), "a callback's extra_metrics")
        if "loss" in found:
            raise ValueError("a callback's extra_metrics cannot replace the loss: choose another name than 'loss'")
        return found

    def checkpointed(self, control: Control, paths: list[Path]) -> None:
        """Call the hooks for checkpoints that were written."""
        for path in paths:
            _call(self._on_checkpoint, control, path)


def _overridden(callbacks: tuple[Callback, ...], name: str) -> list[Callable[..., Any]]:
    hooks = [getattr(callback, name) for callback in callbacks]
    return [hook for hook in hooks if getattr(hook, "__func__", None) is not getattr(Callback, name)]


def _call(hooks: list[Callable[..., Any]], *arguments: Any) -> None:
    for hook in hooks:
        hook(*arguments)


@final
class SessionControl:
    """The ``control`` that callbacks receive: see ``nowait.recording.Control`` for what its attributes mean."""

    __slots__ = ("_session",)

    def __init__(self, session: Session[Any]) -> None:
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
    def counts(self) -> Counts:
        """A copy of the counts so far."""
        return replace(self._session.server.counts)

    @property
    def time(self) -> float:
        """Seconds since the start."""
        return self._session.server.now

    @property
    def num_workers(self) -> int:
        """The live number of workers."""
        return len(self._session.workers)

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of the live workers."""
        return tuple(self._session.workers)

    @property
    def params(self) -> Vector:
        """x_k of the latest step, read-only; a copy if params are on a device."""
        return to_host(self._session.server.params)

    @property
    def loss(self) -> float | None:
        """The latest loss evaluated."""
        return self._session.loss

    @property
    def loss_step(self) -> int | None:
        """The k of the x_k that ``loss`` was evaluated at."""
        return self._session.loss_step

    @property
    def metrics(self) -> dict[str, float]:
        """The other metrics of that evaluation, by name."""
        return dict(self._session.metrics)

    @property
    def history(self) -> History:
        """All evaluations so far."""
        return self._session.history

    @property
    def training_loss(self) -> float | None:
        """The mean loss of the workers' gradients since the latest evaluation."""
        return self._session.training_losses.latest

    @property
    def last_note(self) -> Note | None:
        """The latest decision that the method noted."""
        return self._session.last_note

    @property
    def by_worker(self) -> tuple[WorkerStats, ...]:
        """Where each worker is, how much it has delivered, and where its time goes."""
        return self._session.by_worker(self._session.server.now)

    @property
    def config(self) -> dict[str, Any]:
        """What is run, as text and numbers."""
        return self._session.config

    @property
    def folder(self) -> Path | None:
        """The folder of the run."""
        return self._session.folder

    def recent(self, column: str, count: int = 2_000) -> NDArray[Any]:
        """Return a column of the trace for the latest arrivals."""
        return self._session.recent(column, count)

    def add_workers(self, count: int) -> None:
        """Add this many new workers."""
        for _ in range(checks.at_least(1, count, "count", "it is the number of workers to add")):
            self._session.worker_control.add_worker()

    def remove_worker(self, worker: int) -> None:
        """Remove a worker."""
        if worker not in self._session.workers:
            raise ValueError(f"cannot remove worker {worker!r}: the live workers are {list(self.workers)}")
        self._session.worker_control.remove_worker(worker)

    def stop(self) -> None:
        """End the run after this event."""
        self._session.stop()
