"""The messages between the server and hosts on other machines, and how a host joins a run. No input or output here.

A host that was not asked for joins like this:

    host -> server   JOIN      JSON of ``Joining``
    server -> host   WELCOME   JSON of ``Welcome``, or REFUSED with a text
    host -> server   SEND_JOB  ``PIECE_REQUEST``: part and offset, in order
    server -> host   JOB_PART  the same, and the bytes

Somebody with the key and the drain key, who does not join, can ask that a host leaves: DRAIN with the name of its
machine, or without one for a list. The reply is a text, in DRAIN or in REFUSED. The drain key itself is never sent: the
request has a proof for this one connection.

Everything from the other end is checked, and nothing is unpickled. Every error is a ``ProtocolError``: the other end is
given up, or refused.
"""

from __future__ import annotations

import hmac
import importlib.metadata
import json
import math
import struct
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, NamedTuple, final

import numpy as np

from nowait.core.types import Vector
from nowait.engines.fingerprint import NUM_PRODUCTS, Fingerprint
from nowait.fleet.wire.secure import ProtocolError
from nowait.problems.encodings import Codecs

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
RUNNING = struct.Struct("<qi")
"""Serial number and worker of a process that runs."""
RUN_IS_OVER = "the run is over"
DRAINED = "this host was drained"
GIVEN_UP = "this host was given up: "
"""Why the server ends a host; the last one is followed by the reason."""
MOST_ITEM_BYTES = 64
"""The largest items of a dtype that a host may name: larger ones would allocate memory."""
INDENT, REPLACEMENT = "    ", "\ufffd"
LONGEST_JOINING = 100_000
"""Bytes of JSON that are read."""
LONGEST_NAME = 200
MOST_WORKERS = 2**16
"""The most workers that one host may offer."""
PIECE_BYTES = 1 << 22
"""Bytes in a message of a part of the job. One that fits into the memory of any host."""
PIECES_IN_TRANSIT = 4
PIECE_REQUEST = struct.Struct("<qq")
"""The number of a part, and the first byte that is wanted."""


class MessageKind(IntEnum):
    """What a message is about. Those of the server, if not said otherwise, are the first five, ADOPT and REPLY."""

    ORDERS = 1
    """``POINT_ORDER`` records, and the points that the host does not have"""
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
    """workers can be started; contains the clock difference, and ``RUNNING`` records of processes that run already"""
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
    """JSON: what a host that was not asked for says about itself"""
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
    ADOPT = 20
    """a ``START`` record: go on with a process that runs already, because its host has connected again"""
    DRAIN = 21
    """JSON: a request that hosts or workers leave, and its reply"""
    REPLY = 22
    """the same as ``ORDERS``, in reply to one message of ``REPORTS``"""


LIMITS = {
    MessageKind.ORDERS: MOST_BODY,
    MessageKind.REPLY: MOST_BODY,
    MessageKind.REPORTS: MOST_BODY,
    MessageKind.JOB_PART: MOST_PIECE,
    MessageKind.READY: MOST_TEXT,
    MessageKind.END: MOST_TEXT,
    MessageKind.FAILED: MOST_TEXT,
    MessageKind.DETAILS: MOST_TEXT,
    MessageKind.JOIN: MOST_TEXT,
    MessageKind.WELCOME: MOST_TEXT,
    MessageKind.REFUSED: MOST_TEXT,
    MessageKind.DRAIN: MOST_TEXT,
}
"""The most bytes of a message of each kind, without its large vectors; ``MOST_RECORD`` for the others."""


# Format


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


@final
class Shapes(NamedTuple):
    """Length and dtype of points and gradients, as they are sent: the codes of encoded ones are vectors of bytes."""

    points: tuple[int, str]
    gradients: tuple[int, str]
    encoded: bool
    """True if workers decode points, or encode gradients."""

    @classmethod
    def of(cls, codecs: Codecs, length: int, dtype: Any) -> Shapes:
        """Return the shapes of vectors that these codecs encode."""
        return cls(*codecs.shapes(length, dtype), encoded=any(codecs))

    def server_format(self) -> Format:
        """Return the format of the messages that a server sends, and receives."""
        return Format(*self.points, received=Format(*self.gradients))

    def host_format(self) -> Format:
        """Return the format of the messages that a host sends, and receives."""
        return Format(*self.gradients, received=Format(*self.points))


# Contents

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


def ready_of(content: bytes) -> tuple[float, dict[int, int]]:
    """Return by how many seconds a host's clock is ahead, and the workers of its processes by serial number."""
    ahead, rest = clock_ahead(content[: AHEAD.size]), content[AHEAD.size :]
    if len(rest) % RUNNING.size:
        raise ProtocolError(f"records of {RUNNING.size} bytes have {len(rest)}")
    running = dict(RUNNING.iter_unpack(rest))
    if len(set(running.values())) != len(rest) // RUNNING.size:
        raise ProtocolError("a host has two processes with one serial number, or for one worker")
    return ahead, running


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


# Joining


