"""The handshake of a connection: both ends prove that they know the run's secret, and agree on fresh keys.

    client -> server   magic, version, mode, X25519 public key, tag
    server -> client   magic, version, mode, X25519 public key, tag
    client -> server   the first frame, with the new keys (see ``frames``)

The client's tag is an HMAC under a key derived from the secret, so that the server computes nothing for strangers. The
server's tag and the keys are derived from the secret, the X25519 exchange and both messages. A client whose messages
were recorded and sent again is not authenticated: only the first frame proves that it knows the new keys.

There is no input or output here: bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MAGIC = b"nowait"
VERSION = 2
"""The version of the protocol. Ends with different versions refuse each other."""
PREFIX = struct.Struct("<6sBB")
"""Magic, version, and ``Mode``."""
KEY_BYTES = TAG_BYTES = 32
GREETING_BYTES = PREFIX.size + KEY_BYTES + TAG_BYTES
SECRET_BYTES = 32


class Mode(IntEnum):
    """How frames are protected. A client says what it wants at most, and the server chooses."""

    AUTHENTICATED = 0
    """everybody can read them, nobody can alter them"""
    GCM = 1
    """encrypted with AES-128-GCM"""
    OCB = 2
    """encrypted with AES-128-OCB3, which is faster on many processors"""


class ProtocolError(Exception):
    """The other end sent something that is not valid here. The connection is of no more use."""


class RefusedError(ProtocolError):
    """The other end speaks another version or mode; it should be sent our prefix, which says so."""


class Keys(NamedTuple):
    """The keys of a connection, one for each direction, and what they are used for."""

    sending: bytes
    receiving: bytes
    mode: Mode
    binding: bytes
    """The same bytes at both ends, and at no other connection: proofs that contain them cannot be passed on."""


@final
@dataclass(frozen=True)
class Credentials:
    """What both ends of a connection have to agree on."""

    secret: bytes
    encrypt: bool

    def __post_init__(self) -> None:
        if len(self.secret) < SECRET_BYTES:
            raise ValueError(f"a secret must have at least {SECRET_BYTES} bytes, got {len(self.secret)}")

    def __repr__(self) -> str:
        return f"Credentials(encrypt={self.encrypt})"

    def prefix(self, mode: Mode) -> bytes:
        """Return the first bytes of a connection; without encryption the mode does not matter."""
        return PREFIX.pack(MAGIC, VERSION, mode if self.encrypt else Mode.AUTHENTICATED)


def derived_key(secret: bytes, shared: bytes, label: bytes, transcript: bytes = b"") -> bytes:
    """Return a key of 32 bytes (HKDF-SHA256) for one purpose, the label, bound to the messages so far."""
    info = MAGIC + b" " + label + b" " + hashlib.sha256(transcript).digest()
    return HKDF(SHA256(), KEY_BYTES, salt=secret, info=info).derive(shared)


def check_prefix(received: bytes, ours: Credentials) -> Mode:
    """Check the first bytes that came from the other end, and return its mode."""
    magic, version, mode = PREFIX.unpack(received)
    if magic != MAGIC:
        raise ProtocolError("the other end does not speak nowait's protocol")
    if version != VERSION:
        raise RefusedError(f"the other end speaks version {version} of the protocol, this one version {VERSION}")
    if mode > max(Mode) or (mode != Mode.AUTHENTICATED) != ours.encrypt:
        names = ("not encrypted", "encrypted")
        raise RefusedError(f"the other end is {names[mode > 0]} (mode {mode}), this one {names[ours.encrypt]}")
    return Mode(mode)


@final
class ClientHandshake:
    """The end that connects. ``private_key`` must be new for each connection; ``mode`` is the best that it can."""

    sends_first = True

    def __init__(self, credentials: Credentials, private_key: X25519PrivateKey, mode: Mode = Mode.OCB) -> None:
        self.credentials, self._private_key, self.mode = credentials, private_key, mode
        public = credentials.prefix(mode) + private_key.public_key().public_bytes_raw()
        self.greeting = public + _greeting_tag(credentials, public)
        """The message to send."""

    def receive(self, greeting: bytes) -> Keys:
        """Check the server's message, and return the keys."""
        secret, public = self.credentials.secret, greeting[:-TAG_BYTES]
        shared = _exchange(self._private_key, greeting)
        transcript = self.greeting + public
        tag = derived_key(secret, shared, b"server's tag", transcript)
        _check_tag(tag, greeting)
        mode = check_prefix(greeting[: PREFIX.size], self.credentials)
        if mode > self.mode:
            raise ProtocolError(f"the other end chose the mode {mode}, which this one does not have")
        to_server, to_client, binding = _traffic_keys(secret, shared, self.greeting + greeting)
        return Keys(sending=to_server, receiving=to_client, mode=mode, binding=binding)


@final
class ServerHandshake:
    """The end that listens. ``new_private_key`` returns another key for each connection; ``mode`` is preferred."""

    sends_first = False

    def __init__(
        self, credentials: Credentials, new_private_key: Callable[[], X25519PrivateKey], mode: Mode = Mode.OCB
    ) -> None:
        self.credentials, self._new_private_key, self.mode = credentials, new_private_key, mode
        self.greeting = b""
        """The message to send, once the client's has arrived."""

    def receive(self, greeting: bytes) -> Keys:
        """Check the client's message, compute the reply, and return the keys."""
        _check_tag(_greeting_tag(self.credentials, greeting[:-TAG_BYTES]), greeting)
        private_key = self._new_private_key()
        shared = _exchange(private_key, greeting)
        secret = self.credentials.secret
        mode = min(self.mode, check_prefix(greeting[: PREFIX.size], self.credentials))
        public = self.credentials.prefix(mode) + private_key.public_key().public_bytes_raw()
        self.greeting = public + derived_key(secret, shared, b"server's tag", greeting + public)
        to_server, to_client, binding = _traffic_keys(secret, shared, greeting + self.greeting)
        return Keys(sending=to_client, receiving=to_server, mode=mode, binding=binding)


Handshake = ClientHandshake | ServerHandshake


def _greeting_tag(credentials: Credentials, public: bytes) -> bytes:
    """Return the tag of the client's message."""
    key = derived_key(credentials.secret, b"", b"client's tag")
    return hmac.digest(key, public, "sha256")


def _check_tag(expected: bytes, greeting: bytes) -> None:
    if not hmac.compare_digest(expected, greeting[-TAG_BYTES:]):
        raise ProtocolError("the other end does not know the secret of this run")


def _exchange(private_key: X25519PrivateKey, greeting: bytes) -> bytes:
    public = greeting[PREFIX.size : PREFIX.size + KEY_BYTES]
    try:
        return private_key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a public key of small order: the result would be known to everybody
        raise ProtocolError("the other end sent a public key that is not valid") from None


def _traffic_keys(secret: bytes, shared: bytes, transcript: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the keys to the server and to the client, and the binding."""
    return (
        derived_key(secret, shared, b"to the server", transcript),
        derived_key(secret, shared, b"to the client", transcript),
        derived_key(secret, shared, b"binding", transcript),
    )
