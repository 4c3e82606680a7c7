"""The Unix socket to which hosts on the driver's own node connect."""

from __future__ import annotations

import secrets
import socket
from typing import final

MOST_WAITING = 64
"""The most connections that have not authenticated. A host authenticates at once."""


@final
class LocalListener:
    """An abstract Unix socket. A connection authenticates with a password in its first message; others are closed.

    When too many connections have sent nothing yet, the oldest of them is closed.
    """

    def __init__(self, listener: socket.socket, name: str, most_waiting: int) -> None:
        self._listener, self._most_waiting = listener, most_waiting
        self.address = (name, secrets.token_bytes(32))
        """The name of the socket, and the password."""
        self.waiting: dict[int, socket.socket] = {}
        """Connections that have not authenticated, the oldest first."""
        self._update_fds()

    @classmethod
    def open(cls, most_waiting: int = MOST_WAITING) -> LocalListener:
        """Listen at a new random name."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            name = f"\0nowait-{secrets.token_hex(8)}"
            listener.bind(name)
            listener.listen(most_waiting)
            listener.setblocking(False)
            return cls(listener, name, most_waiting)
        except BaseException:
            listener.close()
            raise

    def _update_fds(self) -> None:
        self.fds = frozenset([self._listener.fileno(), *self.waiting])
        """The descriptors to poll."""

    def receive(self, fd: int) -> tuple[bytes, socket.socket] | None:
        """Handle a readable descriptor. Returns the identity and the socket of a host that has authenticated."""
        if fd == self._listener.fileno():
            self._accept()
            return None
        connection = self.waiting.get(fd)
        if connection is None:
            return None  # it was closed meanwhile
        try:
            message = connection.recv(1024)
        except BlockingIOError:
            return None  # the descriptor of a closed connection was reused by a new one
        except OSError:
            message = b""
        del self.waiting[fd]
        self._update_fds()
        password = self.address[1]
        if secrets.compare_digest(message[: len(password)], password):
            return message[len(password) :], connection
        connection.close()
        return None

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the client is gone already
        if len(self.waiting) >= self._most_waiting:
            self.waiting.pop(next(iter(self.waiting))).close()
        connection.setblocking(False)
        self.waiting[connection.fileno()] = connection
        self._update_fds()

    def close(self) -> None:
        """Close the listener and all waiting connections."""
        self._listener.close()
        for connection in self.waiting.values():
            connection.close()
