"""Silence while many runs are made."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Stepsizes that diverge, and grids that are too narrow, are part of tuning: no warnings of them."""
    logger = logging.getLogger("nowait")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
