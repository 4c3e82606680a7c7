"""The evaluations of a run, at most a bounded number of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, final

MOST_POINTS = 2_000


class Point(NamedTuple):
    """One evaluation."""

    step: int
    gradients: int
    time: float
    loss: float
    metrics: Mapping[str, float]


@final
class Curve:
    """Keeps every evaluation until they are too many, then every second, every fourth, and so on; always the latest."""

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self._most = most_points
        self._every = 1
        self._count = 0
        self.thinnings = 0
        self.points: list[Point] = []
        self.latest: Point | None = None

    def add(self, point: Point) -> None:
        """Add the next evaluation."""
        if self._count % self._every == 0:
            self.points.append(point)
        self._count += 1
        self.latest = point
        if len(self.points) > self._most:
            self.points = self.points[::2]
            self._every *= 2
            self.thinnings += 1
