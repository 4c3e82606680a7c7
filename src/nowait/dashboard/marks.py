"""Joins, deaths and resumes of a run, and decisions of its method, as marks on its time axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from nowait.core.notes import Note
from nowait.recording.phases import JOINED, LOST, RESUMED

KINDS = {JOINED: "joined", LOST: "lost", RESUMED: "resumed"}
MOST_MARKS = 200
"""More marks than this are merged, each with its neighbour of the same kind."""
MOST_DECISIONS = 200
"""Of more decisions than this, every second one is forgotten; the first and the last are kept."""


class Mark(NamedTuple):
    """Something happened to a worker, or to several ``workers`` from ``time`` on."""

    time: float
    kind: str
    worker: int
    """The first of them; -1 if it concerns no single worker."""
    workers: int = 1


@final
class Marks:
    """The marks of a run in the order of time."""

    def __init__(self, most: int = MOST_MARKS) -> None:
        self._most = most
        self.all: list[Mark] = []

    def add(self, events: NDArray[np.void]) -> None:
        """Add events of a trace; timers are left out."""
        for _, kind, worker, time in events.tolist():
            if kind in KINDS:
                self.all.append(Mark(time, KINDS[kind], worker))
        while len(self.all) > self._most:
            self.all = merged(self.all)


@final
class Decisions:
    """The times and sentences of a method's notes."""

    def __init__(self, most: int = MOST_DECISIONS) -> None:
        self._most = most
        self.all: list[tuple[float, str]] = []

    def add(self, notes: Iterable[Note]) -> None:
        """Add notes of a trace."""
        self.all += [(note.time, str(note)) for note in notes]
        while len(self.all) > self._most:
            self.all = [*self.all[:-1:2], self.all[-1]]


def merged(marks: Iterable[Mark]) -> list[Mark]:
    """Return about half as many marks: of each kind, two neighbours become one."""
    single: dict[str, Mark] = {}
    kept = []
    for mark in marks:
        before = single.pop(mark.kind, None)
        if before is None:
            single[mark.kind] = mark
        else:
            kept.append(before._replace(workers=before.workers + mark.workers))
    return sorted([*kept, *single.values()])
