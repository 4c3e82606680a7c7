"""Suppresses warnings while stepsizes are tuned."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Log no warnings: diverging stepsizes and narrow grids are part of tuning."""
    logger = logging.getLogger("nowait")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
