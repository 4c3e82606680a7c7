"""A callback that writes metrics for TensorBoard, if its package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from nowait.recording.callbacks import Callback, Control


@final
class TensorBoard(Callback):
    """Writes loss, metrics, workers, gradients, time, delay and stepsize at every evaluation.

    ``callbacks=[nw.TensorBoard("logs/mine")]`` writes to that ``folder``. The delay is the mean of the latest arrivals,
    at most 2,000.

    Needs the package ``tensorboard``; without it the first evaluation raises ``ImportError``.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writer: Any = None

    def on_evaluate(self, control: Control) -> None:
        """Write the current values."""
        writer = self._opened()
        if control.loss is not None:
            writer.add_event(_event({"loss": control.loss} | control.metrics, control.loss_step or 0))
        now = {"workers": control.num_workers, "gradients": control.gradients, "seconds": control.time}
        now |= _of_arrivals(control)
        writer.add_event(_event({name: float(value) for name, value in now.items()}, control.steps))
        writer.flush()

    def close(self) -> None:
        """Close the file. Every evaluation is already flushed to it."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> Any:
        if self._writer is None:
            try:
                from tensorboard.summary.writer.event_file_writer import EventFileWriter
            except ImportError as error:
                raise ImportError("nw.TensorBoard needs the package tensorboard: pip install tensorboard") from error
            self._writer = EventFileWriter(str(self._folder))
        return self._writer


def _of_arrivals(control: Control) -> dict[str, float]:
    """Return the mean delay of the latest arrivals, and the stepsize of the latest one that made a step."""
    delays, stepsizes = control.recent("delay"), control.recent("stepsize")
    used = stepsizes[stepsizes != 0]
    return ({"delay": float(delays.mean())} if len(delays) else {}) | ({"stepsize": used[-1]} if len(used) else {})


def _event(values: dict[str, float], step: int) -> Any:
    import time

    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
    return Event(wall_time=time.time(), step=step, summary=summary)
