"""The door of the server: accepts connections, and lets in those that authenticate in time.

Hosts on other machines connect by TCP, with the key of the run. Ray's hosts on this machine connect to an abstract Unix
socket, and send a password with their identity; then the process that starts their workers is at the other end.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from nowait.core.types import Vector
from nowait.fleet.platform import is_ready
from nowait.fleet.server.patience import Silence
from nowait.fleet.server.remote import Exchange, RemoteHost
from nowait.fleet.wire.connection import LINGER_SECONDS, Address, Connection, DisconnectedError, Link
from nowait.fleet.wire.messages import PIECE_BYTES, PIECES_IN_TRANSIT, Message, MessageKind
from nowait.fleet.wire.secure import ProtocolError, ServerHandshake, ServerKey
from nowait.recording.patience import OUT_OF_DESCRIPTORS

HANDSHAKE_SECONDS = 10.0
"""How long a connection may take to send its greeting, and then its first message."""
SPARE_CONNECTIONS = 64
"""How many connections may be open without authentication, besides those of the expected hosts."""
BACKLOG = 128
ACCEPTED_AT_ONCE = 32
PASSWORD_BYTES, MOST_FIRST_BYTES = 32, 1024


@final
@dataclass(eq=False)
class Stranger:
    """A connection that has not authenticated."""

    connection: Link | socket.socket
    """The socket itself if it is a Unix socket."""
    fd: int
    deadline: float
    host: RemoteHost | None = None
    """The host that it turned out to be."""

    def destinations(self, kind: int, content: bytes, count: int) -> Sequence[Vector]:
        """Return where the large vectors of a message are written."""
        if self.host is None:
            raise ProtocolError(f"a message of the kind {kind} must not have vectors")
        return self.host.destinations(kind, content, count)


@final
class Strangers:
    """Connections that have not authenticated yet, the oldest first.

    Past the limit the oldest one is closed: a host authenticates within milliseconds. Otherwise somebody who opens
    connections quickly would use up the file descriptors of this process, which also needs them for checkpoints.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: dict[Stranger, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Stranger]:
        return iter(list(self._waiting))

    def accepted(self, stranger: Stranger) -> list[Stranger]:
        """Add a new connection; returns those that have to be closed for it."""
        self._waiting[stranger] = None
        return list(self._waiting)[: max(0, len(self._waiting) - self.most)]

    def remove(self, stranger: Stranger) -> None:
        """Stop counting a connection that has authenticated or was closed."""
        self._waiting.pop(stranger, None)


