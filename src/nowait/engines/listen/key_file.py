"""The file with the key that the server and its workers share: 32 random bytes, as base64 text.

No error or message contains the key.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from nowait.engines.listen.pauses import Pauses

logger = logging.getLogger("nowait.listen")

KEY_BYTES = 32
LARGEST_FILE = 1_000
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_key_file(path: Path) -> bool:
    """Write a new key to a file that only its owner can read. Returns False if the file exists already."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise OSError(f"the key file {path} cannot be made: {error.strerror}") from None
    with os.fdopen(fd, "wb") as file:
        file.write(base64.b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n")
    return True


def drain_key_path(path: Path) -> Path:
    """Return the file beside a key file that has the second key, which only ``nowait drain`` needs."""
    return path.with_name(f"{path.name}.drain")


def read_drain_key(path: Path) -> bytes:
    """Return the drain key that belongs to a key file; raise an error that says where to get it."""
    second = drain_key_path(path)
    try:
        return read_key(second)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no drain key file {second}: the server makes it beside its key file, and workers do not need "
            f"it. Run nowait drain on the machine of the server, or copy the file to this machine too"
        ) from None


def read_key(path: Path) -> bytes:
    """Return the key in a file that only its owner can read."""
    return _decoded(_content(path), path)


def awaited_key(path: Path, seconds: float, now: Callable[[], float], sleep: Callable[[float], None]) -> bytes:
    """Return the key; as long as there is no file, or it is empty, look for it again: the server may make it later."""
    deadline, pauses = now() + seconds, Pauses()
    while not _is_there(path):
        if now() >= deadline:
            raise FileNotFoundError(
                f"the key file {path} did not appear within {seconds:g} s: the server makes it; copy it to this machine"
            )
        pause = min(pauses.next(1.0), max(0.0, deadline - now()))
        logger.info("there is no key file %s: looking for it again in %.1f s", path, pause)
        sleep(pause)
    return read_key(path)


def _is_there(path: Path) -> bool:
    """Return False if a file is missing or empty; another process may be writing it."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True  # reading it says what is wrong


def _content(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise type(error)(f"the key file {path} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"the key file {path} is not a regular file")
        if status.st_mode & OTHERS:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise ValueError(f"the key file {path} has the mode {mode}, others may read or change it: chmod 600 {path}")
        return os.read(fd, LARGEST_FILE + 1)
    finally:
        os.close(fd)


def _decoded(content: bytes, path: Path) -> bytes:
    try:
        key = base64.b64decode(content.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"{path} is not a key file, or is damaged: it must have {KEY_BYTES} bytes as base64 text. "
            f"The server makes one if the file does not exist"
        )
    return key
