"""Callbacks: hooks that the user adds to a run, and the ``control`` object they receive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from nowait.core import checks
from nowait.core.ledger import Counts
from nowait.core.notes import Note
from nowait.core.types import Vector
from nowait.recording.history import History
from nowait.recording.worker_stats import WorkerStats

if TYPE_CHECKING:
    from nowait.recording.run import Run


class Control(Protocol):
    """What a callback reads of a run and may do to it. Changes take effect after the callback returns."""

    @property
    def steps(self) -> int:
        """Steps made so far."""

    @property
    def gradients(self) -> int:
        """Valid gradients so far."""

    @property
    def counts(self) -> Counts:
        """A copy of the counts so far: ``gradients``, ``dropped``, ``rejected``, ``late``, ``lost``, ``cancelled``."""

    @property
    def time(self) -> float:
        """Seconds since the start, virtual in a simulation."""

    @property
    def num_workers(self) -> int:
        """The live number of workers."""

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of the live workers."""

    @property
    def params(self) -> Vector:
        """x_k, the iterate after the latest step (k = ``steps``), whatever the output rule.

        A read-only view that is valid during the callback: copy it to keep it. The output rule's answer is computed at
        the end of the run: ``run.params``.
        """

    @property
    def loss(self) -> float | None:
        """The latest loss evaluated: F(x_j) with j = ``loss_step``; None before the first evaluation."""

    @property
    def loss_step(self) -> int | None:
        """The step j of the iterate x_j that ``loss`` was evaluated at.

        It may be less than ``steps``: with real workers the loss is evaluated while the run continues.
        """

    @property
    def metrics(self) -> dict[str, float]:
        """The other metrics of the evaluation that ``loss`` is of, by name; empty before the first one."""

    @property
    def history(self) -> History:
        """All evaluations so far."""

    @property
    def training_loss(self) -> float | None:
        """The mean of the losses from which workers computed their gradients since the latest evaluation.

        In ``on_evaluate``, and while no gradient has arrived after it, the mean up to that evaluation. None if there
        is none, or the problem has no ``training_loss()``.
        """

    @property
    def last_note(self) -> Note | None:
        """The latest decision that the method noted, with its numbers; None if there is none."""

    @property
    def by_worker(self) -> tuple[WorkerStats, ...]:
        """Where each worker is, how much it has delivered, and where its time went so far, as in ``run.stats``.

        Empty in a simulation. It reads thousands of arrivals: ask for it at evaluations, not at every step.
        """

    @property
    def config(self) -> dict[str, Any]:
        """What is run, as text and numbers: the ``config`` of the ``Run``."""

    @property
    def folder(self) -> Path | None:
        """The folder that the run is written to while it runs; None without ``folder=``, and in a simulation."""

    def recent(self, column: str, count: int = 2_000) -> NDArray[Any]:
        """Return a column of the trace, such as "delay" or "stepsize", for the latest arrivals: at most ``count``."""

    def add_workers(self, count: int) -> None:
        """Add this many new workers."""

    def remove_worker(self, worker: int) -> None:
        """Remove a worker."""

    def stop(self) -> None:
        """End the run after this event."""


class Callback:
    """Hooks that do nothing: override those you need. A plain function is called as ``on_step``.

    Hooks are called after each event, so an event that makes several steps calls ``on_step`` once.
    """

    def on_start(self, control: Control) -> None:
        """Called once, before anything is computed. In a resumed run the counts are those of its checkpoint."""

    def on_end(self, control: Control, run: Run | None) -> None:
        """Called once, at the end, with the finished run, whose ``stats`` say if it diverged or was interrupted.

        ``run`` is None if an exception ended the run. It is called whenever ``on_start`` was called for the run.
        """

    def on_step(self, control: Control) -> None:
        """Called after a step: ``control.params`` is the new iterate."""

    def on_evaluate(self, control: Control) -> None:
        """Called after an evaluation: ``control.loss`` is the loss of x_j with j = ``control.loss_step``.

        At the end of a run the last params are evaluated as well. A callback whose ``on_evaluate`` has called ``stop``
        is not called for them.
        """

    def extra_metrics(self, control: Control, step: int) -> Mapping[str, float]:
        """Return further metrics of the evaluation of x_k, k = ``step``, by name. Called before it is recorded.

        They become part of ``control.metrics``, ``run.history.metrics``, ``metrics.jsonl`` and all live views.
        """
        return {}

    def on_checkpoint(self, control: Control, path: Path) -> None:
        """Called after a checkpoint was written to the folder ``path``."""

    def on_worker_join(self, control: Control, worker: int) -> None:
        """Called after a worker joined."""

    def on_worker_lost(self, control: Control, worker: int) -> None:
        """Called after a worker left or was lost."""

    def on_gradient_dropped(self, control: Control, worker: int) -> None:
        """Called after the method dropped a gradient of this worker."""


@final
class FunctionCallback(Callback):
    """Calls a plain function after every step."""

    def __init__(self, function: Callable[[Control], Any]) -> None:
        self._function = function

    def on_step(self, control: Control) -> None:
        """Call the function."""
        self._function(control)


def checked_callbacks(callbacks: Iterable[Any]) -> tuple[Callback, ...]:
    """Return the callbacks as ``Callback`` objects; raise if one is neither such an object nor a function."""
    if not isinstance(callbacks, Iterable) or (isinstance(callbacks, np.ndarray) and callbacks.ndim == 0):
        raise TypeError(f"callbacks must be a list of callbacks, got {checks.shown(callbacks)}: write callbacks=[...]")
    return tuple(_checked_callback(callback) for callback in callbacks)


def _checked_callback(callback: Any) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) or not callable(callback):
        raise TypeError(
            f"a callback is a nowait.Callback object or a function of control, got {checks.shown(callback)}"
        )
    return FunctionCallback(callback)
