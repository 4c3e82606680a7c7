"""The network between the server and its hosts: ZeroMQ, closed to everybody without the keys of the run.

Encrypted (CURVE), a connection also hides what it carries; without encryption (PLAIN) it only asks for a password.
Keys and password are made for one run and handed to its hosts through Ray.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import zmq
from zmq.auth.thread import ThreadAuthenticator

from nowait.core.types import Vector

SMALL = 65_536
"""Vectors of fewer bytes travel joined into one block, because every frame costs; larger ones as frames of their
own."""
USER = b"nowait"
IO_THREADS = 2


@final
@dataclass(frozen=True)
class Address:
    """All that a host needs to connect."""

    url: str
    server_key: bytes
    """Empty: the connection is not encrypted."""
    public_key: bytes
    secret_key: bytes
    """The password, if it is not encrypted."""


@final
class Exchange:
    """The server's socket, to which all hosts connect. It never waits."""

    def __init__(self, ip: str, port: int | None, *, encrypt: bool) -> None:
        self._context = zmq.Context(io_threads=IO_THREADS)
        self._socket = _open(self._context, zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        server_key, public_key, secret_key = b"", b"", secrets.token_hex(32).encode()
        self._doorkeeper = ThreadAuthenticator(self._context)
        self._doorkeeper.start()
        if encrypt:
            server_key, self._socket.curve_secretkey = zmq.curve_keypair()
            public_key, secret_key = zmq.curve_keypair()
            self._socket.curve_server = True
            self._doorkeeper.configure_curve_callback(credentials_provider=_Only(public_key))
        else:
            self._socket.plain_server = True
            self._doorkeeper.configure_plain(passwords={USER.decode(): secret_key.decode()})
        where = f"[{ip}]" if ":" in ip else ip
        self._socket.setsockopt(zmq.IPV6, int(":" in ip))
        try:
            self._socket.bind(f"tcp://{where}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"the server cannot listen at {where}, port {port or 'any'}: {error}") from error
        url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = Address(url, server_key, public_key, secret_key)
        self.fd = int(self._socket.getsockopt(zmq.FD))

    def pending(self) -> bool:
        """Is there a message? The file descriptor does not always tell."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self) -> tuple[bytes, bytes, list[Any]] | None:
        """Who sent the next message, its head, and its other frames; None if there is none."""
        try:
            sender = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        head, frames = receive_frames(self._socket)
        return sender, head, frames

    def send(self, receiver: bytes, head: bytes, frames: Sequence[Any] = ()) -> None:
        """Send to a host. One that is gone hears nothing: that it is gone will be noticed otherwise."""
        try:
            self._socket.send_multipart([receiver, head, *frames], copy=False)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def close(self) -> None:
        """Hang up."""
        self._doorkeeper.stop()
        self._socket.close(linger=0)
        self._context.term()


@final
class Dial:
    """A host's socket, connected to the server."""

    def __init__(self, address: Address, identity: bytes) -> None:
        self._context = zmq.Context()
        self._socket = _open(self._context, zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, identity)
        if address.server_key:
            self._socket.curve_serverkey = address.server_key
            self._socket.curve_publickey, self._socket.curve_secretkey = address.public_key, address.secret_key
        else:
            self._socket.plain_username, self._socket.plain_password = USER, address.secret_key
        self._socket.setsockopt(zmq.IPV6, int("[" in address.url))
        self._socket.connect(address.url)
        self.fd = int(self._socket.getsockopt(zmq.FD))

    def pending(self) -> bool:
        """As ``Exchange.pending``."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self) -> tuple[bytes, list[Any]] | None:
        """The head of the next message and its other frames; None if there is none."""
        return receive_frames(self._socket) if self.pending() else None

    def send(self, head: bytes, frames: Sequence[Any] = ()) -> None:
        """Send to the server."""
        self._socket.send_multipart([head, *frames], copy=False)

    def close(self) -> None:
        """Hang up."""
        self._socket.close(linger=0)
        self._context.term()


def receive_frames(socket: zmq.Socket[bytes]) -> tuple[bytes, list[Any]]:
    """The head as bytes, the rest as buffers that are not copied."""
    head, frames = socket.recv(), []
    while socket.getsockopt(zmq.RCVMORE):
        frames.append(socket.recv(copy=False).buffer)
    return head, frames


def pack(vectors: Sequence[Vector]) -> list[Any]:
    """Vectors as frames."""
    if not vectors:
        return []
    return [b"".join(vectors)] if vectors[0].nbytes < SMALL else list(vectors)  # type: ignore[arg-type]


def unpack(frames: Sequence[Any], length: int, dtype: np.dtype[Any]) -> Sequence[Vector]:
    """The vectors again. Only small ones are copied: they arrive anywhere, and compiled code wants them aligned."""
    if not frames:
        return []
    if length * dtype.itemsize < SMALL:
        return np.frombuffer(bytes(frames[0]), dtype).reshape(-1, length)  # type: ignore[return-value]
    return [np.frombuffer(frame, dtype) for frame in frames]


@final
@dataclass(frozen=True)
class _Only:
    """Lets in who has this key."""

    key: bytes

    def callback(self, domain: str, key: bytes) -> bool:
        """Asked by ZeroMQ for every connection; the key comes in its printable form."""
        return secrets.compare_digest(key, self.key)


def _open(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 0)  # no more messages are under way than there are workers
    return socket
