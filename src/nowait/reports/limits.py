"""How much of each run a report contains, so that the file stays small whatever the number of runs and workers."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """The most of each kind that one entry of the legend may contribute."""

    points: int
    """Points of a curve."""
    lanes: int
    """Workers in the timeline and the heatmap."""
    columns: int
    """Intervals of time in the timeline and the heatmap."""
    jobs: int
    """Single jobs in the timeline."""
    workers: int
    """Workers in the bars of the shares, and in the list of workers of the delays."""

    @classmethod
    def of(cls, entries: int) -> Limits:
        """Return the limits of a report with this many entries."""
        if entries <= 5:
            return cls(points=1_000, lanes=40, columns=180, jobs=700, workers=100)
        if entries <= 12:
            return cls(points=500, lanes=24, columns=120, jobs=400, workers=60)
        if entries <= 40:
            return cls(points=250, lanes=16, columns=80, jobs=200, workers=40)
        return cls(points=120, lanes=8, columns=50, jobs=80, workers=20)
