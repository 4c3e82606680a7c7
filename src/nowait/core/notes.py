"""Notes: what a method decided and why, as numbers in the trace, and the sentences that are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple, final

from nowait.core import checks
from nowait.html.numbers import shown

WAITS_FOR = "waits for"
"""The kind of a note on how many gradients a step waits for. Its numbers are the fields of ``Waiting``."""
STRAGGLER_TIMES = 1.5
"""A straggler takes at least this many times as long for a gradient as the median of the others.

It is in the core because the sentence of a note needs it; all other code asks ``worker_stats.is_straggler``.
"""
LONGEST_KIND = 80
"""Characters in the kind of a note, and in the name of a number."""


class Note(NamedTuple):
    """A decision that a method noted in the trace with ``server.note``. ``str(note)`` is a sentence."""

    after: int
    """How many arrivals were handled before the event at which it was noted."""
    time: float
    kind: str
    """What was decided, such as "waits for"."""
    numbers: dict[str, float]

    @property
    def short(self) -> str:
        """The decision in a few words, without the reason."""
        waiting = self.waiting
        return self._list() if waiting is None else waiting.short

    def __str__(self) -> str:
        waiting = self.waiting
        return self._list() if waiting is None else waiting.sentence

    @property
    def waiting(self) -> Waiting | None:
        """The numbers as a choice of how many gradients a step waits for; None if they are others."""
        return Waiting.of(self.numbers) if self.kind == WAITS_FOR else None

    def _list(self) -> str:
        numbers = ", ".join(f"{name} {shown(value)}" for name, value in self.numbers.items())
        return f"{self.kind}: {numbers}" if numbers else self.kind


@final
@dataclass(frozen=True)
class Waiting:
    """How many gradients a step waits for, and what it was chosen by: the numbers of a note of kind ``WAITS_FOR``.

    Costs are relative times to a target; None is what is not known.
    """

    waits_for: int
    """0: every gradient makes a step."""
    workers: int
    before: int | None = None
    """What it waited for before, if it was chosen anew."""
    noise: float | None = None
    """The noise scale B, if it was estimated."""
    cost: float | None = None
    cost_before: float | None = None
    cost_of_all: float | None = None
    """The cost of waiting for all workers."""
    slowest: int | None = None
    """The slowest worker."""
    times_slower: float | None = None
    """Its mean time, divided by the median of the workers' mean times."""
    joined: int | None = None
    """The worker whose joining changed it."""
    left: int | None = None
    """The worker whose leaving changed it."""
    resumed: int | None = None
    """1 if it is what it was before the run was resumed."""

    def numbers(self) -> dict[str, float]:
        """Return what is known, for a note."""
        return {
            name: float(value) for name, value in asdict(self).items() if value is not None and math.isfinite(value)
        }

    @classmethod
    def of(cls, numbers: Mapping[str, float]) -> Waiting | None:
        """Return what a note says; None if its numbers are others."""
        if not {"waits_for", "workers"} <= numbers.keys() <= cls.__dataclass_fields__.keys():
            return None
        real = ("noise", "cost", "cost_before", "cost_of_all", "times_slower")
        return cls(**{name: value if name in real else int(value) for name, value in numbers.items()})  # type: ignore[arg-type]

    @property
    def short(self) -> str:
        """The decision in a few words."""
        if self.waits_for == 0:
            return "steps with every gradient"
        if self.waits_for >= self.workers == 1:
            return "waits for the only worker"
        if self.waits_for >= self.workers:
            return f"waits for all {self.workers}"
        return f"waits for {self.waits_for} of {self.workers}"

    @property
    def sentence(self) -> str:
        """The decision and its reason."""
        again = " again" if self.before is not None and self.waits_for >= self.workers else ""
        return ": ".join(words for words in (f"{self.short}{again}", self._reason()) if words)

    def _reason(self) -> str:
        if self.resumed:
            return "as before the run was resumed"
        for what, worker in (("joined", self.joined), ("left", self.left)):
            if worker is not None:
                return f"worker {worker} {what}"
        if self.before is None:
            return "times and noise are not known yet"
        if self.waits_for >= self.workers:
            return "no worker is slow enough to leave out"
        return "; ".join(words for words in (self._slow_worker(), self._alternative()) if words)

    def _slow_worker(self) -> str:
        if self.slowest is None or self.times_slower is None or self.times_slower < STRAGGLER_TIMES:
            return ""
        return f"worker {self.slowest} is {shown(self.times_slower, 2)} times slower than the median"

    def _alternative(self) -> str:
        """Return how much longer the former choice would take, or waiting for all if it waits for fewer than before."""
        before = self.before or 0
        if before >= self.workers or 0 < self.waits_for < before:
            what, other = f"waiting for all {self.workers}", self.cost_of_all
        else:
            what, other = f"rounds of {before}" if before else "steps with every gradient", self.cost_before
        if not self.cost or other is None:
            return ""
        return f"{what} would take {shown(other / self.cost, 2)} times as long to the target"


def checked_note(after: int, time: float, kind: object, numbers: Mapping[str, float]) -> Note:
    """Return a note; raise if its kind is no short text, or its numbers are not finite."""
    for text in (kind, *numbers):
        if not isinstance(text, str) or not text.isprintable() or not 0 < len(text) <= LONGEST_KIND:
            raise ValueError(
                f"the kind of a note and the names of its numbers are texts of 1 to {LONGEST_KIND} characters in a "
                f"line, because pages and terminals show them; got {checks.shown(text)}"
            )
    why = "pages cannot show it: leave it out"
    return Note(after, time, str(kind), {name: checks.finite(value, name, why) for name, value in numbers.items()})
