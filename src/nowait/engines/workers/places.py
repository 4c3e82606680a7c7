"""The places where workers run: how much room they have, which of them leave, and which are not needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from nowait.engines.workers.transport import HOME, Opened

MOST_FAULTY = 3
"""A place of which this many workers were given up is given up too."""


@final
@dataclass(slots=True)
class _Place:
    capacity: float
    distance: int
    name: str
    label: str
    idle_since: float
    """Since when it has no workers, if it has none."""
    used: int = 0
    faults: int = 0
    """How many of its workers were given up."""
    leaves_at: float = math.inf
    """When a leaving place is gone; infinity if it is not leaving."""

    @property
    def room(self) -> float:
        """How many more workers can be started here."""
        return 0 if self.leaves_at < math.inf else self.capacity - self.used


@final
class Places:
    """The open places by number. Times are seconds of the run."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}

    def __contains__(self, place: int) -> bool:
        return place in self._places

    def name_of(self, place: int) -> str:
        """Return the name of a place; empty if it is not open."""
        return self._places[place].name if place in self._places else ""

    def label_of(self, place: int) -> str:
        """Return how messages call a place; empty if it is not open, or has no name."""
        return self._places[place].label if place in self._places else ""

    @property
    def room(self) -> float:
        """How many more workers could be started now."""
        return sum(place.room for place in self._places.values())

    def open(self, opened: Opened, now: float) -> None:
        """Add a place."""
        self._places[opened.place] = _Place(
            opened.capacity, opened.distance, opened.name, opened.label or opened.name, idle_since=now
        )

    def remove(self, place: int) -> None:
        """Remove a place, if it is there."""
        self._places.pop(place, None)

    def with_room(self) -> int | None:
        """Return the nearest place with room, of several the one that was opened first; None if all are full."""
        free = [number for number, place in self._places.items() if place.room > 0]
        return min(free, key=lambda number: self._places[number].distance, default=None)

    def take(self, place: int) -> None:
        """Count a worker that is started in a place."""
        self._places[place].used += 1

    def give(self, place: int, now: float) -> None:
        """Count a worker that is gone from a place, which may be gone too."""
        found = self._places.get(place)
        if found is not None:
            found.used -= 1
            found.idle_since = now

    def give_up_a_worker(self, place: int) -> bool:
        """Use the room of a faulty worker, which has left, no more. Returns True if the whole place is to be given up.

        That may be so if it has no other workers, or ``MOST_FAULTY`` were given up.
        """
        found = self._places[place]
        found.capacity -= 1
        found.faults += 1
        return found.used == 0 or found.faults >= MOST_FAULTY

    def leave(self, place: int, at: float) -> None:
        """Note that a place will be gone at this time or, if that was said before, at the earlier of both."""
        found = self._places[place]
        found.leaves_at = min(found.leaves_at, at)

    def is_leaving(self, place: int) -> bool:
        """Return True if a place is open but will be gone soon."""
        return place in self._places and self._places[place].leaves_at < math.inf

    def clock_turned_back(self, seconds: float) -> None:
        """Move the times at which places became idle, and will be gone."""
        for place in self._places.values():
            place.idle_since -= seconds
            place.leaves_at -= seconds

    def overdue(self, now: float) -> list[int]:
        """Return the leaving places whose time is over."""
        return [number for number, place in self._places.items() if place.leaves_at <= now]

    def left(self) -> list[int]:
        """Return the leaving places that have no workers any more."""
        return [number for number, place in self._places.items() if place.leaves_at < math.inf and place.used == 0]

    def idle(self, now: float, seconds: float) -> list[int]:
        """Return the places, except HOME, that have had no workers for so long.

        While workers of a leaving place compute, the other places are kept for them.
        """
        if any(place.leaves_at < math.inf for place in self._places.values()):
            return []
        empty = [(number, place) for number, place in self._places.items() if place.used == 0 and number != HOME]
        return [number for number, place in empty if now - place.idle_since >= seconds]
