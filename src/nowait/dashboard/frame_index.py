"""Where in a trace file the rows of an interval of time are, in bounded memory."""

from __future__ import annotations

from typing import NamedTuple, final

MOST_ENTRIES = 4_096


class Entry(NamedTuple):
    """Consecutive frames: their bytes and rows, and the time from the first start to the last arrival."""

    offset: int
    end: int
    frame: int
    """The number of the first frame."""
    rows: int
    started: float
    arrived: float


@final
class FrameIndex:
    """Entries for all frames of a trace. When they are too many, each is merged with its neighbour."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self._per_entry, self._in_last = 1, 0
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Add the next frame with rows."""
        if 0 < self._in_last < self._per_entry:
            self.entries[-1] = _joined(self.entries[-1], entry)
            self._in_last += 1
            return
        if len(self.entries) >= self._most:
            pairs = zip(self.entries[::2], [*self.entries[1::2], None], strict=False)
            self.entries = [one if two is None else _joined(one, two) for one, two in pairs]
            self._per_entry *= 2
        self.entries.append(entry)
        self._in_last = 1

    def between(self, start: float, end: float) -> list[Entry]:
        """Return the entries that may have jobs which run between two times."""
        return [entry for entry in self.entries if entry.started <= end and entry.arrived >= start]


def _joined(one: Entry, two: Entry) -> Entry:
    arrived = max(one.arrived, two.arrived)
    return Entry(one.offset, two.end, one.frame, one.rows + two.rows, min(one.started, two.started), arrived)
