"""ZeroMQ sockets between the server and the hosts on other nodes. Only hosts with the keys of the run can connect.

With encryption (CURVE) the content is secret too; without it (PLAIN) a connection is authenticated by a password only.
Keys and password are generated for one run and passed to its hosts through Ray.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from nowait.core.types import Vector
from nowait.engines.cluster.connection_limit import SPARE_CONNECTIONS, ConnectionLimit
from nowait.engines.cluster.messages import Format, Message, MessageKind

USER = b"nowait"
IO_THREADS = 2
HANDSHAKE = 10_000
"""Milliseconds within which a connection has to authenticate."""
LINGER = 1_000
"""Milliseconds to send the last messages of a host that exits."""
MORE, EVENTS, READABLE, HAS_MORE = int(zmq.SNDMORE), int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
"""As plain integers, because operations on pyzmq's enumerations are slow."""


@final
@dataclass(frozen=True)
class Address:
    """What a host needs to connect."""

    url: str
    server_key: bytes
    """Empty if the connection is not encrypted."""
    public_key: bytes
    secret_key: bytes
    """The password, if the connection is not encrypted."""


@final
class ServerSocket:
    """The server's socket, to which all hosts connect. It never blocks."""

    def __init__(self, socket: zmq.Socket[bytes], form: Format, address: Address, limit: ConnectionLimit) -> None:
        self._socket, self._format, self._limit = socket, form, limit
        self.address = address
        self.fd = int(socket.getsockopt(zmq.FD))
        self._resources = contextlib.ExitStack()
        self._senders: set[bytes] = set()
        """The hosts that have sent something."""

    @classmethod
    def open(
        cls,
        ip: str,
        port: int | None,
        form: Format,
        *,
        encrypt: bool,
        handshake_milliseconds: int = HANDSHAKE,
        spare_connections: int = SPARE_CONNECTIONS,
    ) -> ServerSocket:
        """Bind to a port (None: any free one), and start to authenticate connections and to limit their number."""
        with contextlib.ExitStack() as stack:
            context = zmq.Context(io_threads=IO_THREADS)
            stack.callback(context.term)
            socket = _open(context, zmq.ROUTER)
            stack.callback(socket.close, linger=0)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.HANDSHAKE_IVL, handshake_milliseconds)
            authenticator = ThreadAuthenticator(context)
            authenticator.start()
            stack.callback(authenticator.stop)
            keys = _require_keys(socket, authenticator, encrypt=encrypt)
            _bind(socket, ip, port)
            url = socket.getsockopt_string(zmq.LAST_ENDPOINT)
            limit = ConnectionLimit.start(socket, int(url.rpartition(":")[2]), spare_connections)
            stack.callback(limit.close)
            server_socket = cls(socket, form, Address(url, *keys), limit)
            server_socket._resources = stack.pop_all()
            return server_socket

    def receive(self) -> tuple[bytes, Message] | None:
        """Return the sender of the next message and the message; None if there is none."""
        if not self.pending():
            return None
        sender = self._socket.recv()
        first = self._socket.recv() if sender in self._senders else self._first_frame_from(sender)
        return sender, self._format.unpack([first, *_rest(self._socket, more=self._format.large)])

    def _first_frame_from(self, sender: bytes) -> bytes:
        """Receive the first message of a host, which proves that its connection is authenticated."""
        frame = self._socket.recv(copy=False)
        self._senders.add(sender)
        self._limit.authenticated(int(frame.get(zmq.SRCFD)))
        return frame.bytes

    def expect(self, hosts: int) -> None:
        """Set the number of hosts that are expected to connect."""
        self._limit.expect(hosts)

    def pending(self) -> bool:
        """Return True if a message has arrived. The file descriptor does not always become readable."""
        return _pending(self._socket)

    def send(self, receiver: bytes, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Send to a host. Messages to a host that is gone are dropped: its loss is noticed elsewhere."""
        try:
            self._socket.send(receiver, MORE)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
        else:
            _send(self._socket, self._format.pack(kind, content, vectors))

    def close(self) -> None:
        """Close the socket and stop the threads."""
        self._resources.close()


@final
class HostSocket:
    """A host's socket, connected to the server."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], form: Format) -> None:
        self._context, self._socket, self._format = context, socket, form
        self.fd = int(socket.getsockopt(zmq.FD))
        self._breaks = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.break_fd = int(self._breaks.getsockopt(zmq.FD))
        self.broken()  # ZeroMQ signals the descriptor only after the events were read once

    @classmethod
    def connect(cls, address: Address, identity: bytes, form: Format) -> HostSocket:
        """Connect to the server."""
        context = zmq.Context()
        socket = _open(context, zmq.DEALER)
        try:
            socket.setsockopt(zmq.ROUTING_ID, identity)
            if address.server_key:
                socket.curve_serverkey = address.server_key
                socket.curve_publickey, socket.curve_secretkey = address.public_key, address.secret_key
            else:
                socket.plain_username, socket.plain_password = USER, address.secret_key
            socket.setsockopt(zmq.IPV6, int("[" in address.url))
            socket.connect(address.url)
            return cls(context, socket, form)
        except BaseException:
            socket.close(linger=0)
            context.term()
            raise

    def broken(self) -> bool:
        """Return True if the connection broke. ZeroMQ would reconnect, but what was in transit is lost."""
        return _pending(self._breaks)

    def receive(self) -> Message | None:
        """Return the next message; None if there is none."""
        if not self.pending():
            return None
        return self._format.unpack([self._socket.recv(), *_rest(self._socket, more=self._format.large)])

    def pending(self) -> bool:
        """Return True if a message has arrived. The file descriptor does not always become readable."""
        return _pending(self._socket)

    def send(self, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Send to the server."""
        _send(self._socket, self._format.pack(kind, content, vectors))

    def close(self) -> None:
        """Close the socket after the last messages were sent."""
        self._socket.disable_monitor()
        self._breaks.close(linger=0)
        self._socket.close(linger=LINGER)
        self._context.term()


def _pending(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(EVENTS)) & READABLE)


def _rest(socket: zmq.Socket[bytes], *, more: bool) -> list[Any]:
    """Receive the remaining frames of a message; there are some only if vectors have frames of their own."""
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
class _OneKey:
    """Accepts connections with this public key."""

    key: bytes

    def callback(self, domain: str, key: bytes) -> bool:
        """Return True if a connection may be accepted; called by pyzmq with the key in printable form."""
        return secrets.compare_digest(key, self.key)


def _require_keys(
    socket: zmq.Socket[bytes], authenticator: ThreadAuthenticator, *, encrypt: bool
) -> tuple[bytes, bytes, bytes]:
    """Generate keys or a password and require them of connections; returns the last three fields of ``Address``."""
    if encrypt:
        server_key, socket.curve_secretkey = zmq.curve_keypair()
        public_key, secret_key = zmq.curve_keypair()
        socket.curve_server = True
        authenticator.configure_curve_callback(credentials_provider=_OneKey(public_key))
        return server_key, public_key, secret_key
    password = secrets.token_hex(32)
    socket.plain_server = True
    authenticator.configure_plain(passwords={USER.decode(): password})
    return b"", b"", password.encode()


def _bind(socket: zmq.Socket[bytes], ip: str, port: int | None) -> None:
    where = f"[{ip}]" if ":" in ip else ip
    socket.setsockopt(zmq.IPV6, int(":" in ip))
    try:
        socket.bind(f"tcp://{where}:{port or '*'}")
    except zmq.ZMQError as error:
        raise OSError(f"the server cannot listen at {where}, port {port or 'any'}: {error}") from error


def _open(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 0)  # unlimited: there are never more orders and reports than workers
    return socket
