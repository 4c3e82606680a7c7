"""Keys, the handshake of a connection, and its sealed frames.

The handshake is Noise_NKpsk0_25519_AESGCM_SHA256 of the Noise Protocol Framework, revision 34
(https://noiseprotocol.org/noise.html), whose names the classes and methods here have. Hosts know a secret (``psk``) and
the server's public key (``s``); each connection has new ephemeral keys (``e``):

    host -> server   magic, version, mode; psk, e, es; a tag
    server -> host   magic, version, mode; e, ee; a tag
    host -> server   the first frame, with the new keys

The first 8 bytes are the prologue, so both ends must send the same. A host is authenticated by its first frame, because
its first message may have been recorded.

After that all bytes are in frames: a header (length of the payload, kind, flags), the payload, and a tag of 16 bytes.
The nonce is the number of the frame in its direction, which is never sent: a frame that is repeated, left out, moved or
from elsewhere does not fit its tag. Frames differ from Noise's transport messages in two things: they may be longer
than 65,535 bytes, and their header is associated data.

Only the functions for key files read and write. No error or message contains a key.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NOISE = b"Noise_NKpsk0_25519_AESGCM_SHA256"
"""The name of the handshake. It is as long as a hash, and therefore is the first one."""
MAGIC = b"nowait"
VERSION = 4
"""The version of the protocol. Ends with different versions refuse each other."""
PREFIX = struct.Struct("<6sBB")
"""Magic, version, and 1 if frames are encrypted, 0 if they are only authenticated."""
KEY_BYTES, TAG_BYTES, NONCE_BYTES = 32, 16, 12
GREETING_BYTES = PREFIX.size + KEY_BYTES + TAG_BYTES
FIRST_NONCE = bytes(NONCE_BYTES)
REKEY_NONCE = bytes(4) + b"\xff" * 8
HEADER = struct.Struct("<IBBH")
"""Bytes of the payload, kind, flags, and two bytes that are zero."""
OVERHEAD = HEADER.size + TAG_BYTES
MOST_PAYLOAD = 1 << 20
"""The most bytes of a payload that are accepted."""
FRAMES_PER_KEY = 1 << 16
"""At most 64 GiB are encrypted with one key, which keeps far from the limits of GCM."""
MOST_FRAMES = 2**64 - FRAMES_PER_KEY
"""The most frames in one direction: the last nonce of 64 bits belongs to ``Rekey``."""


class ProtocolError(Exception):
    """The other end sent something that is not valid here. The connection is of no more use."""


class RefusedError(ProtocolError):
    """The other end speaks another version or mode; it should be sent our prefix, which says so."""


# Keys


@final
@dataclass(frozen=True)
class HostKey:
    """What hosts know: the secret that they share with the server, and the server's public key."""

    secret: bytes = field(repr=False)
    server: bytes = field(repr=False)


@final
@dataclass(frozen=True)
class ServerKey:
    """What the server knows: the secret that it shares with hosts, and its private key."""

    secret: bytes = field(repr=False)
    private: X25519PrivateKey = field(repr=False)

    @classmethod
    def new(cls) -> ServerKey:
        """Return random keys."""
        return cls(secrets.token_bytes(KEY_BYTES), X25519PrivateKey.generate())

    def for_hosts(self) -> HostKey:
        """Return what hosts need to know."""
        return HostKey(self.secret, _public_bytes(self.private))


