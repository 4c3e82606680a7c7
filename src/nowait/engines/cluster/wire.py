"""What the server and a host say to each other."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, final

import numpy as np

from nowait.core.types import Vector

HEAD = struct.Struct("<ii")
"""What a message is, and how many bytes come before its vectors."""
SMALL = 65_536
"""Vectors of fewer bytes travel in the same frame as the rest, because every frame costs; larger ones each in its own,
because every copy does."""
SAME_POINT = 16
"""Added to an ``Order``: its point is that of the order before it in the message."""
CLOCK = struct.Struct("<dd")
"""The host's clock when it asked, the server's when it answered."""
AHEAD = struct.Struct("<d")
"""By how many seconds the host's clock is ahead."""
HIRED = struct.Struct("<iqd")
"""Worker, serial number, when the run began on the host's clock."""
DEATH = struct.Struct("<qi")
"""Serial number, and the exit code of one that died."""


class Say(IntEnum):
    """From the server to a host, then from a host to the server."""

    ORDERS = 1
    """``ORDER`` records with the worker in the place of the slot, and the points; answers ``REPORTS``, maybe empty"""
    HIRE = 2
    KILL = 3
    """a ``DEATH`` to come"""
    TIME = 4
    """answers a host that asked for the time"""
    END = 5
    ASK_TIME = 6
    READY = 7
    """workers can be hired; with the seconds that the host's clock is ahead"""
    FAILED = 8
    """the problem cannot be loaded, and the host ends; with the reason"""
    REPORTS = 9
    """``REPORT`` records, and the gradients"""
    LETTER = 10
    """in JSON: worker, ticket, letter; before the report that announces it"""
    DIED = 11
    BEAT = 12
    """nothing to report, but alive"""


class Message(NamedTuple):
    """A message that arrived."""

    kind: int
    content: bytes
    vectors: Sequence[Vector]


@final
class Format:
    """How messages become frames and frames messages, for vectors of one length and dtype."""

    def __init__(self, length: int, dtype: Any) -> None:
        self._length, self._dtype = length, np.dtype(dtype)
        self.large = length * self._dtype.itemsize >= SMALL
        """Vectors have frames of their own."""

    def pack(self, kind: Say, content: bytes = b"", vectors: Sequence[Vector] = ()) -> list[Any]:
        """The frames."""
        head = HEAD.pack(kind, len(content)) + content
        if self.large:
            return [head, *vectors]
        return [b"".join((head, *vectors))] if vectors else [head]  # type: ignore[arg-type]

    def unpack(self, frames: Sequence[Any]) -> Message:
        """The message; its vectors are not copied. Records have multiples of eight bytes, so they are aligned."""
        kind, size = HEAD.unpack_from(frames[0])
        start = HEAD.size + size
        content = frames[0][HEAD.size : start]
        if self.large:
            return Message(kind, content, [np.frombuffer(frame, self._dtype) for frame in frames[1:]])
        if len(frames[0]) == start:
            return Message(kind, content, ())
        vectors = np.frombuffer(frames[0], self._dtype, offset=start).reshape(-1, self._length)
        return Message(kind, content, vectors)  # type: ignore[arg-type]
