"""The messages between the server and the hosts on other machines."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, final

import numpy as np

from nowait.core.types import Vector
from nowait.engines.network.secure import ProtocolError

HEAD = struct.Struct("<IIII")
"""Kind of a message, bytes of its content, number of its vectors, and four bytes that are zero."""
SMALL = 65_536
"""Vectors of fewer bytes are part of a message's body, to save frames. Larger ones have frames of their own: they are
encrypted from where they are, and decrypted to where they belong, without copies."""
MOST_BODY = 1 << 28
"""The most bytes of a message of orders or reports, without its large vectors."""
MOST_PIECE, MOST_TEXT, MOST_RECORD = 1 << 23, 1 << 20, 1 << 10
"""The most bytes of a message with a piece of the job, with a text or JSON, and of any other message."""
POINT_ORDER = struct.Struct("<qqiiii")
"""Ticket id, job, worker, ``Instruction``, slot of the point at the host, and whether the point is in this message."""
CLOCK = struct.Struct("<dd")
"""The host's clock at the request, the server's clock at the reply."""
AHEAD = struct.Struct("<d")
"""By how many seconds the host's clock is ahead of the server's."""
START = struct.Struct("<iqd")
"""Worker, serial number, when the run began on the host's clock."""
EXIT = struct.Struct("<qi")
"""Serial number and exit code of a process."""
GRACE = struct.Struct("<d")
"""In how many seconds a host exits."""


class MessageKind(IntEnum):
    """The first five go from the server to a host, the others from a host to the server."""

    ORDERS = 1
    """``POINT_ORDER`` records, and the points that the host does not have; the reply to ``REPORTS``"""
    START = 2
    """a ``START`` record: start a worker process"""
    KILL = 3
    """an ``EXIT`` record: kill the process with its serial number"""
    TIME = 4
    """the reply to ``ASK_TIME``"""
    END = 5
    """exit: the run is over, or the reason that it contains"""
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
    HELLO = 13
    """the first message of a host: its identity"""
    JOIN = 14
    """JSON: what a host that was not asked for says about itself (see ``listen.joining``)"""
    WELCOME = 15
    """the server's reply to ``JOIN``, JSON: the run and the parts of the job"""
    REFUSED = 16
    """the server's other reply to ``JOIN`` or ``DRAIN``: a text that says why"""
    SEND_JOB = 17
    """asks for a piece of the job"""
    JOB_PART = 18
    """a piece of the job"""
    LEAVING = 19
    """a ``GRACE`` record: the host exits then, or as soon as the server says END; until then it passes reports on"""
    DRAIN = 21
    """JSON: a request that hosts or workers leave, and its reply"""


LIMITS = {
    MessageKind.ORDERS: MOST_BODY,
    MessageKind.REPORTS: MOST_BODY,
    MessageKind.JOB_PART: MOST_PIECE,
    MessageKind.END: MOST_TEXT,
    MessageKind.FAILED: MOST_TEXT,
    MessageKind.DETAILS: MOST_TEXT,
    MessageKind.JOIN: MOST_TEXT,
    MessageKind.WELCOME: MOST_TEXT,
    MessageKind.REFUSED: MOST_TEXT,
    MessageKind.DRAIN: MOST_TEXT,
}
"""The most bytes of a message of each kind, without its large vectors; ``MOST_RECORD`` for the others."""


class Message(NamedTuple):
    """A received message."""

    kind: int
    content: bytes
    vectors: Sequence[Vector]


class Head(NamedTuple):
    """The beginning of a message."""

    kind: int
    content_bytes: int
    num_vectors: int
    body_bytes: int
    """How long the message is without its large vectors."""


def bytes_of(vector: Vector) -> memoryview:
    """Return the bytes of a vector, without a copy."""
    return memoryview(vector).cast("B")  # type: ignore[arg-type]


@final
class Format:
    """Converts messages to bytes and back, for vectors of one length and dtype."""

    def __init__(self, length: int, dtype: Any, received: Format | None = None) -> None:
        self.received = self if received is None else received
        """The format of what the other end sends, whose vectors may have another length and dtype."""
        self.set(length, dtype)

    def set(self, length: int, dtype: Any) -> None:
        """Use another length and dtype from now on: a host that joins learns them from the server."""
        self.length, self.dtype = length, np.dtype(dtype)
        self.vector_bytes = length * self.dtype.itemsize
        self.large = self.vector_bytes >= SMALL
        """True if vectors have frames of their own."""

    def pack(self, kind: int, content: bytes = b"", vectors: Sequence[Vector] = ()) -> bytes:
        """Return the body of a message. It contains the vectors only if they are small."""
        head = HEAD.pack(kind, len(content), len(vectors), 0)
        inside: Sequence[Any] = () if self.large else vectors
        return b"".join((head, content, *inside))

    def head(self, body: bytes | memoryview) -> Head:
        """Return the head of a message of which at least the first bytes have arrived."""
        if len(body) < HEAD.size:
            raise ProtocolError(f"a message begins with {len(body)} bytes, which is less than its head")
        kind, content_bytes, num_vectors, zero = HEAD.unpack_from(body)
        body_bytes = HEAD.size + content_bytes + (0 if self.large else num_vectors * self.vector_bytes)
        if zero or body_bytes > LIMITS.get(kind, MOST_RECORD):
            raise ProtocolError(f"a message of the kind {kind} would have {body_bytes} bytes and {num_vectors} vectors")
        return Head(kind, content_bytes, num_vectors, body_bytes)

    def parts(self, head: Head, body: Any) -> tuple[bytes, Sequence[Vector]]:
        """Return the content of a body that has arrived, and its small vectors.

        Vectors are not copied. They are aligned, as records have 8 n bytes.
        """
        end = HEAD.size + head.content_bytes
        content = bytes(body[HEAD.size : end])
        if self.large or head.num_vectors == 0:
            return content, ()
        return content, np.frombuffer(body, self.dtype, offset=end).reshape(-1, self.length)  # type: ignore[return-value]
