"""Checks what a report is given, and divides it into runs and sweeps, each with a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nowait.recording import Run, Sweep
from nowait.reports.groups import grouped
from nowait.reports.sweeps import sweep_name

Entry = Run | Sequence[Run] | Sweep


class Entries(NamedTuple):
    """The runs and the sweeps of a report, by name."""

    runs: dict[str, list[Run]]
    sweeps: dict[str, Sweep]


def checked_entries(given: Any) -> Entries:
    """Return the runs and sweeps that were given: one, a list of runs, or a dictionary of them."""
    if isinstance(given, Sweep):
        return Entries({}, {sweep_name(given): given})
    if isinstance(given, Run):
        given = [given]
    if isinstance(given, list | tuple) and given and all(isinstance(run, Run) for run in given):
        return Entries(grouped((f"run {place}", run) for place, run in enumerate(given, start=1)), {})
    if not isinstance(given, Mapping) or not given:
        raise TypeError(
            f'runs must be named: pass a dictionary {{"name": run, ...}}, or a run, a list of runs, or a sweep, '
            f"got {given!r}"
        )
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"the name of a run must be a string, got {name!r}")
    sweeps = {name: entry for name, entry in given.items() if isinstance(entry, Sweep)}
    runs = {name: _checked_entry(name, entry) for name, entry in given.items() if name not in sweeps}
    return Entries(runs, sweeps)


def _checked_entry(name: str, entry: Any) -> list[Run]:
    entries = [entry] if isinstance(entry, Run) else entry
    if not isinstance(entries, Sequence) or not entries or not all(isinstance(run, Run) for run in entries):
        raise TypeError(f"{name!r} must be a Run or a list of Runs, or a Sweep, got {entry!r}")
    return list(entries)
