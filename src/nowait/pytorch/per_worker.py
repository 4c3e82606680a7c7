"""Settings that may be different for every worker, such as the batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from nowait.core import checks

DEFAULT, PREFIX = "default", "worker "


@final
@dataclass(frozen=True)
class PerWorker:
    """A whole number of at least 1 for every worker.

    Given as one number; as a dictionary by worker (0 or "worker 0"), with a number for all others under "default"; as a
    list that workers take in turn; or as a function of the worker.
    """

    name: str
    given: Any
    reason: str
    """Why it must be at least 1."""

    @classmethod
    def of(cls, given: Any, name: str, reason: str) -> PerWorker:
        """Check an argument of a problem."""
        if isinstance(given, Mapping):
            given = _by_number(given, name)
        made = cls(name, given, reason)
        if isinstance(given, Mapping):
            if DEFAULT not in given:
                raise ValueError(f'{name} as a dictionary needs an entry "default", for workers that it does not name')
            for worker in given:
                if worker != DEFAULT:
                    checks.at_least(0, worker, f"a worker in {name}", "workers are numbered from 0")
                made.of_worker(worker)
            return made
        if isinstance(given, Sequence):
            if isinstance(given, str) or not given:
                raise ValueError(f"{name} must be a number, or a list of numbers that workers take in turn")
            for place in range(len(given)):
                made.of_worker(place)
            return made
        made.of_worker(0)
        return made

    def of_worker(self, worker: Any) -> int:
        """Return the number of a worker."""
        given = self.given
        if isinstance(given, Mapping):
            given = given.get(worker, given[DEFAULT])
        elif isinstance(given, Sequence):
            given = given[worker % len(given)]
        elif callable(given):
            given = given(worker)
        return checks.at_least(1, given, self.name, self.reason)

    @property
    def is_one_number(self) -> bool:
        """True if one number is given for all workers."""
        return isinstance(self.given, int)

    @property
    def usual(self) -> int:
        """The default of a dictionary; otherwise the number of worker 0."""
        return self.of_worker(DEFAULT if isinstance(self.given, Mapping) else 0)

    @property
    def largest(self) -> int | None:
        """The largest number of all workers; None for a function, of which it is not known."""
        if callable(self.given):
            return None
        if isinstance(self.given, Mapping):
            return max(map(self.of_worker, self.given))
        return max(map(self.of_worker, range(len(self.given)))) if isinstance(self.given, Sequence) else self.usual

    def __str__(self) -> str:
        return "by worker" if callable(self.given) else f"{self.given}"


def _by_number(given: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    """Return a dictionary by worker, with numbers in place of names such as "worker 0"."""
    made: dict[Any, Any] = {}
    for key, value in given.items():
        is_named = isinstance(key, str) and key.startswith(PREFIX) and key[len(PREFIX) :].isdecimal()
        worker = int(key[len(PREFIX) :]) if is_named else key
        if worker in made:
            raise ValueError(f"{name} has two entries for worker {worker}")
        made[worker] = value
    return made
