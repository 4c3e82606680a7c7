"""What a host needs to compute for a run: the user's own modules, and the pickled job, which arrive in pieces.

A pickle only names the modules of its classes and functions, so their source code is sent as well. The host asks for
the pieces, so that little of them is in memory or in transit.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, final

from nowait.fleet.wire.messages import PIECE_BYTES, PIECE_REQUEST, PIECES_IN_TRANSIT, Part
from nowait.fleet.wire.secure import ProtocolError
from nowait.fleet.wire.shared import Payload

logger = logging.getLogger("nowait.listen")

MOST_BYTES = 8 << 20
"""Bytes of source code that are sent."""
INSTALLED = ("site-packages", "dist-packages")
OWN_PACKAGE = "nowait"
READ_BYTES = 1 << 24


# Source code


def user_sources(modules: Mapping[str, ModuleType] | None = None) -> dict[str, bytes]:
    """Return the source files of the loaded modules that belong neither to Python nor to an installed package.

    They are named by paths relative to the folder in which Python looks for modules. What is not loaded is not sent,
    and neither is ``__main__``, whose classes and functions are pickled by value.
    """
    files = _files((sys.modules if modules is None else modules).items())
    sources: dict[str, bytes] = {}
    total = 0
    for path, file in sorted(files.items(), key=lambda item: (item[1].stat().st_size, item[0])):
        content = file.read_bytes()
        total += len(content)
        if total > MOST_BYTES:
            left = len(files) - len(sources)
            logger.warning("%d modules are too large to be sent to workers: install them there", left)
            break
        sources[path] = content
    return sources


def _files(modules: Iterable[tuple[str, Any]]) -> dict[str, Path]:
    files = {}
    for name, module in list(modules):
        file, is_package = getattr(module, "__file__", None), hasattr(module, "__path__")
        if not isinstance(file, str) or name.partition(".")[0] in (OWN_PACKAGE, "__main__", "__mp_main__"):
            continue
        relative = name.replace(".", "/") + ("/__init__.py" if is_package else ".py")
        path = Path(file)
        if path.is_file() and path.as_posix().endswith(f"/{relative}") and not _is_installed(path, relative):
            files[relative] = path
    return files


def _is_installed(path: Path, relative: str) -> bool:
    """Return True for a file of Python itself or of an installed package."""
    if any(part in INSTALLED for part in path.parts) or _has_packages(path.parents[relative.count("/")]):
        return True
    paths = sysconfig.get_paths()
    return any(path.is_relative_to(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@functools.cache
def _has_packages(folder: Path) -> bool:
    """Return True for a folder with installed packages, such as one of ``pip install --target``."""
    return any(folder.glob("*.dist-info"))


def to_bytes(sources: Mapping[str, bytes]) -> bytes:
    """Return the files as JSON, in a fixed order."""
    texts = {path: content.decode("utf-8", "surrogateescape") for path, content in sources.items()}
    return json.dumps(texts, sort_keys=True).encode()


def write_sources(content: bytes, folder: Path) -> int:
    """Write the files that ``to_bytes`` packed into a folder; returns their number."""
    try:
        texts = json.loads(content)
        files = {PurePosixPath(path): text.encode("utf-8", "surrogateescape") for path, text in texts.items()}
    except (ValueError, AttributeError):
        raise ProtocolError("the source code of the problem is not valid") from None
    for path, data in files.items():
        if path.is_absolute() or ".." in path.parts or path.suffix != ".py":
            raise ProtocolError(f"the source code of the problem has a file {str(path)!r:.100}")
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return len(files)


# Pieces of the job


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
