"""The live workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload


class WorkerSet(Sequence[int]):
    """The numbers of the live workers. Adding, removing, membership and indexing all take constant time.

    The order depends only on the history of joins and leaves: the last worker moves to the index of a removed one.
    """

    __slots__ = ("_numbers", "places")

    def __init__(self, workers: Iterable[int]) -> None:
        self._numbers = list(workers)
        """The numbers in order; ``places`` maps each to its index."""
        self.places = dict(zip(self._numbers, range(len(self._numbers)), strict=True))

    def add(self, worker: int) -> None:
        """Append a worker that is not in the set."""
        self.places[worker] = len(self._numbers)
        self._numbers.append(worker)

    def remove(self, worker: int) -> None:
        """Remove a worker that is in the set."""
        place = self.places.pop(worker)
        last = self._numbers.pop()
        if last != worker:
            self._numbers[place] = last
            self.places[last] = place

    def __contains__(self, worker: object) -> bool:
        return worker in self.places

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        return self._numbers[place]

    def __repr__(self) -> str:
        return f"WorkerSet({self._numbers})"
