"""The server's socket, to which hosts on other machines connect. It has no threads.

It has file descriptors that become readable when ``receive`` should be called. One of them is a selector of connections
that have more to send than the system takes: it is readable when one of them can go on.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from time import monotonic
from typing import NamedTuple, final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from nowait.core.types import Vector
from nowait.engines.network.unauthenticated import Unauthenticated
from nowait.fleet.platform import is_ready
from nowait.fleet.wire.connection import LINGER_SECONDS, Address, Connection, DisconnectedError, Link
from nowait.fleet.wire.messages import Format, Message, MessageKind
from nowait.fleet.wire.secure import (
    ServerHandshake,
    ServerKey,
)
from nowait.recording.patience import OUT_OF_DESCRIPTORS

HANDSHAKE_SECONDS = 10.0
"""How long a connection may take to send its greeting, and then its first message."""
SPARE_CONNECTIONS = 64
"""How many connections may be open without authentication, besides those of the expected hosts."""
BACKLOG = 128
ACCEPTED_AT_ONCE = 32
MESSAGES_AT_ONCE = 64
"""From one connection; then others get their turn."""


class Lost(NamedTuple):
    """Instead of a message: the connection of a host is gone."""

    cause: str


VectorSlots = Callable[[bytes, int, bytes, int], Sequence[Vector]]
"""Like ``Destinations``, with the identity of the host that sends as its first argument."""


@final
class _Writers:
    """The connections that have more to send than the system takes."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.fd = int(self._selector.fileno())
        """Readable if one of them can go on."""
        self._waiting: set[Link] = set()

    def write(self, link: Link) -> None:
        """Send what a connection has to send; the rest when the system takes it."""
        finished = link.write()
        if finished and link in self._waiting:
            self.remove(link)
        elif not finished and link not in self._waiting:
            self._waiting.add(link)
            self._selector.register(link.fd, selectors.EVENT_WRITE, link)

    def ready(self) -> list[Link]:
        """Return the connections that can go on."""
        return [key.data for key, _ in self._selector.select(0)] if self._waiting else []

    def remove(self, link: Link) -> None:
        """Forget a connection, before it is closed."""
        if link in self._waiting:
            self._waiting.remove(link)
            self._selector.unregister(link.fd)

    def close(self) -> None:
        """Close the selector."""
        self._selector.close()


