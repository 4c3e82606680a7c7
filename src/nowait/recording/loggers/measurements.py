"""What is logged: the numbers of a run and its config, the same for every tracker. No input or output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from nowait.recording.callbacks import Control
from nowait.recording.run import Run

Setting = str | int | float | bool | None
FINISHED, DIVERGED, INTERRUPTED, FAILED = "finished", "diverged", "interrupted", "failed"


@final
@dataclass(frozen=True)
class Mark:
    """How far a run was when it was last logged; throughput is measured from there."""

    steps: int
    gradients: int
    time: float

    @classmethod
    def of(cls, control: Control) -> Mark:
        """Return the mark of a run now."""
        return cls(control.steps, control.gradients, control.time)


@final
@dataclass(frozen=True)
class Events:
    """How many events there were since the start or the resumption of a run."""

    joined: int = 0
    lost: int = 0
    checkpoints: int = 0


def evaluation(control: Control) -> dict[str, float]:
    """Return the loss and the metrics of the latest evaluation, which belong to ``control.loss_step``."""
    return {} if control.loss is None else {"loss": control.loss} | control.metrics


def measurements(control: Control, since: Mark, events: Events) -> dict[str, float]:
    """Return the numbers of a run at ``control.steps``."""
    counts = control.counts
    return {
        **_delays(control),
        **_throughput(control, since),
        "gradients/total": float(counts.gradients),
        "gradients/dropped": float(counts.dropped),
        "gradients/rejected": float(counts.rejected),
        "gradients/late": float(counts.late),
        "workers/live": float(control.num_workers),
        "workers/joined": float(events.joined),
        "workers/lost": float(events.lost),
        **_decision(control),
        "checkpoints": float(events.checkpoints),
        "seconds": float(control.time),
    }


def _delays(control: Control) -> dict[str, float]:
    """Return the delays of recent arrivals, and the mean stepsize of those that made a step."""
    delays, stepsizes = control.recent("delay"), control.recent("stepsize")
    used, found = stepsizes[stepsizes != 0], {}
    if len(delays):
        found = {"delay/mean": delays.mean(), "delay/median": np.median(delays), "delay/max": delays.max()}
    if len(used):
        found["stepsize"] = used.mean()
    return {name: float(value) for name, value in found.items()}


def _decision(control: Control) -> dict[str, float]:
    """Return the numbers of the method's latest decision."""
    note = control.last_note
    return {} if note is None else {f"decision/{name}": value for name, value in note.numbers.items()}


def _throughput(control: Control, since: Mark) -> dict[str, float]:
    seconds = control.time - since.time
    if seconds <= 0:
        return {}
    return {
        "throughput/steps_per_second": (control.steps - since.steps) / seconds,
        "throughput/gradients_per_second": (control.gradients - since.gradients) / seconds,
    }


def flattened(config: dict[str, Any]) -> dict[str, Setting]:
    """Return the config of a run without nesting: ``{"method": {"type": "A"}}`` becomes ``{"method.type": "A"}``."""
    return dict(_settings("", config))


def _settings(name: str, value: Any) -> Iterator[tuple[str, Setting]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _settings(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value if value is None or isinstance(value, str | int | float | bool) else str(value)


def state_of(run: Run | None) -> str:
    """Return how a run ended: finished, diverged, interrupted (by a signal) or failed (None: by an exception)."""
    if run is None:
        return FAILED
    if run.stats.diverged:
        return DIVERGED
    return INTERRUPTED if run.stats.interrupted else FINISHED
