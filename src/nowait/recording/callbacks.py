"""What a user may hook into a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, final

from nowait.core.types import Vector


class Control(Protocol):
    """What a callback sees of a run, and what it may do to it. Changes take effect after the callback returns."""

    @property
    def steps(self) -> int:
        """Steps made so far."""

    @property
    def gradients(self) -> int:
        """Valid gradients so far."""

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
        """The current params, to read now: copy them to keep them."""

    @property
    def loss(self) -> float | None:
        """The latest loss evaluated."""

    @property
    def loss_step(self) -> int | None:
        """How many steps the params contained that it was evaluated at: real engines evaluate beside the run."""

    def add_workers(self, count: int) -> None:
        """Let this many new workers join."""

    def remove_worker(self, worker: int) -> None:
        """Let a worker leave."""

    def stop(self) -> None:
        """End the run."""


class Callback:
    """Hooks that do nothing; override those you need. A plain function serves as ``on_step``.

    They are called after each event: an event that made several steps calls ``on_step`` once.
    """

    def on_step(self, control: Control) -> None:
        """Params changed."""

    def on_evaluate(self, control: Control) -> None:
        """A loss was evaluated: ``control.loss``."""

    def on_checkpoint(self, control: Control, path: Path) -> None:
        """A checkpoint was written into this folder."""

    def on_worker_join(self, control: Control, worker: int) -> None:
        """A worker joined."""

    def on_worker_lost(self, control: Control, worker: int) -> None:
        """A worker left or was lost."""

    def on_gradient_dropped(self, control: Control, worker: int) -> None:
        """The method dropped a gradient of this worker."""


@final
class FunctionCallback(Callback):
    """A plain function, called after every step."""

    def __init__(self, function: Callable[[Control], Any]) -> None:
        self._function = function

    def on_step(self, control: Control) -> None:
        """Call it."""
        self._function(control)


def checked_callbacks(callbacks: Iterable[Any]) -> tuple[Callback, ...]:
    """Callbacks as objects, or an error that says what a callback is."""
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks must be a list of callbacks, got {callbacks!r}: write callbacks=[...]")
    return tuple(_checked_callback(callback) for callback in callbacks)


def _checked_callback(callback: Any) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) or not callable(callback):
        raise TypeError(f"a callback is a nowait.Callback object or a function of control, got {callback!r}")
    return FunctionCallback(callback)