def _public_bytes(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


# Frames


class FrameKind(IntEnum):
    """What is in a frame."""

    BODY = 1
    """a part of a message without its large vectors"""
    VECTOR = 2
    """a part of a large vector"""
    END = 3
    """nothing: the last frame of its direction, without which an end is an error"""


@final
class CipherState:
    """The key of one direction, AES-256-GCM, and the number of its next frame."""

    def __init__(self, key: bytes) -> None:
        self._key, self._number, self.aead = key, 0, AESGCM(key)

    def next_nonce(self) -> bytes:
        """Return the nonce of the next frame, for which ``aead`` then has the key: its number, in 64 of 96 bits."""
        number = self._number
        if number and number % FRAMES_PER_KEY == 0:
            self._rekey()
        self._number = number + 1
        return number.to_bytes(NONCE_BYTES, "big")

    def _rekey(self) -> None:
        if self._number >= MOST_FRAMES:
            raise ProtocolError("the connection has sent as many frames as it can: connect again")
        self._key = self.aead.encrypt(REKEY_NONCE, bytes(KEY_BYTES), b"")[:KEY_BYTES]
        self.aead = AESGCM(self._key)


@final
class Encryption:
    """The payload is encrypted; the header is associated data."""

    def __init__(self, key: bytes) -> None:
        self._state = CipherState(key)

    def seal(self, frame: memoryview, payload: bytes | memoryview) -> None:
        """Encrypt the payload into a frame that begins with its header."""
        nonce = self._state.next_nonce()
        self._state.aead.encrypt_into(nonce, payload, frame[: HEADER.size], frame[HEADER.size :])

    def open(self, frame: memoryview, out: memoryview) -> None:
        """Check a whole frame and decrypt its payload into ``out``, whose content is arbitrary after an error."""
        nonce = self._state.next_nonce()
        try:
            self._state.aead.decrypt_into(nonce, frame[HEADER.size :], frame[: HEADER.size], out)
        except InvalidTag:
            raise _altered() from None


@final
class Authentication:
    """The payload is readable; header and payload are associated data."""

    def __init__(self, key: bytes) -> None:
        self._state = CipherState(key)

    def seal(self, frame: memoryview, payload: bytes | memoryview) -> None:
        """Copy the payload into the frame. Only the copy has a tag: others may write to the payload meanwhile."""
        end = len(frame) - TAG_BYTES
        frame[HEADER.size : end] = payload
        nonce = self._state.next_nonce()
        frame[end:] = self._state.aead.encrypt(nonce, b"", frame[:end])

    def open(self, frame: memoryview, out: memoryview) -> None:
        """Check the tag, then copy the payload."""
        end = len(frame) - TAG_BYTES
        nonce = self._state.next_nonce()
        try:
            self._state.aead.decrypt(nonce, frame[end:], frame[:end])
        except InvalidTag:
            raise _altered() from None
        out[:] = frame[HEADER.size : end]


Cipher = Encryption | Authentication


def _altered() -> ProtocolError:
    return ProtocolError("a frame was altered, repeated, left out or moved")


# The handshake


@final
class SymmetricState:
    """The hash of what both ends know so far, and the key that follows from it."""

    def __init__(self, prologue: bytes, server: bytes) -> None:
        self.hash = self._chaining_key = NOISE
        self._key = b""
        self.mix_hash(prologue)
        self.mix_hash(server)

    def mix_hash(self, data: bytes) -> None:
        self.hash = sha256(self.hash + data).digest()

    def mix_key(self, material: bytes) -> None:
        self._chaining_key, self._key = self._derived(material, 2)

    def mix_key_and_hash(self, secret: bytes) -> None:
        self._chaining_key, mixed, self._key = self._derived(secret, 3)
        self.mix_hash(mixed)

    def mix_ephemeral(self, public: bytes) -> None:  # the token e, in a pattern with psk
        self.mix_hash(public)
        self.mix_key(public)

    def encrypt(self, payload: bytes) -> bytes:
        """Encrypt and hash. Between two encryptions there is always a new key, so the nonce is zero."""
        sealed = AESGCM(self._key).encrypt(FIRST_NONCE, payload, self.hash)
        self.mix_hash(sealed)
        return sealed

    def decrypt(self, sealed: bytes) -> bytes:
        """Check, decrypt and hash. Raises ``InvalidTag``."""
        payload = AESGCM(self._key).decrypt(FIRST_NONCE, sealed, self.hash)
        self.mix_hash(sealed)
        return payload

    def split(self) -> list[bytes]:
        """Return the keys of what the host sends, and of what the server sends."""
        return self._derived(b"", 2)

    def _derived(self, material: bytes, keys: int) -> list[bytes]:
        derived = HKDF(SHA256(), keys * KEY_BYTES, salt=self._chaining_key, info=b"").derive(material)
        return [derived[start : start + KEY_BYTES] for start in range(0, len(derived), KEY_BYTES)]


def write_first(state: SymmetricState, key: HostKey, ephemeral: X25519PrivateKey, payload: bytes = b"") -> bytes:
    """Return the host's message: psk, e, es. Payloads are empty in this protocol."""
    public = _public_bytes(ephemeral)
    state.mix_key_and_hash(key.secret)
    state.mix_ephemeral(public)
    state.mix_key(_exchange(ephemeral, key.server))
    return public + state.encrypt(payload)


def read_first(state: SymmetricState, key: ServerKey, message: bytes) -> tuple[bytes, bytes]:
    """Check the host's message. Returns the payload, and the host's ephemeral public key."""
    public = message[:KEY_BYTES]
    state.mix_key_and_hash(key.secret)
    state.mix_ephemeral(public)
    state.mix_key(_exchange(key.private, public))
    return state.decrypt(message[KEY_BYTES:]), public


def write_second(state: SymmetricState, ephemeral: X25519PrivateKey, host: bytes, payload: bytes = b"") -> bytes:
    """Return the server's message to a host with this ephemeral public key: e, ee."""
    public = _public_bytes(ephemeral)
    state.mix_ephemeral(public)
    state.mix_key(_exchange(ephemeral, host))
    return public + state.encrypt(payload)


def read_second(state: SymmetricState, ephemeral: X25519PrivateKey, message: bytes) -> bytes:
    """Check the server's message; returns the payload."""
    public = message[:KEY_BYTES]
    state.mix_ephemeral(public)
    state.mix_key(_exchange(ephemeral, public))
    return state.decrypt(message[KEY_BYTES:])


def _exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a public key of small order: the result would be known to everybody
        raise ProtocolError("the other end sent a public key that is not valid") from None


class Ciphers(NamedTuple):
    """What a handshake results in."""

    sealing: Cipher
    opening: Cipher
    binding: bytes
    """The same bytes at both ends, and at no other connection: proofs that contain them cannot be passed on."""


@final
class ClientHandshake:
    """The end that connects. ``ephemeral`` must be new for each connection."""

    sends_first = True

    def __init__(self, key: HostKey, ephemeral: X25519PrivateKey, *, encrypt: bool) -> None:
        self.encrypt, self.prefix, self._ephemeral = encrypt, _prefix(encrypt), ephemeral
        self._state = SymmetricState(self.prefix, key.server)
        self.greeting = self.prefix + write_first(self._state, key, ephemeral)
        """The message to send."""

    def receive(self, greeting: bytes) -> Ciphers:
        """Check the server's message, whose prefix was checked."""
        try:
            read_second(self._state, self._ephemeral, greeting[PREFIX.size :])
        except InvalidTag:
            raise ProtocolError(
                "the other end does not have the private key of the server that made this key file"
            ) from None
        to_server, to_host = self._state.split()
        return _ciphers(to_server, to_host, self._state.hash, encrypt=self.encrypt)


@final
class ServerHandshake:
    """The end that listens. ``new_ephemeral`` returns another key for each connection."""

    sends_first = False

    def __init__(self, key: ServerKey, new_ephemeral: Callable[[], X25519PrivateKey], *, encrypt: bool) -> None:
        self.encrypt, self.prefix = encrypt, _prefix(encrypt)
        self._key, self._new_ephemeral = key, new_ephemeral
        self.greeting = b""
        """The message to send, once the client's has arrived."""

    def receive(self, greeting: bytes) -> Ciphers:
        """Check the client's message, whose prefix was checked, and compute the reply."""
        state = SymmetricState(self.prefix, _public_bytes(self._key.private))
        try:
            _, host = read_first(state, self._key, greeting[PREFIX.size :])
        except InvalidTag:
            raise ProtocolError("the other end does not have the key of this server") from None
        self.greeting = self.prefix + write_second(state, self._new_ephemeral(), host)
        to_server, to_host = state.split()
        return _ciphers(to_host, to_server, state.hash, encrypt=self.encrypt)


Handshake = ClientHandshake | ServerHandshake


def _ciphers(sealing: bytes, opening: bytes, binding: bytes, *, encrypt: bool) -> Ciphers:
    new_cipher: Callable[[bytes], Cipher] = Encryption if encrypt else Authentication
    return Ciphers(new_cipher(sealing), new_cipher(opening), binding)


def _prefix(encrypt: bool) -> bytes:
    return PREFIX.pack(MAGIC, VERSION, encrypt)


def check_prefix(received: bytes, *, encrypt: bool) -> None:
    """Check the first bytes that came from the other end."""
    magic, version, mode = PREFIX.unpack(received)
    if magic != MAGIC:
        raise ProtocolError("the other end does not speak nowait's protocol")
    if version != VERSION:
        raise RefusedError(f"the other end speaks version {version} of the protocol, this one version {VERSION}")
    if mode != encrypt:
        names = ("not encrypted", "encrypted")
        raise RefusedError(f"the other end is {names[mode > 0]} (mode {mode}), this one {names[encrypt]}")


# Key files

LARGEST_FILE = 1_000
OTHERS = stat.S_IRWXG | stat.S_IRWXO
WORKERS, SERVER, DRAIN = b"nowait-workers-key ", b"nowait-server-key ", b""
"""How the files begin; the keys follow as base64 text."""
MAKE_NEW = "let nowait serve make a new one, and copy that to the machines of the workers"


def server_key_path(path: Path) -> Path:
    """Return the file beside the workers' key file that has the server's private key."""
    return path.with_name(f"{path.name}.server")


def drain_key_path(path: Path) -> Path:
    """Return the file beside the workers' key file that has the second key, which only ``nowait drain`` needs."""
    return path.with_name(f"{path.name}.drain")


def make_key_file(path: Path) -> bool:
    """Make the workers' key file, and the one of the server's private key unless there is one.

    Returns False if the workers' key file exists already.
    """
    if os.path.lexists(path):
        return False
    second = server_key_path(path)
    _write_new(second, SERVER, X25519PrivateKey.generate().private_bytes_raw())
    key = ServerKey(secrets.token_bytes(KEY_BYTES), _private_key(second)).for_hosts()
    return _write_new(path, WORKERS, key.secret + key.server)


def make_drain_key_file(path: Path) -> bool:
    """Make the drain key file beside the workers' key file. Returns False if it exists already."""
    return _write_new(drain_key_path(path), DRAIN, secrets.token_bytes(KEY_BYTES))


def read_host_key(path: Path) -> HostKey:
    """Return what is in the workers' key file."""
    keys = _read(path, WORKERS, 2 * KEY_BYTES)
    return HostKey(keys[:KEY_BYTES], keys[KEY_BYTES:])


def read_server_key(path: Path) -> ServerKey:
    """Return the secret in the workers' key file, with the private key in the file beside it."""
    of_hosts, second = read_host_key(path), server_key_path(path)
    try:
        key = ServerKey(of_hosts.secret, _private_key(second))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no file {second}, which has the private key that belongs to {path}: the server that made both "
            f"has it. Copy it to this machine, or delete {path}, {MAKE_NEW}"
        ) from None
    if key.for_hosts() != of_hosts:
        raise ValueError(f"the private key in {second} does not belong to {path}: delete {path}, {MAKE_NEW}")
    return key