@final
class Gateway:
    """The listening sockets, the strangers, and the hosts that have authenticated."""

    def __init__(self, exchange: Exchange, heartbeat_seconds: float) -> None:
        self._exchange, self._hub = exchange, exchange.hub
        self.silence = Silence(heartbeat_seconds)
        self._format = exchange.vectors.shapes.server_format()
        self.handshake_seconds, self.spare_connections = HANDSHAKE_SECONDS, SPARE_CONNECTIONS
        self._listeners: list[socket.socket] = []
        self.strangers = Strangers(SPARE_CONNECTIONS)
        self.hosts: dict[bytes, RemoteHost] = {}
        """The hosts on other machines whose connection is open, by identity; also those that were told to exit."""
        self._past_traffic = (0, 0)
        """Bytes of connections that are closed."""
        self.address: Address
        """What a host on another machine needs to connect."""
        self.local_address = ("", b"")
        """For hosts on this machine: the name of the Unix socket, and the password."""

    def open(self, ip: str, port: int | None, *, encrypt: bool, key: ServerKey | None = None) -> None:
        """Listen at a port (None: any free one) for hosts that have the key (None: a new one)."""
        self._exchange.vectors.warm_up()
        self._key = ServerKey.new() if key is None else key
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        try:
            listener = socket.create_server((ip, port or 0), family=family, backlog=BACKLOG)
        except OSError as error:
            raise OSError(f"the server cannot listen at {ip}, port {port or 'any'}: {error}") from error
        self.address = Address(ip, listener.getsockname()[1], self._key.for_hosts(), encrypt)
        self._listen(listener)

    def open_here(self) -> None:
        """Listen at a Unix socket with a new random name."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = f"\0nowait-{secrets.token_hex(8)}"
        try:
            listener.bind(name)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        self.local_address = (name, secrets.token_bytes(PASSWORD_BYTES))
        self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)
        self._hub.add(listener.fileno(), lambda: self._accept(listener))

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes were received from other machines and sent to them."""
        received, sent = self._past_traffic
        links = [host.link for host in self.hosts.values()]
        return received + sum(link.bytes_received for link in links), sent + sum(link.bytes_sent for link in links)

    def expect(self, hosts: int) -> None:
        """Set the number of hosts that are expected to connect."""
        self.strangers.most = self.spare_connections + hosts

    def tick(self, now: float) -> None:
        """Close connections that have not authenticated, those of hosts that have not exited, and those of silent ones.

        What has arrived from strangers but was not read does not count.
        """
        self.silence.look(now)
        for stranger in self.strangers:
            if now > stranger.deadline and not is_ready(stranger.fd, 0):
                self._dismiss(stranger)
        for host in list(self.hosts.values()):
            if now > host.exits_by:
                host.close()
            elif host.exits_by == math.inf and not host.may_be_silent:
                self._check_silence(host, self.silence.seconds(host.last_message, now))

    def _check_silence(self, host: RemoteHost, seconds: float) -> None:
        """Disconnect a host that is silent for too long; on a slow network its next message alone may take a while."""
        gradients = len(host.processes) * self._format.received.vector_bytes
        if seconds > self.silence.longest(gradients if host.ready else PIECES_IN_TRANSIT * PIECE_BYTES):
            host.lose(f"it was silent for {seconds:.0f} s", wrong=True)

    # Strangers

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, _ = listener.accept()
            except OSError as error:  # there are no more, or the client is gone already
                if error.errno in OUT_OF_DESCRIPTORS:
                    for oldest in list(self.strangers)[:1]:
                        self._dismiss(oldest)
                return
            try:
                stranger = self._stranger(connected)
            except OSError:  # the client is gone: macOS sets no options of such a socket
                connected.close()
                continue
            self._hub.add(stranger.fd, lambda stranger=stranger: self._read(stranger))  # type: ignore[misc]
            for victim in self.strangers.accepted(stranger):
                self._dismiss(victim)

    def _stranger(self, connected: socket.socket) -> Stranger:
        stranger = Stranger(connected, connected.fileno(), monotonic() + self.handshake_seconds)
        if connected.family == socket.AF_UNIX:
            connected.setblocking(False)
        else:
            handshake = ServerHandshake(self._key, X25519PrivateKey.generate, encrypt=self.address.encrypt)
            stranger.connection = Link(connected, Connection(handshake, self._format, stranger.destinations))
        return stranger

    def _read(self, stranger: Stranger) -> None:
        if isinstance(stranger.connection, Link):
            self._read_link(stranger, stranger.connection)
        else:
            self._read_password(stranger, stranger.connection)

    def _read_link(self, stranger: Stranger, link: Link) -> None:
        """Go on with the handshake, until the first message of a host authenticates it."""
        had_keys = link.connection.has_keys
        try:
            message = link.receive()
            if message is not None:
                self._identify(stranger, link, message)
            elif not had_keys and link.connection.has_keys:
                stranger.deadline = monotonic() + self.handshake_seconds
                link.write()  # the greeting, which an empty socket always takes
        except DisconnectedError:
            self._dismiss(stranger)

    def _identify(self, stranger: Stranger, link: Link, message: Message) -> None:
        """Let a host in. Its identity must be one of the run, and no other connection may have it."""
        identity = message.content
        if message.kind != MessageKind.HELLO or not identity or identity in self.hosts:
            self._dismiss(stranger)
            return
        host = RemoteHost(self._exchange, link, identity, self._forget)
        if not self._exchange.owner.connected(host):
            self._dismiss(stranger)
            return
        self._forget_stranger(stranger)
        stranger.host = self.hosts[identity] = host
        self._hub.add(link.fd, host.read)
        host.read()

    def _read_password(self, stranger: Stranger, connected: socket.socket) -> None:
        """Let a host on this machine in, if its first message begins with the password."""
        try:
            message = connected.recv(MOST_FIRST_BYTES)
        except BlockingIOError:
            return  # the descriptor of a closed connection was reused by a new one
        except OSError:
            message = b""
        if secrets.compare_digest(message[:PASSWORD_BYTES], self.local_address[1]):
            self._forget_stranger(stranger)
            self._exchange.owner.connected_here(message[PASSWORD_BYTES:], connected)
        else:
            self._dismiss(stranger)

    def _dismiss(self, stranger: Stranger) -> None:
        self._forget_stranger(stranger)
        if isinstance(stranger.connection, Link):
            with contextlib.suppress(DisconnectedError):
                stranger.connection.write()  # why it is refused
        stranger.connection.close()

    def _forget_stranger(self, stranger: Stranger) -> None:
        self.strangers.remove(stranger)
        self._hub.remove(stranger.fd)

    # Hosts

    def _forget(self, host: RemoteHost) -> None:
        """Remove a host whose connection is closed."""
        del self.hosts[host.identity]
        received, sent = self._past_traffic
        self._past_traffic = (received + host.link.bytes_received, sent + host.link.bytes_sent)

    def close(self, linger_seconds: float = LINGER_SECONDS) -> None:
        """Send the last messages, and close all connections. It may be called twice."""
        for listener in self._listeners:
            self._hub.remove(listener.fileno())
            listener.close()
        self._listeners.clear()
        for stranger in self.strangers:
            self._forget_stranger(stranger)
            stranger.connection.close()
        deadline = monotonic() + linger_seconds
        for host in list(self.hosts.values()):
            host.close(max(0.0, deadline - monotonic()))