@final
class ServerSocket:
    """Listens for hosts, and exchanges messages with those that have its key. It never blocks."""

    def __init__(
        self, listener: socket.socket, form: Format, address: Address, key: ServerKey, slots: VectorSlots
    ) -> None:
        self._listener, self._format, self.address, self._slots = listener, form, address, slots
        self._key = key
        self.handshake_seconds, self.spare_connections = HANDSHAKE_SECONDS, SPARE_CONNECTIONS
        self._unauthenticated: Unauthenticated[Link] = Unauthenticated(SPARE_CONNECTIONS)
        self._deadlines: dict[Link, float] = {}
        """When connections that have not authenticated are closed."""
        self._identities: dict[Link, bytes] = {}
        self._links: dict[bytes, Link] = {}
        """The connections that have authenticated."""
        self._by_fd: dict[int, Link] = {}
        self._past_traffic = (0, 0)
        """Bytes of connections that are closed."""
        self._writers = _Writers()
        self._lost: deque[tuple[bytes, Lost]] = deque()
        self._unread: set[Link] = set()
        """Connections with messages that were read from the socket but not returned."""
        self._update_fds()

    @classmethod
    def open(
        cls, ip: str, port: int | None, form: Format, slots: VectorSlots, *, encrypt: bool, key: ServerKey | None = None
    ) -> ServerSocket:
        """Listen at a port (None: any free one) for hosts that have the key (None: a new one)."""
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        try:
            listener = socket.create_server((ip, port or 0), family=family, backlog=BACKLOG)
        except OSError as error:
            raise OSError(f"the server cannot listen at {ip}, port {port or 'any'}: {error}") from error
        try:
            listener.setblocking(False)
            key = ServerKey.new() if key is None else key
            return cls(listener, form, Address(ip, listener.getsockname()[1], key.for_hosts(), encrypt), key, slots)
        except BaseException:
            listener.close()
            raise

    def _update_fds(self) -> None:
        self.fds = frozenset([self._listener.fileno(), self._writers.fd, *self._by_fd])
        """The descriptors to poll for input. A new object whenever they change."""

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes were received from hosts and sent to them."""
        received, sent = self._past_traffic
        links = self._by_fd.values()
        return received + sum(link.bytes_received for link in links), sent + sum(link.bytes_sent for link in links)

    def expect(self, hosts: int) -> None:
        """Set the number of hosts that are expected to connect."""
        self._unauthenticated.most = self.spare_connections + hosts

    def pending(self) -> bool:
        """Return True if ``receive`` has something to return without waiting."""
        return bool(self._lost or self._unread)

    def receive(self, ready: Collection[int]) -> Iterator[tuple[bytes, Message | Lost]]:
        """Return what arrived through these descriptors, each with the identity of the host."""
        unread, self._unread = self._unread, set()
        for waiting in unread:
            if not waiting.closed:
                yield from self._read(waiting)
        for fd in ready:
            link = self._by_fd.get(fd)
            if link is not None:
                yield from self._read(link)
            elif fd == self._listener.fileno():
                self._accept()
            elif fd == self._writers.fd:
                for writer in self._writers.ready():
                    self._write(writer)
        while self._lost:
            yield self._lost.popleft()

    def _read(self, link: Link) -> Iterator[tuple[bytes, Message]]:
        had_keys = link.connection.has_keys
        for _ in range(MESSAGES_AT_ONCE):
            try:
                message = link.receive()
            except DisconnectedError as error:
                self._lose(link, str(error))
                return
            if message is None:
                break
            identity = self._identities.get(link) or self._identify(link, message)
            if identity:
                yield identity, message
            if link.closed:
                return  # by whoever got the message
        else:
            self._unread.add(link)  # the socket may not become readable for what is left
        if not had_keys and link.connection.has_keys and link in self._deadlines:
            self._deadlines[link] = monotonic() + self.handshake_seconds
            self._write(link)

    def _identify(self, link: Link, message: Message) -> bytes:
        """Take the first message of a host, which authenticates it. Returns its identity; empty if it is refused."""
        identity = message.content
        if message.kind != MessageKind.HELLO or not identity or identity in self._links:
            self._lose(link, "the first message of a host has to be its identity")
            return b""
        self._unauthenticated.remove(link)
        del self._deadlines[link]
        self._identities[link], self._links[identity] = identity, link
        return identity

    def send(self, receiver: bytes, kind: MessageKind, content: bytes = b"", vectors: Sequence[Vector] = ()) -> None:
        """Send to a host. Messages to a host that is gone are dropped. Vectors must not change until they are sent."""
        link = self._links.get(receiver)
        if link is not None:
            link.connection.send(kind, content, vectors)
            self._write(link)

    def queued(self, receiver: bytes) -> int:
        """Return how many parts of messages wait to be sent to a host."""
        link = self._links.get(receiver)
        return 0 if link is None else link.connection.queued

    def binding(self, host: bytes) -> bytes:
        """Return the bytes that only both ends of the connection of a host know; empty if it is gone."""
        link = self._links.get(host)
        return b"" if link is None else link.connection.binding

    def detach(self, sender: bytes) -> None:
        """Write the rest of the message that is being received from a host to memory of its own."""
        link = self._links.get(sender)
        if link is not None:
            link.connection.detach()

    def _write(self, link: Link) -> None:
        try:
            self._writers.write(link)
        except DisconnectedError as error:
            self._lose(link, str(error))

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                tcp, _ = self._listener.accept()
            except OSError as error:  # there are no more, or the client is gone already
                if error.errno in OUT_OF_DESCRIPTORS:
                    for oldest in list(self._unauthenticated)[:1]:
                        self._lose(oldest, "there are no file descriptors left")
                return
            link = self._new_link(tcp)
            self._by_fd[link.fd] = link
            self._deadlines[link] = monotonic() + self.handshake_seconds
            for victim in self._unauthenticated.accepted(link):
                self._lose(victim, "too many connections have not authenticated")
            self._update_fds()

    def _new_link(self, tcp: socket.socket) -> Link:
        def destinations(kind: int, content: bytes, count: int) -> Sequence[Vector]:
            return self._slots(self._identities.get(link, b""), kind, content, count)

        handshake = ServerHandshake(self._key, X25519PrivateKey.generate, encrypt=self.address.encrypt)
        link = Link(tcp, Connection(handshake, self._format, destinations))
        return link

    def close_overdue(self, now: float) -> None:
        """Close connections that have not authenticated in time. What has arrived but was not read does not count."""
        for link in self._unauthenticated:
            if now > self._deadlines[link] and not is_ready(link.fd, 0):
                self._lose(link, "it did not authenticate in time")

    def disconnect(self, identity: bytes) -> None:
        """Close the connection of a host."""
        link = self._links.get(identity)
        if link is not None:
            self._remove(link)
            link.close()

    def _lose(self, link: Link, cause: str) -> None:
        identity = self._identities.get(link)
        if identity is not None:
            self._lost.append((identity, Lost(cause)))
        else:
            with contextlib.suppress(DisconnectedError):
                link.write()  # why it is refused
        self._remove(link)
        link.close()

    def _remove(self, link: Link) -> None:
        self._writers.remove(link)
        self._unread.discard(link)
        self._unauthenticated.remove(link)
        self._deadlines.pop(link, None)
        if self._by_fd.pop(link.fd, None) is not None:
            received, sent = self._past_traffic
            self._past_traffic = (received + link.bytes_received, sent + link.bytes_sent)
        self._links.pop(self._identities.pop(link, b""), None)
        self._update_fds()

    def end(self, receiver: bytes) -> None:
        """Send the last frame to a host."""
        link = self._links.get(receiver)
        if link is not None:
            with contextlib.suppress(DisconnectedError):
                link.end()

    def close(self, linger_seconds: float = LINGER_SECONDS) -> None:
        """Send the last messages, and close all connections."""
        self._listener.close()
        deadline = monotonic() + linger_seconds
        for link in list(self._by_fd.values()):
            if link in self._identities:
                link.finish(max(0.0, deadline - monotonic()))
            else:
                link.close()
        self._by_fd.clear()  # it may be called twice
        self._writers.close()
