"""The file with the key that the server and its workers share: 32 random bytes, as base64 text.

No error or message contains the key.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from pathlib import Path

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


def read_key(path: Path) -> bytes:
    """Return the key in a file that only its owner can read."""
    return _decoded(_content(path), path)


def _content(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(f"the key file {path} cannot be read: {error.strerror}") from None
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
