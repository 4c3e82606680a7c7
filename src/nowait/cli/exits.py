"""Exit statuses: 0 success, 1 a user error printed in one line, 2 wrong options, and the others below."""

from __future__ import annotations

import signal

import typer

import nowait

DIVERGED, KILLED = 3, 128
"""A signal gives 128 plus its number, as in shells: 130 for Ctrl-C, 143 for SIGTERM."""


def end(run: nowait.Run) -> None:
    """Set the exit status according to how a run ended."""
    if run.stats.interrupted:
        raise nowait.Interrupted.of(run)
    if run.stats.diverged:
        raise typer.Exit(DIVERGED)


def status_of(error: KeyboardInterrupt) -> int:
    """Return the exit status of a command that a signal ended."""
    name = error.signal if isinstance(error, nowait.Interrupted) else "SIGINT"
    return KILLED + int(signal.Signals[name])
