"""Sends the parts of the job in pieces that the host asks for, so that little of it is in memory or in transit."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import final

from nowait.engines.listen.joining import PIECE_BYTES, PIECE_REQUEST, PIECES_IN_TRANSIT, Part
from nowait.engines.network.secure import ProtocolError
from nowait.engines.processes.payload import Payload

READ_BYTES = 1 << 24


@final
class Offer:
    """The server's side: the parts of the job, which all hosts get."""

    def __init__(self, payloads: Sequence[Payload]) -> None:
        self._payloads = payloads
        self.parts = tuple(described(payload) for payload in payloads)

    def piece(self, request: tuple[int, int]) -> bytes:
        """Return the content of the message with a piece. Raises ``ProtocolError`` if there is none."""
        number, offset = request
        if not 0 <= number < len(self.parts) or not 0 <= offset < self.parts[number].total:
            raise ProtocolError(f"part {number} of the job has no byte {offset}")
        return PIECE_REQUEST.pack(number, offset) + os.pread(self._payloads[number].fd, PIECE_BYTES, offset)


@final
class Requests:
    """Checks that a host asks for each piece once and in order, so that it cannot make the server queue much."""

    def __init__(self) -> None:
        self._last = (-1, 0)

    def read(self, content: bytes) -> tuple[int, int]:
        """Return the part and the offset of a request. Raises ``ProtocolError`` if it was made before."""
        if len(content) != PIECE_REQUEST.size:
            raise ProtocolError(f"a request for a part of the job has {len(content)} bytes")
        number, offset = PIECE_REQUEST.unpack(content)
        if (number, offset) <= self._last or offset % PIECE_BYTES:
            raise ProtocolError(f"byte {offset} of part {number} of the job was not expected to be asked for now")
        self._last = (number, offset)
        return number, offset


@final
class Download:
    """The host's side: asks for the missing parts, writes them to files, and checks them.

    ``ask`` sends the content of a SEND_JOB message.
    """

    def __init__(self, missing: Iterable[tuple[int, Part]], ask: Callable[[bytes], None]) -> None:
        self._ask = ask
        self._parts = dict(missing)
        self.payloads = {number: Payload.reserved(part.sizes) for number, part in self._parts.items()}
        """The files, by part number."""
        self._requests = deque(
            (number, offset)
            for number, part in sorted(self._parts.items())
            for offset in range(0, part.total, PIECE_BYTES)
        )
        self._expected: deque[tuple[int, int]] = deque()
        for number, part in self._parts.items():
            if self.payloads[number].total != part.total:
                raise ProtocolError(
                    f"part {number} of the job has {part.total} bytes, which are not those of its sizes"
                )

    def begin(self) -> None:
        """Ask for the first pieces."""
        for _ in range(PIECES_IN_TRANSIT):
            self._ask_next()

    def _ask_next(self) -> None:
        if self._requests:
            self._expected.append(self._requests.popleft())
            self._ask(PIECE_REQUEST.pack(*self._expected[-1]))

    @property
    def complete(self) -> bool:
        """True if everything has arrived."""
        return not self._expected and not self._requests

    def received(self, content: bytes) -> None:
        """Write a piece that arrived. Raises ``ProtocolError`` if it is not the next one or a part was altered."""
        header = content[: PIECE_REQUEST.size]
        if not self._expected or header != PIECE_REQUEST.pack(*self._expected[0]):
            raise ProtocolError("a piece of the job arrived that was not asked for")
        number, offset = self._expected.popleft()
        part, data = self._parts[number], memoryview(content)[PIECE_REQUEST.size :]
        if len(data) != min(PIECE_BYTES, part.total - offset):
            raise ProtocolError(f"a piece of part {number} of the job has {len(data)} bytes")
        self.payloads[number].write(data, offset)
        if offset + len(data) == part.total and described(self.payloads[number]).sha256 != part.sha256:
            raise ProtocolError(f"part {number} of the job is not what the server announced: its digest is another")
        self._ask_next()

    def close(self) -> None:
        """Close the files of a download that failed."""
        for payload in self.payloads.values():
            payload.close()


def described(payload: Payload) -> Part:
    """Return the size and the digest of a payload."""
    digest, offset = hashlib.sha256(), 0
    while data := os.pread(payload.fd, READ_BYTES, offset):
        digest.update(data)
        offset += len(data)
    return Part(digest.hexdigest(), tuple(payload.sizes), offset)
