"""The file descriptors of a transport that has several parts."""

from __future__ import annotations

from operator import is_
from typing import final


@final
class Descriptors:
    """Joins the sets of descriptors of several parts; a new set is made only if one of the parts has a new one.

    >>> parts, joined = [frozenset({3}), frozenset({4})], Descriptors()
    >>> first = joined.of(*parts)
    >>> (
    ...     sorted(first),
    ...     joined.of(*parts) is first,
    ...     sorted(joined.of(frozenset({5}), parts[1])),
    ... )
    ([3, 4], True, [4, 5])
    """

    def __init__(self) -> None:
        self._parts: tuple[frozenset[int], ...] = ()
        self._all: frozenset[int] = frozenset()

    def of(self, *parts: frozenset[int]) -> frozenset[int]:
        """Return the descriptors of all parts."""
        if len(parts) != len(self._parts) or not all(map(is_, parts, self._parts)):
            self._parts, self._all = parts, frozenset().union(*parts)
        return self._all
