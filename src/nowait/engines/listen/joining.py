"""How a host joins a run: what it says, and what the server answers. There is no input or output here.

    host -> server   JOIN      JSON of ``Joining``
    server -> host   WELCOME   JSON of ``Welcome``, or REFUSED with a text
    host -> server   SEND_JOB  ``PIECE_REQUEST``: part and offset, in order
    server -> host   JOB_PART  the same, and the bytes

Somebody with the key and the drain key, who does not join, can ask that a host leaves: DRAIN with the name of its
machine, or without one for a list. The reply is a text, in DRAIN or in REFUSED. The drain key itself is never sent: the
request has a proof for this one connection.

Everything from the other end is checked. A host that says something else is refused; nothing is unpickled here.
"""

from __future__ import annotations

import hmac
import json
import math
import struct
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from nowait.engines.fingerprint import NUM_PRODUCTS, Fingerprint
from nowait.engines.network.secure import ProtocolError
from nowait.engines.network.shapes import Shapes

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


def number_of_workers(number: int) -> str:
    """Return a number of workers in words."""
    return f"{number} worker{'' if number == 1 else 's'}"


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
