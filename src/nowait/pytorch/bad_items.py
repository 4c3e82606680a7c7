"""Items of a data set that cannot be read: which ones were skipped."""

from __future__ import annotations

import logging
from typing import Any, final

logger = logging.getLogger("nowait")

MISSING = object()
"""Stands for an item that cannot be read."""


@final
class BadItems:
    """Reads items of data sets, and logs each item that raises an exception once per process."""

    def __init__(self) -> None:
        self.skipped: dict[tuple[str, int], int] = {}
        """How often an item was skipped, by the name of its data set and its index."""

    def read(self, data: Any, number: int, name: str) -> Any:
        """Return an item, or ``MISSING`` if reading it raises an exception."""
        try:
            return data[number]
        except Exception as error:
            times = self.skipped[name, number] = self.skipped.get((name, number), 0) + 1
            if times == 1:
                logger.warning(
                    "item %d of %s is skipped, it raised %s: %s (bad items in this process so far: %d)",
                    number,
                    name,
                    type(error).__name__,
                    error,
                    len(self.skipped),
                )
            return MISSING