@final
@dataclass(frozen=True)
class Joining:
    """What a host says about itself."""

    nowait: str
    """Its version of this library."""
    python: str
    """Its version of Python, such as 3.11."""
    process: str
    """A random name of its process. The same after it has reconnected."""
    name: str
    """The name of its machine, for messages."""
    workers: int
    """How many workers it can run."""
    problem: Fingerprint | None = None
    """The fingerprint of its own problem; None if it takes that of the server."""

    def to_bytes(self) -> bytes:
        """Return the content of a JOIN message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, content: bytes) -> Joining:
        """Read a JOIN message. Unknown entries are ignored: a newer host is refused for its version later."""
        values = _dictionary(content)
        texts = {name: _text(values, name) for name in ("nowait", "python", "process", "name")}
        problem = values.get("problem")
        return cls(
            **texts,
            workers=_number(values, "workers", least=1, most=MOST_WORKERS),
            problem=None if problem is None else _fingerprint(problem),
        )

    def reason_to_refuse(self, nowait: str, python: str) -> str:
        """Return why a server with these versions refuses this host; empty if it does not."""
        if self.nowait != nowait:
            return f"this worker has version {self.nowait} of nowait, the server version {nowait}: install the same one"
        if self.python != python:
            return f"this worker runs Python {self.python}, the server Python {python}: the problem cannot be sent"
        return ""


@final
@dataclass(frozen=True)
class Part:
    """One part of what a host needs: the source code, or the pickled job."""

    sha256: str
    sizes: tuple[int, ...]
    """The sizes of the pieces that lie in it one after the other, each aligned."""
    total: int
    """Its size in bytes."""


@final
@dataclass(frozen=True)
class Welcome:
    """What the server says about the run."""

    run: str
    """A random name of the run. Processes of another run are ended."""
    shapes: Shapes
    """How vectors are sent."""
    parts: tuple[Part, ...]
    """The source code of the problem, the job, and the job without its problem."""

    def to_bytes(self) -> bytes:
        """Return the content of a WELCOME message."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, content: bytes) -> Welcome:
        """Read a WELCOME message."""
        values = _dictionary(content)
        parts = values.get("parts")
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise ProtocolError("a welcome must have a list of parts")
        return cls(_text(values, "run"), _shapes(values.get("shapes")), tuple(_part(part) for part in parts))


def library_version() -> str:
    """Return the version of this library."""
    return importlib.metadata.version("nowait")


def python_version() -> str:
    """Return the version of Python, such as 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def number_of_workers(number: int) -> str:
    """Return a number of workers in words."""
    return f"{number} worker{'' if number == 1 else 's'}"


def _fingerprint(values: Any) -> Fingerprint:
    if not isinstance(values, dict):
        raise ProtocolError("the entry 'problem' must be a fingerprint")
    length = values.get("gradient_norm")
    if length is not None and (type(length) is not float or not 0 <= length < math.inf):
        raise ProtocolError("the norm of a gradient must be a number of at least 0")
    direction = values.get("direction")
    if (
        not isinstance(direction, list)
        or len(direction) != (NUM_PRODUCTS if length else 0)
        or not all(type(product) is float and math.isfinite(product) for product in direction)
    ):
        raise ProtocolError(
            f"the direction of a gradient must be {NUM_PRODUCTS} numbers; none if it is zero or not finite"
        )
    return Fingerprint(_number(values, "size", least=1), _text(values, "dtype"), length, tuple(direction))


def _shapes(values: Any) -> Shapes:
    try:
        points, gradients, encoded = values
        shapes = [(length, np.dtype(dtype).str) for length, dtype in (points, gradients)]
    except (TypeError, ValueError):
        raise ProtocolError("a welcome must have the lengths and dtypes of vectors") from None
    if not all(type(length) is int and length >= 1 for length, _ in shapes):
        raise ProtocolError("a welcome must have the lengths and dtypes of vectors")
    return Shapes(shapes[0], shapes[1], encoded is True)


def _part(values: dict[str, Any]) -> Part:
    sizes = values.get("sizes")
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ProtocolError("a part must have the sizes of its pieces")
    return Part(_text(values, "sha256"), tuple(sizes), _number(values, "total", least=1))


def _dictionary(content: bytes) -> dict[str, Any]:
    if len(content) > LONGEST_JOINING:
        raise ProtocolError(f"{len(content)} bytes are too many to join")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise ProtocolError("joining needs entries by name, as JSON")
    return values


def _text(values: dict[str, Any], name: str) -> str:
    text = values.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_NAME or not text.isprintable():
        raise ProtocolError(f"the entry {name!r} must be a text of at most {LONGEST_NAME} letters")
    return text


def _number(values: dict[str, Any], name: str, *, least: int, most: int = 2**62) -> int:
    number = values.get(name)
    if type(number) is not int or not least <= number <= most:
        raise ProtocolError(f"the entry {name!r} must be a number between {least} and {most}")
    return number


# Draining


def drain_request(name: str | None, drain_key: bytes, binding: bytes) -> bytes:
    """Return the content of a DRAIN message; without a name it only asks for the hosts."""
    proof = _drain_proof(name, drain_key, binding)
    return json.dumps({"proof": proof} if name is None else {"proof": proof, "name": name}).encode()


def name_to_drain(content: bytes, drain_key: bytes | None, binding: bytes) -> tuple[str | None, bool]:
    """Read a DRAIN message. Returns the name, and whether the sender has the drain key; nobody has None."""
    values = _dictionary(content)
    name = _text(values, "name") if "name" in values else None
    proof = _text(values, "proof") if "proof" in values else ""
    expected = "" if drain_key is None else _drain_proof(name, drain_key, binding)
    return name, drain_key is not None and hmac.compare_digest(proof.encode(), expected.encode())


def _drain_proof(name: str | None, drain_key: bytes, binding: bytes) -> str:
    return hmac.digest(drain_key, b"drain" + binding + json.dumps(name).encode(), "sha256").hex()
