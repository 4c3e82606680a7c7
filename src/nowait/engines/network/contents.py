"""Reads the contents of messages from hosts. A host that sends something else is in error, and is given up.

There is no input or output here. Every error is a ``ProtocolError``.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np

from nowait.engines.network.messages import AHEAD, CLOCK, EXIT, GRACE
from nowait.engines.network.secure import ProtocolError

MOST_ITEM_BYTES = 64
"""The largest items of a dtype that a host may name: larger ones would allocate memory."""

INDENT, REPLACEMENT = "    ", "\ufffd"

Details = tuple[str, str] | tuple[str, tuple[int, ...]]
"""Kind and traceback of an error, or dtype and shape of a gradient that does not fit."""


def unpacked(record: struct.Struct, content: bytes) -> tuple[Any, ...]:
    """Return the fields of the one record that a message consists of."""
    if len(content) != record.size:
        raise ProtocolError(f"a record of {record.size} bytes has {len(content)}")
    return record.unpack(content)


def exit_of(content: bytes) -> tuple[int, int]:
    """Return serial number and exit code of a process that ended."""
    serial, code = unpacked(EXIT, content)
    return serial, code


def request_time(content: bytes) -> float:
    """Return the host's clock at its request for the time."""
    return float(unpacked(CLOCK, content)[0])


def clock_ahead(content: bytes) -> float:
    """Return by how many seconds a host's clock is ahead."""
    (ahead,) = unpacked(AHEAD, content)
    if not math.isfinite(ahead):
        raise ProtocolError(f"a host's clock is ahead by {ahead} s")
    return float(ahead)


def grace_seconds(content: bytes) -> float:
    """Return in how many seconds a host exits."""
    (seconds,) = unpacked(GRACE, content)
    if not 0 <= seconds < math.inf:
        raise ProtocolError(f"a host leaves in {seconds} s")
    return float(seconds)


def text_of(content: bytes) -> str:
    """Return a text that may be shown; bytes that are not UTF-8 are replaced."""
    return printable(content.decode("utf-8", "replace"))


def printable(text: str) -> str:
    """Return a text of another machine as it may be shown in a log and on a terminal.

    What is not printable is replaced, because escape sequences change a terminal. Lines after the first are indented,
    so that none of them looks like a line of this machine.

    >>> printable("red:\\x1b[31m\\nnowait: the run is over")
    'red:\ufffd[31m\\n    nowait: the run is over'
    """
    lines = text.replace("\t", INDENT).split("\n")
    shown = ("".join(letter if letter.isprintable() else REPLACEMENT for letter in line) for line in lines)
    return f"\n{INDENT}".join(shown)


def details_of(content: bytes) -> tuple[int, int, Details]:
    """Return worker, ticket and details of a report."""
    try:
        worker, ticket, details = json.loads(content)
        first, second = details
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError("details of a report are not worker, ticket and two values") from None
    if type(worker) is not int or type(ticket) is not int or not isinstance(first, str):
        raise ProtocolError("details of a report have fields of another type")
    if isinstance(second, str):
        return worker, ticket, (printable(first), INDENT + printable(second))
    return worker, ticket, (first, _checked_shape(first, second))


def _checked_shape(dtype: str, shape: Any) -> tuple[int, ...]:
    """Return a shape of which NumPy can make an array of this dtype."""
    try:
        item = np.dtype(dtype)
        if item.itemsize > MOST_ITEM_BYTES or any(type(length) is not int for length in shape):
            raise ValueError
        np.broadcast_to(np.zeros((), item), shape)
    except (ValueError, TypeError, OverflowError, SyntaxError):
        raise ProtocolError("details of a report are not the dtype and shape of a gradient") from None
    return tuple(shape)
