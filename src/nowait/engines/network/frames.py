"""Frames: the unit in which bytes are encrypted (AES-128 in the mode OCB3 or GCM) or authenticated (GMAC).

A frame is a header (length of the payload, kind, flags), the payload, and a tag of 16 bytes. The header is
authenticated. The nonce is the number of the frame on its connection and direction, which is never sent: a frame that
is repeated, left out, moved or from elsewhere has the wrong number or key, and its tag does not fit. After
``FRAMES_PER_KEY`` frames both ends derive the next key.

There is no input or output here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESOCB3

from nowait.engines.network.handshake import Mode, ProtocolError, derived_key

HEADER = struct.Struct("<IBBH")
"""Bytes of the payload, kind, flags, and two bytes that are zero."""
TAG_BYTES = 16
OVERHEAD = HEADER.size + TAG_BYTES
MOST_PAYLOAD = 1 << 20
"""The most bytes of a payload that are accepted."""
FRAMES_PER_KEY = 1 << 16
"""At most 64 GiB are encrypted with one key, which keeps far from the limits of GCM and OCB3."""
AES_KEY_BYTES = 16
"""128 bits, the strength of X25519."""

NewCipher = Callable[[bytes], AESGCM | AESOCB3]


class FrameKind(IntEnum):
    """What is in a frame."""

    BODY = 1
    """a part of a message without its large vectors"""
    VECTOR = 2
    """a part of a large vector"""
    END = 3
    """nothing: the last frame of its direction, without which an end is an error"""


class Cipher(Protocol):
    """Encrypts or authenticates the frames of one direction, in order."""

    def seal(self, frame: memoryview, payload: bytes | memoryview) -> None:
        """Write payload and tag into a frame that begins with its header."""

    def open(self, frame: memoryview, out: memoryview) -> None:
        """Check a whole frame and write its payload to ``out``, whose content is arbitrary after an error."""


@final
class _Sequence:
    """The nonces of one direction, each with its key."""

    def __init__(self, key: bytes, new_cipher: NewCipher) -> None:
        self._key, self._new_cipher = key, new_cipher
        self._number = 0
        self.cipher = new_cipher(key[:AES_KEY_BYTES])

    def next_nonce(self) -> bytes:
        """Return the nonce of the next frame, for which ``cipher`` then has the key."""
        number = self._number
        if number and number % FRAMES_PER_KEY == 0:
            self._key = derived_key(b"", self._key, b"next key")
            self.cipher = self._new_cipher(self._key[:AES_KEY_BYTES])
        self._number = number + 1
        return number.to_bytes(12, "big")


@final
class Encryption:
    """The payload is encrypted; the header is associated data."""

    def __init__(self, key: bytes, new_cipher: NewCipher) -> None:
        self._sequence = _Sequence(key, new_cipher)

    def seal(self, frame: memoryview, payload: bytes | memoryview) -> None:
        """Encrypt the payload into the frame."""
        nonce = self._sequence.next_nonce()
        self._sequence.cipher.encrypt_into(nonce, payload, frame[: HEADER.size], frame[HEADER.size :])

    def open(self, frame: memoryview, out: memoryview) -> None:
        """Decrypt the payload into ``out``."""
        nonce = self._sequence.next_nonce()
        try:
            self._sequence.cipher.decrypt_into(nonce, frame[HEADER.size :], frame[: HEADER.size], out)
        except InvalidTag:
            raise _altered() from None


@final
class Authentication:
    """The payload is readable; header and payload are associated data."""

    def __init__(self, key: bytes) -> None:
        self._sequence = _Sequence(key, AESGCM)

    def seal(self, frame: memoryview, payload: bytes | memoryview) -> None:
        """Copy the payload into the frame. Only the copy has a tag: others may write to the payload meanwhile."""
        end = len(frame) - TAG_BYTES
        frame[HEADER.size : end] = payload
        nonce = self._sequence.next_nonce()
        frame[end:] = self._sequence.cipher.encrypt(nonce, b"", frame[:end])

    def open(self, frame: memoryview, out: memoryview) -> None:
        """Check the tag, then copy the payload."""
        end = len(frame) - TAG_BYTES
        nonce = self._sequence.next_nonce()
        try:
            self._sequence.cipher.decrypt(nonce, frame[end:], frame[:end])
        except InvalidTag:
            raise _altered() from None
        out[:] = frame[HEADER.size : end]


def cipher(key: bytes, mode: Mode) -> Cipher:
    """Return what seals or opens the frames of one direction."""
    if mode == Mode.AUTHENTICATED:
        return Authentication(key)
    return Encryption(key, AESOCB3 if mode == Mode.OCB else AESGCM)


def _altered() -> ProtocolError:
    return ProtocolError("a frame was altered, repeated, left out or moved")
