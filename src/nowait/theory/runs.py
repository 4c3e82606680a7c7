"""What the theory reads of a run: its trace and its configuration. Checked once, where a user passes them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from nowait.core import checks


@runtime_checkable
class RecordedTrace(Protocol):
    """The columns of ``run.trace`` that the theory uses."""

    worker: Any
    step: Any
    delay: Any
    stepsize: Any
    num_workers: Any
    initial_workers: Any
    events: Any


@runtime_checkable
class RecordedRun(Protocol):
    """What the theory uses of a run."""

    trace: Any
    config: Any


def checked_trace(trace: Any) -> Any:
    """Return the trace of a run, or raise TypeError for anything else."""
    if isinstance(trace, RecordedTrace):
        return trace
    hint = ": pass its trace, run.trace" if isinstance(trace, RecordedRun) else ", such as run.trace"
    raise TypeError(f"trace must be the trace of a run{hint}, got {checks.shown(trace)}")


def checked_run(run: Any) -> Any:
    """Return a run, or raise TypeError for anything else."""
    if isinstance(run, RecordedRun) and isinstance(run.trace, RecordedTrace) and isinstance(run.config, dict):
        return run
    raise TypeError(f"run must be a run of nw.simulate or nw.train, or one that nw.load read, got {checks.shown(run)}")
