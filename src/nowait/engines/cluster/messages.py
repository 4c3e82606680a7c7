"""The messages between the server and the hosts on other nodes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, final

import numpy as np

from nowait.core.types import Vector

HEAD = struct.Struct("<ii")
"""The kind of a message, and how many bytes of content precede its vectors."""
SMALL = 65_536
"""Smaller vectors are sent in the same frame as the content, to save frames; larger ones each in a frame of its own, to
save copies."""
SAME_POINT = 16
"""Flag in the instruction of an order: its point is that of the order before it in the message."""
CLOCK = struct.Struct("<dd")
"""The host's clock at the request, the server's clock at the reply."""
AHEAD = struct.Struct("<d")
"""By how many seconds the host's clock is ahead of the server's."""
START = struct.Struct("<iqd")
"""Worker, serial number, when the run began on the host's clock."""
EXIT = struct.Struct("<qi")
"""Serial number and exit code of a process."""


class MessageKind(IntEnum):
    """The first five go from the server to a host, the others from a host to the server."""

    ORDERS = 1
    """``ORDER`` records, with the worker in the field of the slot, and the points; the reply to ``REPORTS``"""
    START = 2
    """a ``START`` record: start a worker process"""
    KILL = 3
    """an ``EXIT`` record: kill the process with its serial number"""
    TIME = 4
    """the reply to ``ASK_TIME``"""
    END = 5
    """the run is over: exit"""
    ASK_TIME = 6
    READY = 7
    """workers can be started; contains the clock difference"""
    FAILED = 8
    """the problem cannot be loaded, and the host exits; contains the reason"""
    REPORTS = 9
    """``REPORT`` records, and the gradients"""
    DETAILS = 10
    """JSON: worker, ticket, details; sent before the report that announces them"""
    DIED = 11
    """an ``EXIT`` record"""
    HEARTBEAT = 12


class Message(NamedTuple):
    """A received message."""

    kind: int
    content: bytes
    vectors: Sequence[Vector]


@final
class Format:
    """Converts messages to frames and back, for vectors of one length and dtype."""

    def __init__(self, length: int, dtype: Any) -> None:
        self._length, self._dtype = length, np.dtype(dtype)
        self.large = length * self._dtype.itemsize >= SMALL
        """True if vectors are sent in frames of their own."""

    def pack(self, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> list[Any]:
        """Return the frames of a message."""
        head = HEAD.pack(kind, len(content)) + content
        if self.large:
            return [head, *vectors]
        return [b"".join((head, *vectors))] if vectors else [head]  # type: ignore[arg-type]

    def unpack(self, frames: Sequence[Any]) -> Message:
        """Return the message in frames. Vectors are not copied; they are aligned, as records have 8 n bytes."""
        kind, size = HEAD.unpack_from(frames[0])
        start = HEAD.size + size
        content = frames[0][HEAD.size : start]
        if self.large:
            return Message(kind, content, [np.frombuffer(frame, self._dtype) for frame in frames[1:]])
        if len(frames[0]) == start:
            return Message(kind, content, ())
        vectors = np.frombuffer(frames[0], self._dtype, offset=start).reshape(-1, self._length)
        return Message(kind, content, vectors)  # type: ignore[arg-type]
