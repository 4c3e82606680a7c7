"""Tries again to write while this process has no descriptors left or the disk is full: both often pass by themselves.

A run that has computed for days should not end because somebody else filled the disk for a few seconds.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

logger = logging.getLogger("nowait")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""Too many open files, in this process or on the machine."""
PASSING = OUT_OF_DESCRIPTORS | {errno.ENOSPC, errno.EDQUOT}
"""The same; no space left, or no quota."""
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 3.0)
"""Seconds before each further try."""
PIECE = 1 << 24
"""Bytes written at a time."""

sleep = time.sleep


def patiently(call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Return what a call of the system returns; one that fails for a passing reason is tried again for some seconds."""
    for number, pause in enumerate(PAUSES):
        try:
            return call(*args, **kwargs)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            if number == 0:
                logger.warning("a file cannot be written (%s): trying again for %.0f s", error, sum(PAUSES))
        sleep(pause)
    return call(*args, **kwargs)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write data at the position of a descriptor, and what did not fit at first a little later."""
    rest = memoryview(data)
    while rest:
        rest = rest[patiently(os.write, descriptor, rest[:PIECE]) :]
