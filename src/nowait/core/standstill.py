"""Notices that a method makes no progress, though events happen: all its attempts time out, or it drops all gradients.

A slow start is no standstill: gradients that are applied or added to a sum are progress, however many a step needs, and
so is waiting for a gradient, however long it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from nowait.core.ledger import Ledger

PATIENCE, PATIENCE_PER_WORKER = 10_000, 100
"""A standstill is this many timers, or dropped gradients, in a row without progress; the second is for each worker."""
LATE, LATE_PER_WORKER = 100, 10
"""With real workers also this many late gradients in a row, while none arrived in time."""
HOPELESS = 20
"""After this many times as much, no progress is expected any more."""


@final
class Standstill:
    """Counts what happened since the latest progress. ``real`` workers deliver cancelled gradients late."""

    def __init__(self, *, real: bool = False) -> None:
        self._real = real
        self._now = -1.0
        self._in_time = self._cancelled = self._late = 0
        self._used = self._dropped = 0
        self.timers = self.late = self.dropped = 0
        """How many timers expired in vain, and how many gradients were late or dropped, since the latest progress."""

    def timer_expired(self, ledger: Ledger) -> None:
        """Count a timer that has expired. It was in vain if since the one before no gradient arrived in time, and
        tickets were cancelled, no ticket is in flight, or no time has passed.
        """
        counts = ledger.counts
        if counts.gradients != self._in_time:
            self._in_time, self._late, self.timers = counts.gradients, counts.late, 0
        elif counts.cancelled > self._cancelled or not ledger.in_flight or ledger.now == self._now:
            self.timers += 1
        self.late = counts.late - self._late
        self._cancelled, self._now = counts.cancelled, ledger.now

    def gradients_arrived(self, ledger: Ledger) -> None:
        """Count the gradients that were dropped since the latest one that was used; call it now and then."""
        counts = ledger.counts
        if counts.gradients - counts.dropped != self._used:
            self._used, self._dropped = counts.gradients - counts.dropped, counts.dropped
        self.dropped = counts.dropped - self._dropped

    def next_look(self, ledger: Ledger) -> int:
        """Return at how many gradients ``gradients_arrived`` should be called again."""
        return ledger.counts.gradients + _patience(ledger)

    def reason(self, ledger: Ledger) -> str:
        """Return why there is no progress, with the cause if the method knows it; empty if there is some."""
        what = self._what(ledger)
        if not what:
            return ""
        since = f"since step {ledger.steps}" if ledger.steps else "and has made no step yet"
        cause = ledger.method.why_no_step()
        return f"{type(ledger.method).__name__} makes no progress {since}: {what}{'. ' if cause else ''}{cause}"

    def _what(self, ledger: Ledger) -> str:
        if self.dropped >= _patience(ledger):
            return f"it dropped the last {self.dropped:,} gradients"
        if self._real:
            is_late = self.late >= LATE + LATE_PER_WORKER * ledger.num_workers
            return f"the last {self.late:,} gradients arrived after their tickets were cancelled" if is_late else ""
        if self.timers >= _patience(ledger):
            return f"its last {self.timers:,} timers expired, and no gradient arrived in time"
        return ""

    def is_hopeless(self, ledger: Ledger, *, seconds_end_it: bool, gradients_end_it: bool) -> bool:
        """Return whether a simulation would never end, because no limit of its budget will be reached."""
        if self._real or seconds_end_it:
            return False
        limit = HOPELESS * _patience(ledger)
        return self.timers >= limit or (self.dropped >= limit and not gradients_end_it)


def _patience(ledger: Ledger) -> int:
    return PATIENCE + PATIENCE_PER_WORKER * ledger.num_workers