def read_drain_key(path: Path) -> bytes:
    """Return the drain key that belongs to a key file; raise an error that says where to get it."""
    second = drain_key_path(path)
    try:
        return _read(second, DRAIN, KEY_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no drain key file {second}: the server makes it beside its key file, and workers do not need "
            f"it. Run nowait drain on the machine of the server, or copy the file to this machine too"
        ) from None


def _private_key(path: Path) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_read(path, SERVER, KEY_BYTES))


def _write_new(path: Path, label: bytes, key: bytes) -> bool:
    """Write a key to a new file that only its owner can read. Returns False if the file exists already."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise OSError(f"the key file {path} cannot be made: {error.strerror}") from None
    with os.fdopen(fd, "wb") as file:
        file.write(label + base64.b64encode(key) + b"\n")
    return True


def _read(path: Path, label: bytes, size: int) -> bytes:
    """Return the key in a file that only its owner can read and that begins with a label."""
    content = _content(path)
    if content.startswith(label) and len(key := _decoded(content.removeprefix(label))) == size:
        return key
    if label == WORKERS and content.startswith(SERVER):
        raise ValueError(f"{path} has the private key of the server: workers need the file without .server in its name")
    if label == WORKERS and len(_decoded(content)) == KEY_BYTES:
        raise ValueError(
            f"the key file {path} was made by an earlier version of nowait, without a public key of the server: "
            f"delete it, {MAKE_NEW}"
        )
    raise ValueError(f"{path} is not a key file, or is damaged: the server makes its key files if they do not exist")


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        return b""


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
