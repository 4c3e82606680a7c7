"""How runs ended, or that they did not yet, in words."""

from __future__ import annotations

from collections.abc import Sequence

from nowait.recording import Run
from nowait.recording.run import STILL_RUNNING
from nowait.recording.unfinished import WAS_KILLED

GROWN = 10.0
"""A run whose last loss is more than this many times the initial loss does not affect the range of the loss axis."""


def is_running(run: Run) -> bool:
    """Return True if the run was loaded while it was running."""
    return run.stats.advice.startswith(STILL_RUNNING)


def left_the_axis(run: Run) -> bool:
    """Return True if the run diverged, or its last loss is so large that the other curves would be flat lines."""
    return run.stats.diverged or _has_grown(run)


def state_words(runs: Sequence[Run]) -> str:
    """Return what to write beside the name of runs that did not end as planned; empty if all did."""
    found = [words for words in map(_words, runs) if words]
    if not found:
        return ""
    return found[0] if len(runs) == 1 else f"{len(found)} of {len(runs)}: {found[0]}"


def _words(run: Run) -> str:
    if run.stats.diverged:
        return "diverged"
    if is_running(run):
        return f"still running, step {run.stats.steps:,}"
    if run.stats.advice.startswith(WAS_KILLED):
        return f"was killed at step {run.stats.steps:,}"
    if run.stats.interrupted:
        return f"stopped at step {run.stats.steps:,}"
    return "above the initial loss" if _has_grown(run) else ""


def _has_grown(run: Run) -> bool:
    loss = run.history.loss
    return bool(len(loss) and 0 < GROWN * loss[0] < loss[-1])
