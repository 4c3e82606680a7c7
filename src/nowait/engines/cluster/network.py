"""The network between the server and its hosts: ZeroMQ, closed to everybody without the keys of the run.

Encrypted (CURVE), a connection also hides what it carries; without encryption (PLAIN) it only asks for a password.
Keys and password are made for one run and handed to its hosts through Ray.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from nowait.core.types import Vector
from nowait.engines.cluster.guard import Guard
from nowait.engines.cluster.wire import Format, Message, Say

USER = b"nowait"
IO_THREADS = 2
HANDSHAKE = 10_000
"""Milliseconds that a connection has to show the keys of the run."""
LAST_WORDS = 1_000
"""Milliseconds for what a host says at its end."""
MORE, EVENTS, READABLE, HAS_MORE = int(zmq.SNDMORE), int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
"""As plain numbers: what ZeroMQ calls them is slow to calculate with."""


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

    def __init__(self, ip: str, port: int | None, form: Format, *, encrypt: bool) -> None:
        self._format = form
        self._context = zmq.Context(io_threads=IO_THREADS)
        self._socket = _open(self._context, zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE)
        self._guard: Guard | None = None
        self._senders: set[bytes] = set()
        """The hosts that have sent something."""
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
        self._guard = Guard(self._socket, port=int(url.rpartition(":")[2]))
        self.address = Address(url, server_key, public_key, secret_key)
        self.fd = int(self._socket.getsockopt(zmq.FD))

    def receive(self) -> tuple[bytes, Message] | None:
        """Who sent the next message, and that; None if there is none."""
        if not self.pending():
            return None
        sender = self._socket.recv()
        first = self._socket.recv() if sender in self._senders else self._first_frame_from(sender)
        return sender, self._format.unpack([first, *_rest(self._socket, more=self._format.large)])

    def _first_frame_from(self, sender: bytes) -> bytes:
        """The content of the first message of a host, which proves that its connection has the keys."""
        frame = self._socket.recv(copy=False)
        self._senders.add(sender)
        if self._guard is not None:
            self._guard.proved(int(frame.get(zmq.SRCFD)))
        return frame.bytes

    def expect(self, hosts: int) -> None:
        """Set the number of hosts that are expected to connect."""
        if self._guard is not None:
            self._guard.expect(hosts)

    def pending(self) -> bool:
        """Is there a message? The file descriptor does not always tell."""
        return _pending(self._socket)

    def send(self, receiver: bytes, kind: Say, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Send to a host. One that is gone hears nothing: that it is gone will be noticed otherwise."""
        try:
            self._socket.send(receiver, MORE)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        else:
            _send(self._socket, self._format.pack(kind, content, vectors))

    def close(self) -> None:
        """Hang up."""
        if self._guard is not None:
            self._guard.close()
        self._doorkeeper.stop()
        self._socket.close(linger=0)
        self._context.term()


@final
class Dial:
    """A host's socket, connected to the server."""

    def __init__(self, address: Address, identity: bytes, form: Format) -> None:
        self._format = form
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
        self._breaks = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.break_fd = int(self._breaks.getsockopt(zmq.FD))
        self.broken()  # ZeroMQ signals only to those who have looked before

    def broken(self) -> bool:
        """Did the connection break? ZeroMQ would make it again, but what was under way is lost."""
        return _pending(self._breaks)

    def receive(self) -> Message | None:
        """The next message; None if there is none."""
        if not self.pending():
            return None
        return self._format.unpack([self._socket.recv(), *_rest(self._socket, more=self._format.large)])

    def pending(self) -> bool:
        """As ``Exchange.pending``."""
        return _pending(self._socket)

    def send(self, kind: Say, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Send to the server."""
        _send(self._socket, self._format.pack(kind, content, vectors))

    def close(self) -> None:
        """Hang up, but let the last words go out."""
        self._socket.disable_monitor()
        self._breaks.close(linger=0)
        self._socket.close(linger=LAST_WORDS)
        self._context.term()


def _pending(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(EVENTS)) & READABLE)


def _rest(socket: zmq.Socket[bytes], *, more: bool) -> list[Any]:
    """The frames of a message after the first; there are some only where vectors have frames of their own."""
    frames: list[Any] = []
    while more and socket.getsockopt(HAS_MORE):
        frames.append(socket.recv(copy=False).buffer)
    return frames


def _send(socket: zmq.Socket[bytes], frames: list[Any]) -> None:
    last = len(frames) - 1
    for place, frame in enumerate(frames):
        socket.send(frame, MORE if place < last else 0, copy=place == 0)


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
        socket.setsockopt(option, 0)  # there are never more orders and reports than workers
    return socket
